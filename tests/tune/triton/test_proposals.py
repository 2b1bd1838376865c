"""Lists proposed for GPUs that are not at hand: `tune/triton/proposals.py`."""

import numpy as np
import pytest

pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

from foretune.collect.compiled.arguments import Tensor
from foretune.device import find_device
from foretune.errors import UsageError
from foretune.space import Configuration
from foretune.tune.triton import proposals
from foretune.tune.triton.proposals import portfolio, propose

LISTED = [
    Configuration(BM=128, BN=128, BK=32, num_warps=4, num_stages=4),
    Configuration(BM=64, BN=256, BK=32, num_warps=4, num_stages=4),
]
SQUARE = {"M": 2048, "N": 2048, "K": 2048}
FLAT = {"M": 16, "N": 4096, "K": 4096}


def product(sizes):
    """Return the arguments of a product of fp16 matrices."""
    m, n, k = sizes["M"], sizes["N"], sizes["K"]
    return {
        "a": Tensor("float16", (m, k), (k, 1)),
        "b": Tensor("float16", (k, n), (n, 1)),
        "c": Tensor("float16", (m, n), (n, 1)),
        **sizes,
    }


@pytest.fixture(scope="module")
def toys():
    """The module of small kernels, compiled whatever the environment."""
    from foretune.collect.compiled.compile_pool import _interpreter_off

    with _interpreter_off():
        import triton_toys

        yield triton_toys


@pytest.fixture(autouse=True)
def few_candidates(monkeypatch):
    """Fewer candidates, so that tests are fast."""
    monkeypatch.setattr(proposals, "EDGES", (16, 32, 64, 128))
    monkeypatch.setattr(proposals, "WARPS", (4, 8))
    monkeypatch.setattr(proposals, "STAGES", (2, 3, 4))


def test_portfolio_one_entry_is_the_best_of_the_mean():
    log_times = np.array([[0.0, 0.5, 1.0], [0.1, 0.6, 1.1]])
    points = np.arange(3.0)[:, None]

    chosen = portfolio(log_times, points, np.ones(3, bool), count=1, seed=0)

    assert chosen == [0]


def test_portfolio_covers_problems_with_different_best_candidates():
    # Candidates 0 and 1 are best for the first problem, candidate 9 for the second one.
    first = np.array([0.0, 0.01, *[2.0] * 8])
    second = np.array([*[2.0] * 9, 0.0])
    points = np.arange(10.0)[:, None]

    chosen = portfolio(np.array([first, second]), points, np.ones(10, bool), count=2, seed=0)

    assert 9 in chosen
    assert {0, 1} & {*chosen}


def test_portfolio_takes_only_what_is_allowed_and_none_twice():
    log_times = np.linspace(0.0, 1.0, 6)[None]
    points = np.arange(6.0)[:, None]
    allowed = np.array([False, True, True, False, True, True])

    chosen = portfolio(log_times, points, allowed, count=10, seed=0)

    assert sorted(chosen) == [1, 2, 4, 5]


def test_propose_lists_fit_the_gpu_and_cover_its_problems(toys):
    device = find_device("NVIDIA GeForce RTX 4090")

    configs = propose(toys.matmul, [product(SQUARE), product(FLAT)], LISTED, device, count=6)

    assert len({*configs}) == 6
    assert all(config.keys() == LISTED[0].keys() for config in configs)
    # A step's operands in fp16, as often as the stages ask for, in 99 KiB of shared memory.
    for config in configs:
        step_bytes = 2 * (config["BM"] + config["BN"]) * config["BK"]
        assert max(config["num_stages"] - 1, 1) * step_bytes <= 101376
    # 16 rows do not fill a tile of 64.
    assert any(config["BM"] <= 32 for config in configs)


def test_propose_replaces_what_cannot_run(toys, monkeypatch):
    device = find_device("NVIDIA A100-SXM4-80GB")
    before = propose(toys.matmul, [product(SQUARE)], LISTED, device, count=3)
    refused = before[0]

    def foretell(function, arguments, configs, targets):
        return {t.name: ["no" if c == refused else "" for c in configs] for t in targets}

    monkeypatch.setattr(proposals, "foretell", foretell)
    after = propose(toys.matmul, [product(SQUARE)], LISTED, device, count=3)

    assert refused not in after
    assert len({*after}) == 3


def test_propose_keeps_other_parameters_of_the_first_entry(toys):
    listed = [Configuration(**entry, maxnreg=128) for entry in LISTED]

    configs = propose(toys.matmul, [product(SQUARE)], listed, find_device("NVIDIA B200"), count=3)

    assert {config["maxnreg"] for config in configs} == {128}


def test_propose_refuses_what_it_does_not_know(toys):
    device = find_device("NVIDIA A100-SXM4-80GB")

    without_sizes = {n: v for n, v in product(SQUARE).items() if n not in "MK"}
    with pytest.raises(UsageError, match="give M, K with --problem"):
        propose(toys.matmul, [without_sizes], LISTED, device, count=4)

    pointers = product(SQUARE) | {"a": Tensor("float16")}
    with pytest.raises(UsageError, match=r"give --arg a=fp16\[M,K\]"):
        propose(toys.matmul, [pointers], LISTED, device, count=4)

    rows = {"x": Tensor("float16", (64, 64), (64, 1)), "out": Tensor("float16", (64, 64), (64, 1))}
    rows |= {"stride": 64, "n": 64, **SQUARE}
    with pytest.raises(UsageError, match="does not multiply tiles"):
        propose(toys.softmax, [rows], [Configuration(BLOCK=64, num_warps=4)], device, count=4)


def test_propose_refuses_attention(toys, monkeypatch):
    from foretune.features.launches import TileLaunch

    real = proposals.tile_launches

    def with_kept_queries(*arguments):
        from dataclasses import replace

        launches: list[TileLaunch] = real(*arguments)
        return [replace(launch, kept_bytes=1024.0) for launch in launches]

    monkeypatch.setattr(proposals, "tile_launches", with_kept_queries)
    with pytest.raises(UsageError, match="is attention"):
        propose(toys.matmul, [product(SQUARE)], LISTED, find_device("NVIDIA B200"), count=4)


@pytest.mark.parametrize("broken", [{"BM": 48, "BN": 64, "BK": 32}, {"BM": 64, "BN": 64}])
def test_propose_broken_first_entry_tells_nothing(toys, broken):
    device = find_device("NVIDIA H100 80GB HBM3")
    listed = [Configuration(broken), LISTED[0]]
    proposed = propose(toys.matmul, [product(SQUARE)], listed, device, count=3)
    assert proposed == propose(toys.matmul, [product(SQUARE)], LISTED[:1], device, count=3)


def test_propose_type_that_the_gpu_lacks_has_no_entries(toys, monkeypatch):
    monkeypatch.setattr(proposals, "EDGES", (64,))
    monkeypatch.setattr(proposals, "STAGES", (2, 3))
    arguments = product(SQUARE)
    for name in "ab":
        arguments[name] = Tensor("float8_e4m3fn", (2048, 2048), (2048, 1))
    device = find_device("NVIDIA A100-SXM4-80GB")
    assert propose(toys.matmul, [arguments], LISTED[:1], device, count=3) == []
