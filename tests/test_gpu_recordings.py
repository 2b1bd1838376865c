"""What a GPU answered, in benchmarks/gpu/h100: the tables that stages print of recorded files."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("triton")

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
H100 = BENCHMARKS / "gpu" / "h100"


@pytest.fixture
def printed(monkeypatch, capsys):
    """Return what a stage prints of its recorded file, and the cells of its table."""

    def run(stage):
        for folder in (BENCHMARKS, BENCHMARKS / "gpu"):
            monkeypatch.syspath_prepend(str(folder))
        recorded = H100 / f"{stage}.jsonl"
        before = recorded.read_bytes()
        module = importlib.import_module(stage)
        monkeypatch.setattr("sys.argv", [stage, "--minutes", "0", "--out", str(recorded)])
        module.main()
        assert recorded.read_bytes() == before
        text = capsys.readouterr().out
        lines = [line for line in text.splitlines() if line.startswith("| ")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return text, [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]

    return run


def test_no_equal_code_wins_and_gains_of_three_per_cent_are_found(printed):
    text, table = printed("gate")
    assert "NVIDIA H100" in text
    assert text.endswith(
        "False wins: 0 of 116 comparisons of equals, 0 open. 3 %: 40 of 40 found.\n"
    )
    assert [row["false wins"] for row in table] == ["0 of 58"] * 2
    assert [row["1% found"] for row in table] == ["0 of 4", "2 of 4"]
    assert [row["3% found"] for row in table] == ["20 of 20"] * 2
    assert [row["10% found"] for row in table] == ["4 of 4"] * 2


def test_kernels_of_libraries_give_the_results_of_stock_triton(printed):
    text, table = printed("libraries")
    assert "LibTuner: tuned by Triton" in text
    assert {row["library"] for row in table} == {"fla", "liger", "flag_gems", "unsloth"}
    assert [row["equal"] for row in table] == ["yes"] * 17


def test_every_item_passed(printed):
    _, table = printed("smoke")
    assert [row["result"] for row in table] == ["PASS"] * 13
