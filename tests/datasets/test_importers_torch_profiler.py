"""torch.profiler: a hand-written trace in the shape of a GPU's, and recorded ones of this CPU."""

import json

import pytest

from foretune.cli import main
from foretune.datasets import import_runs
from foretune.datasets.importers.torch_profiler import first_compute_bound, launch_summary
from foretune.errors import RunTableError, UsageError


def hand_written_gpu_trace(queued=3.0, old=False):
    """Return two operators, one inside the other, and two kernels; nothing of it was measured.

    Each kernel begins ``queued`` µs after its launch. ``old``: the categories of torch 1.9.
    """
    operator, runtime = ("Operator", "Runtime") if old else ("cpu_op", "cuda_runtime")
    host = {"ph": "X", "pid": 9, "tid": 9}

    def kernel(name, correlation, ts):
        args = {
            "device": 0,
            "stream": 7,
            "correlation": correlation,
            "grid": [4, 2, 1],
            "block": [128, 1, 1],
            "registers per thread": 40,
        }
        return {
            "ph": "X",
            "cat": "Kernel" if old else "kernel",
            "name": name,
            "pid": 0,
            "tid": 7,
            "ts": ts,
            "dur": 5.0,
            "args": args,
        }

    def launch(correlation, ts):
        return {
            **host,
            "cat": runtime,
            "name": "cudaLaunchKernel",
            "ts": ts,
            "dur": 2.0,
            "args": {"correlation": correlation},
        }

    return {
        "schemaVersion": 1,
        "computeProperties" if old else "deviceProperties": [{"id": 0, "name": "NVIDIA H200"}],
        "traceEvents": [
            {"ph": "M", "name": "process_name", "pid": 9, "args": {"name": "python"}},
            {
                **host,
                "cat": operator,
                "name": "aten::linear",
                "ts": 100.0,
                "dur": 40.0,
                "args": {"External id": 1},
            },
            {
                **host,
                "cat": operator,
                "name": "aten::mm",
                "ts": 110.0,
                "dur": 20.0,
                "args": {"External id": 2, "Input Dims": [[8, 16], [16, 4]]},
            },
            launch(1, 115.0),
            kernel("void gemm<float>(int)", 1, 115.0 + queued),
            launch(2, 135.0),
            kernel("void add<float>(int)", 2, 135.0 + queued),
            {**host, "cat": operator, "name": "aten::view", "ts": 150.0, "dur": 1.0},
        ],
    }


def write(tmp_path, trace, name="trace.json"):
    path = tmp_path / name
    path.write_text(json.dumps(trace))
    return path


@pytest.mark.parametrize("old", [False, True])
def test_read_kernels_have_operator_launch_and_queue(tmp_path, survives, old):
    done = import_runs(write(tmp_path, hand_written_gpu_trace(old=old)), "torch-profiler")
    runs = survives(done)
    assert runs["kernel"].tolist() == ["aten::mm", "aten::linear"], "the innermost operator"
    assert runs["config.implementation"].tolist()[0] == "void gemm<float>(int)"
    assert set(runs["device"]) == {"NVIDIA H200"}
    assert runs["time_ms"].tolist() == [0.005, 0.005]
    assert runs["counter.launch_queue_us"].tolist() == [3.0, 3.0]
    assert runs["counter.launch_us"].tolist() == [2.0, 2.0]
    assert runs["problem.shapes"].tolist()[0] == "[[8, 16], [16, 4]]"
    assert runs["static.grid_y"].tolist() == [2.0, 2.0]
    assert "problem.batch" not in runs


def test_read_kernel_without_launch_has_no_operator(tmp_path):
    trace = hand_written_gpu_trace()
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("name") != "cudaLaunchKernel"]
    runs = import_runs(write(tmp_path, trace), "torch-profiler").runs
    assert runs["kernel"].tolist() == ["gemm", "add"]
    assert "counter.launch_queue_us" not in runs


def test_first_compute_bound_is_batch_of_rise(tmp_path, capsys):
    for batch, queued in ((1, 3.0), (2, 3.2), (8, 2.9), (32, 9.0), (64, 80.0)):
        write(tmp_path, hand_written_gpu_trace(queued), f"net_b{batch}.json")
    out = str(tmp_path / "runs.parquet")
    line = ["import", str(tmp_path), "--format", "torch-profiler", "--out", out, "--json"]
    assert main(line) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["compute_bound_from"] == 32
    assert [row["batch"] for row in found["launches"]] == [1, 2, 8, 32, 64]
    assert found["launches"][0]["tklqt_ms"] == pytest.approx(0.006)
    assert "launch-bound below batch 32" in said.err


def test_read_device_in_name_is_no_batch(tmp_path):
    trace = write(tmp_path, hand_written_gpu_trace(), "net_B200_batch8.json")
    assert set(import_runs(trace, "torch-profiler").runs["problem.batch"]) == {8}


@pytest.mark.parametrize("times", [[3.0, 3.1, 3.0], [3.0, 9.0, 3.1], [5.0]])
def test_first_compute_bound_without_lasting_rise_is_none(tmp_path, times):
    for batch, queued in enumerate(times, 1):
        write(tmp_path, hand_written_gpu_trace(queued), f"batch{batch}.json")
    assert first_compute_bound(launch_summary(import_runs(tmp_path, "torch-profiler").runs)) is None


def test_read_recorded_cpu_trace(tmp_path):
    torch = pytest.importorskip("torch")
    layer, x = torch.nn.Linear(16, 8), torch.zeros(4, 16)
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True
    ) as prof:
        layer(x)
    prof.export_chrome_trace(str(tmp_path / "cpu_bs4.json"))
    with pytest.raises(UsageError, match="does not name its device"):
        import_runs(tmp_path / "cpu_bs4.json", "torch-profiler")
    runs = import_runs(tmp_path / "cpu_bs4.json", "torch-profiler", device="AMD EPYC").runs
    assert set(runs["kernel"]) == {"aten::linear"}
    assert runs["problem.shapes"].tolist() == ["[[4, 16], [8, 16], [8]]"]
    assert set(runs["problem.batch"]) == {4}
    assert (runs["time_ms"] > 0).all()
    assert not len(launch_summary(runs))


def test_read_other_json_is_refused(tmp_path):
    with pytest.raises(RunTableError, match=r"chrome trace of torch\.profiler"):
        import_runs(write(tmp_path, {"events": []}), "torch-profiler")
