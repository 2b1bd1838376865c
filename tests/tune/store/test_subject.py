"""Names and choices in a store: `tune/store/subject.py`."""

import pytest

from foretune.tune.store.subject import Allowance


@pytest.mark.parametrize(
    ("earlier", "wanted", "covers"),
    [
        (Allowance(measurements=8), Allowance(measurements=8), True),
        (Allowance(measurements=8), Allowance(measurements=9), False),
        (Allowance(measurements=8), Allowance(seconds=1.0), False),
        (Allowance(seconds=1.0), Allowance(seconds=20.0), False),
        (Allowance(seconds=20.0), Allowance(seconds=1.0), True),
        (Allowance(seconds=20.0), Allowance(measurements=8), False),
        (Allowance(measurements=8, seconds=1.0), Allowance(measurements=8, seconds=2.0), False),
        (Allowance(), Allowance(measurements=8, seconds=2.0), True),
        (Allowance(regret=0.03), Allowance(regret=0.03), True),
        (Allowance(regret=0.03), Allowance(regret=0.01), False),
        (Allowance(regret=0.03), Allowance(measurements=8), False),
        (Allowance(measurements=8), Allowance(measurements=8, regret=0.03), True),
    ],
)
def test_allowance_covers_what_ends_no_later(earlier, wanted, covers):
    assert earlier.covers(wanted) == covers
