"""Nsight Compute: both pages of ``ncu --csv``."""

import pytest

from foretune.datasets import import_runs
from foretune.datasets.importers.ncu import short_name, to_base
from foretune.errors import RunTableError, UsageError

ABOUT = '"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream",\
"Block Size","Grid Size","Device","CC",'
LAUNCH_0 = '"0","42","python3","127.0.0.1","void gemm<64, (bool)1>(const __half *, int)","1","7",\
"(256, 1, 1)","(5, 20, 1)","0","9.0",'
LAUNCH_1 = '"1","42","python3","127.0.0.1","softmax(float *)","1","7","(128, 1, 1)","(80, 1, 1)",\
"0","9.0",'

DETAILS = f"""==PROF== Connected to process 42 (/usr/bin/python3)
time: 3, 4, 5
{ABOUT}"Section Name","Metric Name","Metric Unit","Metric Value"
{LAUNCH_0}"GPU Speed Of Light Throughput","Duration","us","28.45"
{LAUNCH_0}"GPU Speed Of Light Throughput","DRAM Throughput","%","48.5"
{LAUNCH_0}"Launch Statistics","Registers Per Thread","register/thread","90"
{LAUNCH_0}"Launch Statistics","Block Size","","256"
{LAUNCH_0}"Launch Statistics","Function Cache Configuration","","CachePreferNone"
{LAUNCH_0}"Launch Statistics","Static Shared Memory Per Block","Kbyte/block","4.096"
{LAUNCH_0}"Command line profiler metrics","dram__bytes_read.sum","Mbyte","10.24"
{LAUNCH_0}"Occupancy","","",""
{LAUNCH_1}"GPU Speed Of Light Throughput","Duration","ns","13,312"
==PROF== Disconnected from process 42
"""

RAW = f"""==PROF== Connected to process 42 (python3)
{ABOUT}"device__attribute_warp_size","dram__bytes_read.sum","dram__bytes_read.sum.per_second",\
"gpu__time_duration.sum","launch__registers_per_thread","launch__shared_mem_per_block_dynamic",\
"launch__waves_per_multiprocessor","launch__func_cache_config","sm__throughput.avg.pct"
"","","","","","","","","","","","","byte","Gbyte/second","msecond","register/thread","Kbyte/block",\
"","","%"
{LAUNCH_0}"32","10,240,000","2.5","0.02845","90","1.024","0.5","CachePreferNone","48.5"
{LAUNCH_1}"32","2,048","1","n/a","32","0","1.5","CachePreferNone","7"
"""


def ncu(tmp_path, text, **options):
    path = tmp_path / "report.csv"
    path.write_text(text)
    return import_runs(path, "ncu", **{"device": "NVIDIA H100 80GB HBM3", **options})


def test_read_details_page(tmp_path, survives):
    runs = survives(ncu(tmp_path, DETAILS))
    assert runs["kernel"].tolist() == ["gemm", "softmax"]
    assert runs["time_ms"].tolist() == pytest.approx([0.02845, 0.013312])
    row = runs.iloc[0]
    assert row["static.registers"] == 90
    assert row["static.shared_static_bytes"] == 4096
    assert [row[f"static.grid_{a}"] for a in "xyz"] == [5, 20, 1]
    assert [row[f"static.block_{a}"] for a in "xyz"] == [256, 1, 1]
    assert row["counter.dram__bytes_read.sum"] == 10.24e6
    assert row["counter.DRAM Throughput"] == 48.5
    assert row["config.implementation"] == "void gemm<64, (bool)1>(const __half *, int)"
    assert not [c for c in runs if "Block Size" in c or "Cache" in c or c == "counter.Duration"]


def test_read_raw_page(tmp_path, survives):
    done = ncu(tmp_path, RAW)
    runs = survives(done)
    assert done.rejected == {"time is not a number": 1}
    row = runs.iloc[0]
    assert row["time_ms"] == pytest.approx(0.02845)
    assert row["counter.dram__bytes_read.sum"] == 10_240_000
    assert row["counter.dram__bytes_read.sum.per_second"] == 2.5e9
    assert row["counter.sm__throughput.avg.pct"] == 48.5
    assert row["static.registers"] == 90
    assert row["static.shared_dynamic_bytes"] == 1024
    assert row["static.waves_per_multiprocessor"] == 0.5
    assert not [c for c in runs if "device__attribute" in c or "cache" in c]


def test_read_raw_page_without_units_is_refused(tmp_path):
    text = '"ID","Kernel Name","gpu__time_duration.sum"\n"0","k","1500"\n'
    with pytest.raises(RunTableError, match="1500 in the unit ''"):
        ncu(tmp_path, text)


def test_read_takes_problem_from_constants(tmp_path):
    done = ncu(tmp_path, DETAILS, kernel="gemm", constants={"problem.M": 64})
    assert done.kernels == {"gemm": 2}
    assert done.runs["problem.M"].tolist() == [64, 64]


def german(text):
    """Return a report with a decimal comma, and points between thousands."""
    return text.translate(str.maketrans(",.", ".,"))


def test_a_decimal_comma_is_read_as_such(tmp_path):
    text = RAW
    for number in ("10,240,000", "2.5", "0.02845", "1.024", "0.5", "48.5", "2,048", "1.5"):
        text = text.replace(f'"{number}"', f'"{german(number)}"')
    assert text != RAW
    done = ncu(tmp_path, text)
    assert done.notes == (f"{tmp_path / 'report.csv'}: decimal comma",)
    assert done.runs.equals(ncu(tmp_path, RAW).runs)


def test_whole_nanoseconds_tell_the_mark_of_thousands(tmp_path):
    header = '"ID","Kernel Name","gpu__time_duration.sum"\n"","","ns"\n'
    for number in ("13,312", "13.312"):
        runs = ncu(tmp_path, f'{header}"0","k","{number}"\n').runs
        assert runs["time_ms"].tolist() == pytest.approx([0.013312])


def test_a_mark_that_nothing_tells_is_asked_for(tmp_path):
    text = '"ID","Kernel Name","gpu__time_duration.sum"\n"","","usecond"\n"0","k","1.234"\n'
    with pytest.raises(UsageError, match=r"1\.234 may be 1\.234 or 1234: .* --decimal"):
        ncu(tmp_path, text)
    assert ncu(tmp_path, text, decimal=".").runs["time_ms"].tolist() == pytest.approx([0.001234])
    assert ncu(tmp_path, text, decimal=",").runs["time_ms"].tolist() == pytest.approx([1.234])


LONG = '"ID","Process ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"\n'


def test_launches_of_two_processes_are_two(tmp_path):
    lines = '"0","77","k","x","Duration","us","100"\n"0","78","k","x","Duration","us","300"\n'
    assert ncu(tmp_path, LONG + lines).runs["time_ms"].tolist() == pytest.approx([0.1, 0.3])


def test_a_second_header_begins_another_run(tmp_path):
    line = '"0","77","k","x","Duration","us","{}"\n'
    text = LONG + line.format(100) + LONG + line.format(300)
    done = ncu(tmp_path, text)
    assert done.runs["time_ms"].tolist() == pytest.approx([0.1, 0.3])
    assert "2 tables, one after the other" in done.notes[0]


def test_one_launch_with_two_durations_is_refused(tmp_path):
    line = '"0","77","k","x","Duration","us","{}"\n'
    with pytest.raises(RunTableError, match="launch 0 has two values of Duration, 100 and 300"):
        ncu(tmp_path, LONG + line.format(100) + line.format(300))


def test_a_metric_of_two_sections_is_kept_twice(tmp_path):
    lines = (
        '"0","77","k","x","Duration","us","100"\n"0","77","k","Speed","Throughput","%","55.1"\n'
        '"0","77","k","Memory","Throughput","Gbyte/s","900.2"\n'
    )
    row = ncu(tmp_path, LONG + lines).runs.iloc[0]
    assert row["counter.Speed Throughput"] == 55.1
    assert row["counter.Memory Throughput"] == 900.2e9


def test_a_report_without_a_duration_names_the_metric(tmp_path):
    text = '"ID","Kernel Name","dram__bytes.sum"\n"0","k","1500"\n'
    with pytest.raises(RunTableError, match=r"--metrics gpu__time_duration\.sum"):
        ncu(tmp_path, text)


def test_read_other_file_is_refused(tmp_path):
    with pytest.raises(RunTableError, match="a header with ID, Kernel Name, … is missing"):
        ncu(tmp_path, "==PROF== nothing\n1,2\n")
    with pytest.raises(RunTableError, match="a line has 13 cells, not 15"):
        ncu(tmp_path, DETAILS.replace('"GPU Speed Of Light Throughput","Duration","us",', '"us",'))
    with pytest.raises(UsageError, match="give --device"):
        ncu(tmp_path, DETAILS, device=None)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1,234.5", "", 1234.5),
        ("2", "Kbyte", 2000),
        ("2", "usecond", 2000),
        ("2", "second", 2e9),
        ("1.5", "cycle/nsecond", 1.5e9),
        ("3", "Gbyte/second", 3e9),
        ("3", "Kbyte/block", 3000),
        ("40", "register/thread", 40),
        ("7", "furlong", 7),
        ("n/a", "", None),
        ("0x3", "", None),
        ("nan", "%", None),
    ],
)
def test_to_base_converts_units(text, unit, value):
    assert to_base(text, unit) == value


@pytest.mark.parametrize(
    ("signature", "name"),
    [
        ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
        ("void at::native::vectorized<float, f(int)>(int, float *)", "vectorized"),
        ("<unnamed>::merge_kernel(const float *, int)", "merge_kernel"),
        ("void (anonymous namespace)::scan<4>(int)", "scan"),
    ],
)
def test_short_name_drops_types_and_arguments(signature, name):
    assert short_name(signature) == name


@pytest.mark.parametrize("unit", ["fortnight", ""])
def test_duration_in_an_unknown_unit_is_refused(tmp_path, unit):
    path = tmp_path / "profile.csv"
    path.write_text(DETAILS.replace('"Duration","us"', f'"Duration","{unit}"'))
    with pytest.raises(RunTableError, match=f"Duration 28.45 in the unit '{unit}'"):
        import_runs(path, "ncu", device="NVIDIA H200")


def test_launches_on_two_kinds_of_gpus_are_refused(tmp_path):
    path = tmp_path / "profile.csv"
    head, _, tail = DETAILS.rpartition('"9.0"')
    path.write_text(f'{head}"8.0"{tail}')
    with pytest.raises(UsageError, match=r"compute capability 8\.0 and 9\.0"):
        import_runs(path, "ncu", device="NVIDIA H200")


def test_output_of_a_windows_shell_is_read(tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(DETAILS, encoding="utf-16")
    assert import_runs(path, "ncu", device="NVIDIA H200").runs["time_ms"].tolist() == [
        pytest.approx(0.02845),
        pytest.approx(0.013312),
    ]


@pytest.mark.parametrize("separator", [";", "\t"])
def test_read_other_separators(tmp_path, separator):
    header = ["ID", "Kernel Name", "gpu__time_duration.sum", "dram__bytes.sum"]
    lines = [header, ["", "", "usecond", "Mbyte"], ["0", "gemm", "34,56", "1.234,5"]]
    text = "\n".join(separator.join(line) for line in lines)
    assert ncu(tmp_path, text).runs["time_ms"].tolist() == pytest.approx([0.03456])


def test_read_output_without_a_table_says_why(tmp_path):
    with pytest.raises(RunTableError, match="No kernels were profiled"):
        ncu(tmp_path, "==PROF== Connected\n==WARNING== No kernels were profiled.\n")
