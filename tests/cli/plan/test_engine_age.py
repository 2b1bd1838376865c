"""``--engine-version``: older engines than the measured operators are refused, or calibrated."""

import pytest
from commands import fails

from foretune.cli import main
from foretune.cli.engine_age import engine_age
from foretune.errors import UsageError
from foretune.plan import PlanRequest, Workload, describe_model, find_system
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.cost.tables import OperatorTables

PLAN = [
    *("plan", "meta-llama/Llama-3.1-8B", "--system", "h100_sxm", "--gpus", "1", "--isl", "1024"),
    *("--osl", "32", "--formats", "fp8/fp8"),
]
REQUEST = PlanRequest(
    model=describe_model("meta-llama/Llama-3.1-8B"),
    systems=(find_system("h100_sxm"),),
    gpus=1,
    workload=Workload(1024, 32),
)


@pytest.fixture
def timers(tmp_path):
    """Tables of vLLM 0.9.2 and 0.11.0."""
    for version in ("0.9.2", "0.11.0"):
        folder = tmp_path / "h100_sxm" / "gemm" / "vllm" / version
        folder.mkdir(parents=True)
        (folder / "gemm_perf.parquet").touch()
    return StepTimerFactory(OperatorTables(tmp_path))


@pytest.mark.parametrize("version", ["0.10.2", "0.9", "v0.10.0rc1"])
def test_older_engine_is_refused_with_what_to_do(timers, version):
    with pytest.raises(UsageError, match=r"vLLM 0\.11\.0; .* is older.*add --calibrate FILE"):
        engine_age(REQUEST, timers, version, is_calibrated=False)


def test_older_engine_is_planned_with_lines_of_its_own(timers):
    (note,) = engine_age(REQUEST, timers, "0.10.2", is_calibrated=True)
    assert "vLLM 0.11.0, newer than 0.10.2: the factor between them is --calibrate's" in note


@pytest.mark.parametrize("version", ["0.11.0", "0.11", "0.12", "1", "v99.0rc1", ""])
def test_engine_as_new_as_the_tables_is_planned(timers, version):
    assert engine_age(REQUEST, timers, version, is_calibrated=False) == []


@pytest.mark.parametrize("version", ["latest", "0.x", "-1"])
def test_version_without_numbers_is_refused(timers, version):
    with pytest.raises(UsageError, match="write numbers and dots"):
        engine_age(REQUEST, timers, version, is_calibrated=False)


def test_system_without_tables_is_noted(capsys):
    assert main([*PLAN, "--engine-version", "0.2"]) == 0
    assert "no operators of vLLM were measured on h100_sxm" in capsys.readouterr().out


def test_wrong_version_on_the_command_line_is_one_line(capsys):
    assert "write numbers and dots" in fails(capsys, 2, *PLAN, "--engine-version", "latest")
