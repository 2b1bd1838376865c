"""KTT's own JSON."""

import json

import pytest

from foretune.datasets import import_runs
from foretune.errors import RunTableError


def result(status="Ok", duration=1500.0, block=64, **more):
    """Return a result as KTT 2.1 writes it."""
    return {
        "KernelName": "gemm",
        "Status": status,
        "TotalDuration": duration,
        "TotalOverhead": 20.0,
        "ExtraDuration": 0.0,
        "ExtraOverhead": 0.0,
        "Configuration": [
            {"Name": "BLOCK", "ValueType": "UnsignedInt", "Value": block},
            {"Name": "LAYOUT", "ValueType": "String", "Value": "row"},
        ],
        "ComputationResults": [
            {
                "KernelFunction": "gemmKernel",
                "Duration": duration,
                "Overhead": 20.0,
                "CompilationData": {"RegistersCount": 40, "LocalMemorySize": 2048},
                "ProfilingData": {
                    "Counters": [
                        {"Name": "dram__bytes.sum", "Type": "UnsignedInt", "Value": 4096},
                    ],
                    "RemainingProfilingRuns": 0,
                },
            }
        ],
        **more,
    }


@pytest.fixture
def ktt(tmp_path):
    """Return a function that writes results to a file."""

    def write(*results, unit="Microseconds"):
        path = tmp_path / "results.json"
        about = {
            "ComputeApi": "CUDA",
            "GlobalSizeType": "CUDA",
            "Platform": "NVIDIA CUDA",
            "Device": "NVIDIA GeForce RTX 3090",
            "KttVersion": "2.1",
            "TimeUnit": unit,
        }
        path.write_text(json.dumps({"Metadata": about, "Results": list(results)}))
        return path

    return write


def test_ktt_reads_a_result(ktt):
    runs = import_runs(ktt(result()), "ktt").runs

    row = runs.iloc[0]
    assert row["time_ms"] == pytest.approx(1.5)
    assert (row["kernel"], row["device"]) == ("gemm", "NVIDIA GeForce RTX 3090")
    assert (row["config.BLOCK"], row["config.LAYOUT"]) == (64, "row")
    assert (row["static.registers"], row["static.shared_bytes"]) == (40, 2048)
    assert row["counter.dram__bytes.sum"] == 4096
    assert row["environment"] == "ktt 2.1"


@pytest.mark.parametrize(
    ("unit", "milliseconds"),
    [("Nanoseconds", 0.0015), ("Microseconds", 1.5), ("Milliseconds", 1500), ("Seconds", 1.5e6)],
)
def test_ktt_counts_in_the_unit_of_the_file(ktt, unit, milliseconds):
    runs = import_runs(ktt(result(), unit=unit), "ktt").runs
    assert runs["time_ms"].tolist() == pytest.approx([milliseconds])


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("ComputationFailed", "runtime_error"),
        ("ValidationFailed", "wrong_result"),
        ("CompilationFailed", "compile_error"),
        ("DeviceLimitsExceeded", "invalid"),
    ],
)
def test_ktt_failures_are_rows_without_a_time(ktt, status, expected):
    failed = result(status, duration=1.8e16, block=128, ComputationResults=[])
    runs = import_runs(ktt(result(), failed), "ktt").runs

    assert runs["status"].tolist() == ["ok", expected]
    assert runs["time_ms"].isna().tolist() == [False, True]


def test_ktt_several_kernels_share_no_registers(ktt):
    several = result(ComputationResults=result()["ComputationResults"] * 2)
    runs = import_runs(ktt(several), "ktt").runs

    assert runs["time_ms"].tolist() == pytest.approx([1.5])
    assert "static.registers" not in runs


def test_ktt_without_a_unit_of_time_is_refused(ktt):
    with pytest.raises(RunTableError, match="TimeUnit is 'Parsecs', which is no time"):
        import_runs(ktt(result(), unit="Parsecs"), "ktt")


def test_generic_names_the_format_of_ktt(ktt):
    with pytest.raises(RunTableError, match="give --format ktt"):
        import_runs(ktt(result()), "generic", kernel="k", device="d")
