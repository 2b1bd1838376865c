"""NVBench's JSON."""

import json

import pytest

from foretune.datasets import import_runs
from foretune.errors import RunTableError

SECONDS = "1.25e-05"


def summary(tag, value):
    data = [{"name": "value", "type": "float64", "value": value}]
    return {"tag": tag, "name": "GPU Time", "hint": "duration", "data": data}


def state(*summaries, **more):
    return {
        "name": "Device=0 N=2^20",
        "device": 0,
        "type_config_index": 0,
        "axis_values": [
            {"name": "Elements{io}", "type": "int64", "value": "1048576"},
            {"name": "T{ct}", "type": "string", "value": "F32"},
        ],
        "summaries": [summary("nv/cold/sample_size", "100"), *summaries],
        "is_skipped": False,
        **more,
    }


@pytest.fixture
def nvbench(tmp_path):
    """Return a function that writes states to a file."""

    def write(*states):
        path = tmp_path / "results.json"
        document = {
            "meta": {"argv": ["./copy"]},
            "devices": [{"id": 0, "name": "NVIDIA A100-SXM4-80GB"}],
            "benchmarks": [{"name": "copy", "devices": [0], "axes": [], "states": list(states)}],
        }
        path.write_text(json.dumps(document))
        return path

    return write


def test_nvbench_reads_a_state(nvbench):
    path = nvbench(state(summary("nv/cold/time/gpu/mean", SECONDS)))
    row = import_runs(path, "nvbench").runs.iloc[0]

    assert row["time_ms"] == pytest.approx(0.0125)
    assert (row["kernel"], row["device"]) == ("copy", "NVIDIA A100-SXM4-80GB")
    assert (row["problem.Elements"], row["problem.T"]) == (1_048_576, "F32")


def test_nvbench_prefers_the_median_of_cold_runs(nvbench):
    path = nvbench(
        state(
            summary("nv/batch/time/gpu/mean", "9e-06"),
            summary("nv/cold/time/gpu/mean", "1.3e-05"),
            summary("nv/cold/time/gpu/median", SECONDS),
            summary("nv/cold/time/cpu/mean", "2e-05"),
        )
    )
    assert import_runs(path, "nvbench").runs["time_ms"].tolist() == pytest.approx([0.0125])


def test_nvbench_skipped_state_is_invalid(nvbench):
    path = nvbench(
        state(summary("nv/cold/time/gpu/mean", SECONDS)),
        state(is_skipped=True, skip_reason="Out of memory"),
    )
    runs = import_runs(path, "nvbench").runs
    assert runs["status"].tolist() == ["ok", "invalid"]
    assert runs["error"].tolist()[1] == "Out of memory"


def test_nvbench_state_without_time_is_left_out(nvbench):
    path = nvbench(state(summary("nv/cold/time/gpu/mean", SECONDS)), state())
    imported = import_runs(path, "nvbench")
    assert len(imported.runs) == 1
    assert sum(imported.rejected.values()) == 1


def test_generic_names_nvbench_for_its_csv(tmp_path):
    path = tmp_path / "results.csv"
    path.write_text(
        "Benchmark,Device,Device Name,N,Skipped,Samples,CPU Time (sec),Noise (%),GPU Time (sec),"
        "Noise (%)\ncopy,0,A100,64,No,100,2e-5,1.5,1.2e-5,2.5\n"
    )
    with pytest.raises(RunTableError, match=r"--json FILE \(--format nvbench\)"):
        import_runs(path, "generic", kernel="k", device="d")
