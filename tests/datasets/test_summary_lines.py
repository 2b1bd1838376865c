"""Which lines below a table sum it up, and which are runs."""

import pytest

from foretune.datasets.summary_lines import summary_start

RUNS = [["a", "1"], ["b", "2"], ["c", "4"]]


@pytest.mark.parametrize(
    ("last_lines", "kept"),
    [
        ([["Total", "7"]], 3),
        ([["Total:", "7"], ["mean (3 runs)", "2.333"]], 3),
        ([["avg_pool2d", "3"]], 4),
        ([["average_pool", "3"], ["total_variation", "5"]], 5),
        ([["sum", "3"]], 4),
        ([["sum", "3"], ["Total", "10"]], 4),
        ([["sum", "7"]], 3),
    ],
)
def test_summary_start_is_below_the_runs(last_lines, kept):
    assert summary_start([*RUNS, *last_lines], ".") == kept


def test_summary_word_that_names_runs_is_none():
    rows = [["average", "1"], ["average", "2"], ["average", "4"], ["average", "9"]]
    assert summary_start(rows, ".") == 4
