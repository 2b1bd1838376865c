"""Numbers with a decimal point or a decimal comma."""

import pytest

from foretune.datasets.decimal_marks import decimal_mark, plain_number
from foretune.errors import UsageError


@pytest.mark.parametrize(
    ("text", "point", "comma"),
    [
        ("12", "12", "12"),
        ("12.5", "12.5", None),
        ("12,5", None, "12.5"),
        ("1.234", "1.234", "1234"),
        ("1,234", "1234", "1.234"),
        ("0.125", "0.125", None),
        ("1.234,56", None, "1234.56"),
        ("1,234,567", "1234567", None),
        ("1 234,5", None, "1234.5"),
        ("1'234.5", "1234.5", None),
        ("-.5e-3", "-.5e-3", None),
        ("1.2.3", None, None),
        ("12 34", None, None),
        ("gemm", None, None),
    ],
)
def test_plain_number_of_each_mark(text, point, comma):
    assert plain_number(text, ".") == point
    assert plain_number(text, ",") == comma


def test_decimal_mark_is_that_of_the_cell_that_can_be_read_in_one_way():
    assert decimal_mark(["1.234", "12,5"], where="x.csv") == ","
    assert decimal_mark(["1.234", "12.5"], where="x.csv") == "."
    assert decimal_mark(["1", "gemm", ""], where="x.csv") == "."


def test_decimal_mark_is_asked_for():
    with pytest.raises(UsageError, match=r"1\.234 may be 1\.234 or 1234: .* --decimal"):
        decimal_mark(["1.234"], where="x.csv")
    assert decimal_mark(["1.234"], where="x.csv", ambiguous_points=True) == "."
    with pytest.raises(UsageError, match="1,234 may be"):
        decimal_mark(["1,234"], where="x.csv", ambiguous_points=True)
    with pytest.raises(UsageError, match=r"a decimal point .0\.5. and with a decimal comma .0,5."):
        decimal_mark(["0.5", "0,5"], where="x.csv")
