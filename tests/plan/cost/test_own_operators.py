"""A plan's operators, predicted and measured on this machine."""

import math

import pytest

from foretune.collect.timing import Timing
from foretune.device import Device
from foretune.measurement import Measurement, Status
from foretune.plan import Formats, Layout, System, Workload, find_system
from foretune.plan.check.operators import (
    OperatorCheck,
    local_timer,
    request_operators,
    verify_operators,
)
from foretune.plan.cost.operator import Operator, gemm
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.problem import Problem
from foretune.space import Configuration

CPU = Device("A CPU", "cpu", "x86_64", {"fp32_gflops": 100.0, "memory_gbps": 10.0})
pytest.importorskip("torch")

from foretune.collect.torch_operators.measuring import OperatorBenchmarker


class Slower(OperatorBenchmarker):
    """Takes twice as long as the roofline says, and fails on products of 13 rows."""

    def __init__(self):
        super().__init__(CPU, Timing(max_seconds=0.0, warmup_s=0.0))
        self.asked = []

    def measure(self, operator):
        self.asked.append(operator)
        kernel, device, problem, config = self.log_key(operator)
        if problem.get("M") == 13:
            return Measurement(kernel, problem, config, device, Status.RUNTIME_ERROR, error="lost")
        ms = 2.0 * predicted(operator)
        return Measurement(kernel, problem, config, device, Status.OK, ms)


def predicted(*operators) -> float:
    from foretune.plan.cost.steps import operator_table

    return float(local_timer(CPU).times(operator_table(operators)).ms.sum())


def one(m, count=1.0, kind="bf16") -> Operator:
    return gemm("up", "decode", count, m, 64, 64, kind)


def check(*operators, planned=None, box_s=60.0) -> tuple[OperatorCheck, Slower]:
    bench = Slower()
    return verify_operators(operators, local_timer(CPU), planned, box_s, bench), bench


def test_predicted_and_measured_side_by_side():
    found, bench = check(one(4), one(4096), one(4, count=2.0))
    table = found.table
    assert [o.problem["M"] for o in bench.asked] == [4096, 4]  # each once, the largest part first
    assert list(table["problem"]) == ["M=4096,N=64,K=64", "M=4,N=64,K=64"]
    assert list(table["ratio"]) == pytest.approx([2.0, 2.0])
    assert table["predicted_ms"][1] == pytest.approx(predicted(one(4)))
    share = 3 * predicted(one(4)) / (3 * predicted(one(4)) + predicted(one(4096)))
    assert table["share"][1] == pytest.approx(share)
    assert found.measured_share == pytest.approx(1.0)
    assert found.step_ratio == pytest.approx(2.0)
    assert set(table["source"]) == {"roofline"}
    # ROOFLINE_WIDTH: twice as long lies just inside the interval of a roofline
    assert found.coverage == 1.0


def test_what_was_not_measured_says_why():
    message = Operator(
        "all_reduce", Problem(message_bytes=2**20, devices=2), 1, "decode",
        Configuration(format="bf16"),
    )  # fmt: skip
    found, _ = check(one(13), one(4, kind="nvfp4"), message)
    notes = dict(zip(found.table["kernel"] + found.table["format"], found.table["note"],
                     strict=True))  # fmt: skip
    assert notes["gemmbf16"] == "lost"
    assert "nvfp4" in notes["gemmnvfp4"]
    assert "several devices" in notes["all_reducebf16"]
    assert found.measured.empty
    assert found.measured_share == 0.0
    assert math.isnan(found.step_ratio)


def test_the_time_box_holds():
    found, bench = check(one(4), box_s=0.0)
    assert bench.asked == []
    assert found.table["note"][0] == "no time was left"


def test_it_says_whose_predictions_were_verified():
    here, _ = check(one(4), planned=System.from_device(CPU))
    assert here.description == "predicted for A CPU, and measured on it"
    other, _ = check(one(4), planned=find_system("h100_sxm"))
    assert "no NVIDIA H100 80GB HBM3" in other.description
    assert "checked on its A CPU instead" in other.description


def test_real_operators_run(small):
    deployment = Deployment(
        small, System.from_device(CPU), "vllm", Layout(), Formats(), Workload(8, 4), 2.0
    )
    bench = OperatorBenchmarker(CPU, Timing(max_seconds=0.0, warmup_s=0.0))
    operators = [o for o in request_operators([deployment]) if o.name != "rope"]  # heads of 16
    found = verify_operators(operators, local_timer(CPU), bench=bench)
    assert found.measured_share == pytest.approx(1.0)
    assert (found.table["measured_ms"] > 0).all()


def test_operators_are_counted_as_often_as_a_request_needs_them(small):
    system = System.from_device(Device("GPU", "gpu", "sm_90", {"memory_gib": 80.0}))
    deployment = Deployment(small, system, "vllm", Layout(), Formats(), Workload(8, 4), 2.0)
    counts = {(o.phase, o.name): o.count for o in request_operators([deployment])}
    assert counts["prefill", "qkv"] == 2  # layers
    assert counts["decode", "qkv"] == 2 * 4 / 2  # layers, steps, shared by two requests
    twice = request_operators([deployment, deployment])
    assert len(twice) == 2 * len(request_operators([deployment]))
