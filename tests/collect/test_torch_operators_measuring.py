"""Tests measuring operators into a run log: `collect/torch_operators/measuring.py`."""

import dataclasses

import pytest

from foretune.problem import Problem
from foretune.space import Configuration

pytest.importorskip("torch")

from foretune.collect.timing import Timing
from foretune.collect.torch_operators import measuring as llm_operators
from foretune.collect.torch_operators.measuring import (
    MAX_FAILURES,
    OperatorBenchmarker,
    collect_operators,
)
from foretune.datasets import RunLog, read_runs
from foretune.errors import OutputError
from foretune.measurement import Status
from foretune.plan.cost.design import distinct
from foretune.plan.cost.operator import Operator

QUICK = Timing(max_seconds=0.0, warmup_s=0.0)


def product(m: int, kind: str = "bf16") -> Operator:
    problem = Problem(M=m, N=8, K=16)
    config = Configuration(format=kind)
    return Operator("gemm", problem, 1, "decode", config)


class Counting(OperatorBenchmarker):
    """Remembers what it measured."""

    def __init__(self, device, fails=()):
        super().__init__(device, QUICK)
        self.asked = []
        self.fails = fails

    def measure(self, operator):
        self.asked.append(operator)
        found = super().measure(operator)
        if operator.config["format"] in self.fails:
            found = dataclasses.replace(
                found, status=Status.COMPILE_ERROR, time_ms=float("nan"), time_ms_samples=()
            )
        return found


def collect(place, bench, operators, minutes=1.0):
    with RunLog(place / "operators.parquet", bench.device) as log:
        return collect_operators(operators, log, bench, minutes)


def test_collect_operators_writes_rows(tmp_path, toy_device):
    done = collect(tmp_path, Counting(toy_device), [product(1), product(4)])
    assert (done.rows, done.ok, done.failed, done.reused) == (2, 2, 0, 0)
    runs = read_runs(tmp_path / "operators.parquet")
    assert list(runs["problem.M"]) == [1, 4]
    assert set(runs["config.format"]) == {"bf16"}
    assert set(runs["device"]) == {toy_device.name}
    assert (runs["device.memory_gbps"] == 20.0).all()
    assert (runs["time_ms"] > 0).all()
    assert runs["environment"].str.contains("torch").all()


def test_collect_operators_reuses_rows(tmp_path, toy_device):
    first = Counting(toy_device)
    second = Counting(toy_device)
    collect(tmp_path, first, [product(1), product(4)])
    done = collect(tmp_path, second, [product(4), product(1), product(8)])
    assert second.asked == [product(8)]
    assert (done.rows, done.reused) == (1, 2)


def test_collect_operators_resumes_after_kill(tmp_path, toy_device):
    class Dies(Counting):
        def measure(self, operator):
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().measure(operator)

    operators = [product(m) for m in (1, 2, 3)]
    with pytest.raises(KeyboardInterrupt):
        collect(tmp_path, Dies(toy_device), operators)
    bench = Counting(toy_device)
    assert collect(tmp_path, bench, operators).reused == 2
    assert bench.asked == [product(3)]


def test_collect_operators_measures_again_after_new_versions(tmp_path, toy_device, monkeypatch):
    collect(tmp_path, Counting(toy_device), [product(1)])
    monkeypatch.setattr(llm_operators, "versions", lambda: "others")
    bench = Counting(toy_device)
    assert collect(tmp_path, bench, [product(1)]).reused == 0
    assert bench.asked == [product(1)]


def test_collect_operators_skips_failing_formats(tmp_path, toy_device):
    operators = [product(m, kind) for m in range(1, 7) for kind in ("bf16", "int8")]
    bench = Counting(toy_device, fails=("int8",))
    done = collect(tmp_path, bench, operators)
    assert (done.ok, done.failed) == (6, MAX_FAILURES)
    again = Counting(toy_device, fails=("int8",))
    collect(tmp_path, again, operators)
    assert again.asked == []


def test_collect_operators_keeps_formats_that_ran_once(tmp_path, toy_device):
    class FailsLater(Counting):
        def measure(self, operator):
            self.fails = ("bf16",) if self.asked else ()
            return super().measure(operator)

    operators = [product(m) for m in range(1, 8)]
    done = collect(tmp_path, FailsLater(toy_device), operators)
    assert (done.ok, done.failed) == (1, 6)


def test_collect_operators_without_time_measures_nothing(tmp_path, toy_device):
    done = collect(tmp_path, Counting(toy_device), [product(1)], minutes=-1.0)
    assert done.rows == 0


def test_measure_failures_are_rows(toy_device, monkeypatch):
    bench = OperatorBenchmarker(toy_device, QUICK)
    found = bench.measure(product(1, "nvfp4"))
    assert found.status is Status.COMPILE_ERROR
    assert "nvfp4" in found.error
    monkeypatch.setattr(bench, "_free_bytes", lambda: 10.0)
    found = bench.measure(product(1))
    assert found.status is Status.INVALID
    assert "GiB are free" in found.error


def test_collect_operators_unwritable_folder_is_error(tmp_path, toy_device):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"):
        collect(tmp_path / "file", Counting(toy_device), [product(1)])


def test_distinct_operators_of_several_models():
    assert distinct([product(1), product(2), product(1)]) == [product(1), product(2)]


@pytest.mark.gpu
def test_measure_on_gpu_replays_graphs():
    from foretune.collect import local_device

    bench = OperatorBenchmarker(local_device("cuda"))
    cache = {"heads": 32, "kv_heads": 8, "head_dim": 128, "window": 0}
    sizes = {"hidden": 2048, "intermediate": 768, "top_k": 8, "experts": 128}
    both = Configuration(format="bf16", kv_format="bf16")
    spread = Configuration(format="bf16", tp=1, ep=8)
    for kernel, problem, config in (
        ("gemm", Problem(M=64, N=4096, K=4096), Configuration(format="bf16")),
        ("gemm", Problem(M=1, N=4096, K=4096), Configuration(format="int8")),
        ("attention_decode", Problem(batch=8, kv_len=1000, **cache), both),
        ("attention_prefill", Problem(batch=1, seq_len=512, prefix_len=512, **cache), both),
        ("moe", Problem(tokens=64, **sizes, distribution="power_law_1.2"), spread),
        ("norm", Problem(rows=64, columns=4096, op="rms_norm"), Configuration(format="bf16")),
    ):
        found = bench.measure(Operator(kernel, problem, 1, "decode", config))
        assert found.ok, found.error
