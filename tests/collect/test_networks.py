"""Tests exported graphs: operators, memory, neighbors, measurements: `collect/networks/`."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn
from torch.nn import functional

from foretune.cli import main
from foretune.collect.networks.calls import Call, TensorSpec
from foretune.collect.networks.measuring import collect_network
from foretune.collect.networks.network import network_of, read_network
from foretune.collect.networks.operators import operator_of
from foretune.datasets import RunLog, read_runs
from foretune.errors import ForetuneError, PredictorError, UsageError
from foretune.models.network import NetworkPredictor, roofline_ms


class Small(nn.Module):
    """Convolution, product, attention, norm, and two views."""

    def __init__(self):
        super().__init__()
        self.image = nn.Conv2d(3, 16, 3, padding=1)
        self.inside = nn.Linear(16, 48)
        self.norm = nn.LayerNorm(16)

    def forward(self, x):
        tokens = self.norm(functional.relu(self.image(x)).flatten(2).transpose(1, 2))
        q, k, v = self.inside(tokens).unsqueeze(1).chunk(3, dim=-1)
        return functional.scaled_dot_product_attention(q, k, v) + tokens.unsqueeze(1)


def export(batch=2, dynamic=False):
    sizes = ({0: torch.export.Dim("batch")},) if dynamic else None
    inputs = (torch.zeros(batch, 3, 8, 8),)
    return torch.export.export(Small().eval(), inputs, dynamic_shapes=sizes)


@pytest.fixture(scope="module")
def network():
    return network_of(export(), "small")


def test_network_of_operators_have_kernels_and_sizes(network):
    found = {o.kernel: dict(o.problem) for o in network.operators if o.kernel != "elementwise"}
    product = {"op": "linear", "batch": 1, "M": 128, "N": 48, "K": 16, "contiguous": 1}
    assert found["gemm"] == product
    assert {
        "batch": 2,
        "in_channels": 3,
        "out_channels": 16,
        "in_h": 8,
        "kernel_w": 3,
        "out_w": 8,
        "stride_h": 1,
        "groups": 1,
    }.items() <= found["convolution"].items()
    assert {"heads": 1, "seq_len": 64, "head_dim": 16}.items() <= found["attention_encoder"].items()
    assert found["norm"]["columns"] == 16
    assert found["norm"]["contiguous"] == 0, "the transposed image"
    assert {o.problem["op"] for o in network.operators if o.kernel == "elementwise"} == {
        "relu",
        "add",
    }
    views = {o.problem["op"]: n for o, n in network.operators.items() if o.kernel == "view"}
    assert views == {"flatten": 1, "transpose": 1, "unsqueeze": 2, "chunk": 1}


def test_network_of_activation_bytes_are_largest_live_sum(network):
    program = export()
    assert network.weight_bytes == sum(4 * p.numel() for p in program.parameters())
    token = 4 * 2 * 64 * 16
    image = 4 * 2 * 3 * 64
    # the tokens wait for the sum; queries, keys and values are one result, attention another
    assert network.activation_bytes == image + (1 + 3 + 1) * token


def test_read_network_sets_dynamic_batch(tmp_path):
    torch.export.save(export(dynamic=True), tmp_path / "small.pt2")
    one, four = (read_network(tmp_path / "small.pt2", batch) for batch in (1, 4))
    assert (one.batch, four.batch) == (1, 4)
    rows = [{o.problem["M"] for o in n.operators if o.kernel == "gemm"} for n in (one, four)]
    assert rows == [{64}, {256}]
    assert four.activation_bytes == 4 * one.activation_bytes


def test_read_network_damaged_or_fixed_batch_is_refused(tmp_path):
    (tmp_path / "no.pt2").write_bytes(b"PK nothing")
    with pytest.raises(ForetuneError, match=r"no\.pt2 is not a graph from torch"):
        read_network(tmp_path / "no.pt2")
    with pytest.raises(UsageError, match="one batch: export it with dynamic_shapes"):
        network_of(export(), "small", batch=4)


@pytest.mark.parametrize("threads", [1, 2])
def test_neighbors_of_operator_run_and_differ_in_one_size(network, threads):
    product = next(o for o in network.operators if o.kernel == "gemm")
    near = list(operator_of(product.call, threads).neighbors())
    sizes = [{n: v for n, v in o.problem.items() if v != product.problem[n]} for o in near]
    assert {"N": 96} in sizes
    assert {"M": 64} in sizes
    assert {"K": 32} in sizes
    assert all(o.config["threads"] == threads for o in near)
    for operator in near:
        operator.build()()


def test_resized_keeps_order_in_memory():
    spec = TensorSpec((2, 16, 8), (128, 1, 16), torch.float32, is_weight=False)
    assert spec.resized((2, 32, 8)).stride == (256, 1, 32)
    assert not spec.without_data("meta").is_contiguous()
    assert spec.allocate().stride() == spec.stride


def test_build_indices_are_inside_table():
    table = torch.nn.Parameter(torch.zeros(3, 16))
    index = torch.zeros(40, dtype=torch.int64)
    call = Call.of(torch.ops.aten.embedding.default, (table, index), {})
    assert call.build()().shape == (40, 16)


@pytest.mark.parametrize(
    ("name", "shapes", "kernel", "sizes"),
    [
        ("addmm", [(8,), (4, 16), (16, 8)], "gemm", {"M": 4, "N": 8, "K": 16}),
        ("bmm", [(3, 4, 16), (3, 16, 8)], "gemm", {"batch": 3, "M": 4, "N": 8, "K": 16}),
        ("matmul", [(4, 16), (9, 16, 8)], "gemm", {"batch": 9, "M": 4, "N": 8, "K": 16}),
        ("matmul", [(16,), (16, 8)], "elementwise", {"read": 144, "written": 8}),
        ("softmax", [(4, 16)], "softmax", {"rows": 4, "columns": 16}),
        ("batch_norm", [(2, 4, 8, 8)], "norm", {"rows": 8, "columns": 64}),
    ],
)
def test_operator_of_call_has_kernel_and_sizes(name, shapes, kernel, sizes):
    overload = {"softmax": "int"}.get(name, "default")
    target = getattr(getattr(torch.ops.aten, name), overload)
    rest = {
        "softmax": (-1,),
        "batch_norm": (None, None, None, None, True, 0.1, 1e-5, False),
    }.get(name, ())
    found = operator_of(Call.of(target, (*map(torch.zeros, shapes), *rest), {}), threads=1)
    assert found.kernel == kernel
    assert sizes.items() <= dict(found.problem).items()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, network):
    """Operators of a network, measured with a clock that counts calls."""
    from toy_kernel import DEVICE

    path = tmp_path_factory.mktemp("operators")
    ticks = iter(range(0, 10**9, 1000))
    with RunLog(path / "operators.parquet", DEVICE) as log:
        done = collect_network(list(network.operators), log, DEVICE, 1.0, lambda: next(ticks))
        assert (done.ok, done.failed, done.reused) == (len(network.operators), 0, 0)
        again = collect_network(list(network.operators), log, DEVICE, 1.0, lambda: next(ticks))
        assert (again.rows, again.reused) == (0, len(network.operators))
    return path


def test_network_predictor_sums_measured_operators(folder, network):
    from toy_kernel import DEVICE

    found = NetworkPredictor(read_runs(folder / "operators.parquet")).predict(network, DEVICE)
    assert set(found.operators["source"]) == {"measured"}
    assert found.time_ms == pytest.approx(0.001 * sum(network.operators.values()))
    assert found.interval_ms == pytest.approx((found.time_ms, found.time_ms))
    assert found.energy_mj != found.energy_mj
    assert found.unknown == []


def test_network_predictor_names_unknown_operators(folder, network):
    from toy_kernel import DEVICE

    runs = read_runs(folder / "operators.parquet")
    few = runs[~runs["kernel"].isin(["norm"]) & (runs["problem.op"] != "relu")]
    found = NetworkPredictor(few).predict(network, DEVICE)
    assert found.unknown == ["layer_norm", "relu"]
    product = next(o for o in network.operators if o.kernel == "gemm")
    assert roofline_ms(product, DEVICE) > 0
    with pytest.raises(PredictorError, match="collect some first"):
        NetworkPredictor(runs.drop(columns="config.threads"))


def test_command_line_collects_and_predicts_network(tmp_path, capsys):
    model = tmp_path / "small.pt2"
    torch.export.save(export(dynamic=True), model)
    out = tmp_path / "ops"
    assert main(["predict", str(model)]) == 2
    assert "collect --operators" in capsys.readouterr().err
    assert main(["collect", "--operators", str(model), "--threads", "1", "--out", str(out)]) == 0
    capsys.readouterr()
    line = ["predict", str(model), "--operators", str(out), "--batch", "2,4", "--threads", "1"]
    assert main([*line, "--json"]) == 0
    import json

    made = json.loads(capsys.readouterr().out)["predictions"]
    assert [(p["batch"], p["threads"]) for p in made] == [(2, 1), (4, 1)]
    assert all(p["low"] <= p["time_ms"] <= p["high"] for p in made)
    assert made[1]["activation_bytes"] == 2 * made[0]["activation_bytes"]
    assert main(["predict", str(model), "--top", "3"]) == 2
