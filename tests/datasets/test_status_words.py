"""How a run ended: the words and answers of other tools."""

import pytest

from foretune.datasets import import_runs
from foretune.errors import UsageError


def imported(tmp_path, column, cells):
    path = tmp_path / "runs.csv"
    lines = [f"{64 + i},{1 + i}.5,{cell}" for i, cell in enumerate(cells)]
    path.write_text("\n".join([f"M,time_ms,{column}", *lines, ""]), encoding="utf-8")
    return import_runs(
        path, "generic", kernel="gemm", device="NVIDIA H200", mapping={"problem.M": "M"}
    )


@pytest.mark.parametrize(
    ("column", "success", "failure", "status"),
    [
        ("returncode", "0", "-11", "runtime_error"),
        ("Passed?", "yes", "no", "wrong_result"),
        ("test_passed", "True", "False", "wrong_result"),
        ("numerics_ok", "1", "0", "wrong_result"),
        ("allclose", "True", "False", "wrong_result"),
        ("is_failed", "False", "True", "runtime_error"),
        ("output_invalid", "no", "yes", "invalid"),
        ("accuracy_check", "pass", "fail", "runtime_error"),
        ("correctness", "\u2713", "\u2717", "wrong_result"),
    ],
)
def test_import_runs_failed_row_is_not_valid(tmp_path, column, success, failure, status):
    done = imported(tmp_path, column, [success, failure])
    assert done.runs["status"].tolist() == ["ok", status]
    assert any(f"status from {column}" in note for note in done.notes)


@pytest.mark.parametrize("column", ["result", "check", "not_ok"])
def test_import_runs_answer_of_unknown_meaning_is_asked_for(tmp_path, column):
    with pytest.raises(UsageError, match="no known status"):
        imported(tmp_path, column, ["True", "False"])


@pytest.mark.parametrize(
    ("column", "cells"),
    [
        ("use_tma", ["True", "False"]),
        ("max_error", ["0.001", "0.002"]),
        ("state", ["3", "4"]),
        ("layout", ["valid", "same"]),
    ],
)
def test_import_runs_other_columns_are_no_status(tmp_path, column, cells):
    assert imported(tmp_path, column, cells).runs["status"].tolist() == ["ok", "ok"]


def test_import_runs_unfinished_runs_are_left_out(tmp_path):
    done = imported(tmp_path, "state", ["COMPLETE", "PRUNED", "RUNNING", "FAIL"])
    assert done.runs["status"].tolist() == ["ok", "runtime_error"]
    assert any("2 rows of runs that have not ended" in note for note in done.notes)
