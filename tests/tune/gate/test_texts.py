"""Reports of a gate: `tune/gate/texts.py`, `page.py`, `history.py`; and `bisect.py`."""

import dataclasses
import math
from xml.etree import ElementTree

import pytest

from foretune.datasets.runs import read_runs
from foretune.device import Device
from foretune.errors import UsageError
from foretune.tune.gate.bisect import bisect
from foretune.tune.gate.gate import GateResult
from foretune.tune.gate.history import record_runs
from foretune.tune.gate.page import write_gate_page
from foretune.tune.gate.texts import junit, markdown, terminal_text
from foretune.tune.gate.verdicts import BenchmarkVerdict
from foretune.tune.results import Comparison, NoiseEstimate


def verdict(word, ratio=1.0, name="bench_x.py::bench", advice=""):
    comparison = Comparison("x", None, 2.0, ratio, ratio * 0.99, ratio * 1.01)
    return BenchmarkVerdict(
        f"{name}_{word.replace(' ', '_')}", "time", word, comparison, 2.0 * ratio, 6, advice=advice
    )


def result_of(*verdicts, **more):
    fields = {
        "base": "v1",
        "head": "v2",
        "verdicts": verdicts,
        "left_out": {"bench_y.py::bench|x": "it needs arguments"},
        "changes": ("numpy 2.0 → 2.1",),
        "output_differences": {},
        "relevant": 0.02,
        "sessions": 6,
        "seconds": 12.0,
        "noise": NoiseEstimate(disturbed="other processes kept the CPU busy"),
    }
    return GateResult(**{**fields, **more})


RESULT = result_of(
    verdict("same"),
    verdict("slower", 0.5),
    verdict("faster", 2.0),
    verdict("cannot tell", advice="about 12 sessions, 30 s more"),
    verdict("fails", math.nan, advice="in v2: ValueError: no | value"),
)


@pytest.mark.parametrize(
    ("words", "code", "strict_code"),
    [
        (["same", "faster"], 0, 0),
        (["same", "cannot tell"], 0, 2),
        (["same", "not compared"], 0, 2),
        (["cannot tell", "slower"], 1, 1),
        (["fails"], 1, 1),
    ],
)
def test_exit_code_follows_verdicts(words, code, strict_code):
    result = result_of(*map(verdict, words))
    assert (result.exit_code(), result.exit_code(strict=True)) == (code, strict_code)


@pytest.mark.parametrize(
    ("words", "color"),
    [
        (["same", "cannot tell"], "green"),
        (["cannot tell", "not compared"], "undecided"),
        (["cannot tell", "slower"], "red"),
    ],
)
def test_gate_headline_color(words, color):
    assert result_of(*map(verdict, words)).headline.startswith(f"{color}: ")


def test_exit_code_other_outputs_are_red():
    assert result_of(verdict("same"), output_differences={"b": "it is 2"}).exit_code() == 1


def test_terminal_text_fits_80_columns_and_names_the_worst_first():
    text = terminal_text(RESULT)
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("fails")
    assert "+100.0%" in text  # half the speed
    assert "numpy 2.0 → 2.1" in text
    assert lines[-1] == "red: 1 slower, 1 fails, 1 faster, 1 same, 1 cannot tell (v1 → v2)"


def test_markdown_table_has_a_row_per_benchmark():
    rows = [line for line in markdown(RESULT).splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 5
    assert all(line.replace("\\|", "").count("|") == 6 for line in rows)


def test_junit_counts_failures_and_open_verdicts():
    suite = ElementTree.fromstring(junit(RESULT)).find("testsuite")
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("5", "2", "1")
    cases = {case.get("name"): case for case in suite}
    assert cases["bench_slower"].find("failure").get("message").startswith("slower: +100.0%")
    assert cases["bench_cannot_tell"].find("skipped") is not None


def test_page_has_every_benchmark(tmp_path):
    text = write_gate_page(tmp_path / "gate.html", RESULT).read_text()
    assert text.count('class="strip"') == 4, "one has no interval"
    assert "bench_fails" in text


def test_record_runs_appends_a_row_per_revision(tmp_path):
    table = tmp_path / "history.parquet"
    device = Device("CPU", "cpu")
    first = record_runs(table, RESULT, device)
    record_runs(table, result_of(verdict("same"), base="v2", head="v3"), device)
    runs = read_runs(table)
    assert first == 4 * 2 + 1, "the failing one has no time in the base"
    assert len(runs) == first + 2
    failed = runs[runs["status"] == "runtime_error"]
    assert list(failed["config.revision"]) == ["v2"]
    slower = runs[runs["problem.benchmark"] == "bench_x.py::bench_slower"]
    assert list(slower["time_ms"]) == [1.0, 2.0]


def test_record_runs_other_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="a name ending in"):
        record_runs(tmp_path / "history.csv", RESULT, Device("CPU", "cpu"))


def of_sort(word):
    """Return a verdict on the benchmark that a bisection follows."""
    return dataclasses.replace(verdict(word), name="bench_sort")


@pytest.mark.parametrize("first_bad", [1, 3, 6])
def test_bisect_finds_the_first_slower_commit(first_bad):
    commits = [f"c{number}" for number in range(7)]
    tried = []

    def run(commit, only):
        tried.append(only)
        is_bad = commits.index(commit) >= first_bad
        return result_of(of_sort("slower" if is_bad else "same"))

    found = bisect(commits, run)
    assert (found.good, found.bad) == (f"c{first_bad - 1}", f"c{first_bad}")
    assert found.undecided == ()
    assert found.gates <= 1 + 3  # 2³ > 6
    assert tried[0] == ()
    assert all(only == found.benchmarks for only in tried[1:])


def test_bisect_ignores_benchmarks_of_longer_names():
    def run(commit, only):
        word = "slower" if commit == "c3" else "same"
        other = dataclasses.replace(of_sort("slower"), name="bench_sort_big")
        return result_of(of_sort(word), *([other] if only else []))

    found = bisect(["c0", "c1", "c2", "c3"], run)
    assert (found.good, found.bad) == ("c2", "c3")


def test_bisect_undecided_commit_is_named():
    words = {"c1": "same", "c2": "cannot tell", "c3": "slower"}
    found = bisect(["c0", "c1", "c2", "c3"], lambda c, only: result_of(of_sort(words[c])))
    assert (found.good, found.bad, found.undecided) == ("c1", "c3", ("c2",))
    assert "one of 2 commits after c1, up to c3" in found.headline


def test_bisect_commit_that_cannot_be_built_is_named():
    words = {"c2": "same", "c3": "slower"}

    def run(commit, only):
        return result_of(of_sort(words[commit])) if commit in words else None

    found = bisect(["c0", "c1", "c2", "c3"], run)
    assert (found.good, found.bad, found.undecided) == ("c2", "c3", ())
    words = {"c3": "slower"}
    assert bisect(["c0", "c1", "c2", "c3"], run).undecided == ("c1", "c2")


def test_bisect_without_regression_is_refused():
    with pytest.raises(UsageError, match="nothing is slower at the end: green"):
        bisect(["a", "b"], lambda commit, only: result_of(verdict("same")))
