"""Tests restrictions between parameters, on whole columns: `foretune.restriction`."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import SpaceError
from foretune.restriction import Restriction
from foretune.space import SearchSpace

VALUES = {
    "a": (1, 2, 3, 8),
    "b": (0.5, 2.0, 4.0),
    "flag": (False, True),
    "other": (False, True),
    "mode": ("row", "column"),
    "split": ("auto", 1, 4),
}
SPACE = SearchSpace(VALUES)
ROWS = [dict(c) for c in SPACE]
NAMES = set(VALUES)


def by_python(rule):
    code = compile(rule, "rule", "eval")
    return [bool(eval(code, {}, row)) for row in ROWS]


@pytest.mark.parametrize(
    "rule",
    [
        "a * b <= 8",
        "a + b - 1 > 2 and a // 2 < 3 or a % 2 == 0",
        "1 < a <= 3",
        "1 < a <= 3 < b",
        "a == 2 != b",
        "-a < -2",
        "+a == 2",
        "a ** 2 > 8",
        "2 ** -a < 0.2",
        "a / b >= 1",
        "a in (1, 8)",
        "a not in [1, 8]",
        "a in {2, 3}",
        "a in ()",
        "a in (b, 2 * b)",
        "not a == 2",
        "not (flag and other)",
        "flag + other <= 1",
        "flag + other == 2",
        "(a > 2) + (b > 1) >= 1",
        "flag - other == -1",
        "-flag == -1",
        "flag == 1",
        "flag == other",
        "min(a, b) == 2",
        "max(a, b, 3) > 3",
        "min((a, b)) == 2",
        "abs(a - 3) <= 1",
        "a if flag else b > 2",
        "(8 if flag else 2) == a",
        "('row' if flag else 'column') == mode",
        "('row' if flag else 1) == mode",
        "(flag and a) == 3",
        "(flag or a) == 3",
        "mode == 'row' and a > 2 or mode == 'column'",
        "mode == 'row' != flag",
        "mode in ('row', 'diagonal')",
        "mode in ('row', 1)",
        "mode == 1",
        "mode != 1",
        "mode < 'd'",
        "mode and flag",
        "split == 'auto' or split * a < 9",
        "split != 'auto' and 2 <= split",
        "split in ('auto', 4)",
        "split == 1",
        "a",
        "flag",
        "True",
        "1 > 2",
        "a != 3 and 8 % (a - 3) == 0",
    ],
)
def test_restriction_expression_equals_python(rule):
    assert Restriction(rule, NAMES).holds(SPACE.columns()).tolist() == by_python(rule)


def expressions(depth):
    """Return (text) of random, well-typed numeric expressions over a, b and flag."""
    leaf = st.sampled_from(["a", "b", "flag", "2", "0.5", "3"])
    if depth == 0:
        return leaf
    part = expressions(depth - 1)
    return st.one_of(
        leaf,
        st.tuples(part, st.sampled_from(["+", "-", "*"]), part).map(
            lambda t: "({} {} {})".format(*t)
        ),
        st.tuples(part, part, st.sampled_from(["min", "max"])).map(
            lambda t: f"{t[2]}({t[0]}, {t[1]})"
        ),
        st.tuples(part, st.sampled_from(["<", "<=", "==", "!=", ">", ">="]), part).map(
            lambda t: "({} {} {})".format(*t)
        ),
        st.tuples(part, st.sampled_from(["and", "or"]), part).map(
            lambda t: "({} {} {})".format(*t)
        ),
        st.tuples(part, part, part).map(lambda t: f"({t[0]} if {t[1]} else {t[2]})"),
        st.tuples(part, part, part).map(lambda t: f"({t[0]} in ({t[1]}, {t[2]}))"),
        part.map(lambda p: f"(not {p})"),
        part.map(lambda p: f"(-{p})"),
        part.map(lambda p: f"abs({p})"),
    )


@given(expressions(3))
def test_restriction_random_expression_equals_python(rule):
    assert Restriction(rule, NAMES).holds(SPACE.columns()).tolist() == by_python(rule)


@pytest.mark.parametrize(
    "rule",
    [
        "__import__('os').system('true')",
        "__import__('os')",
        "a.__class__",
        "open('x')",
        "(lambda: a)()",
        "[x for x in (1, 2)]",
        "a[0]",
        "f'{a}'",
        "print(a)",
        "min(a, key=a)",
        "min(*a)",
        "min()",
        "abs(a, b)",
        "(a := 3) > 2",
        "a is b",
        "a & b",
        "~a",
        "a @ b",
        "a == None",
        "b'x' == a",
        "a == 1j",
        "'o' in mode",
        "(a, b) == (1, 2)",
        "a in mode",
        "...",
    ],
)
def test_restriction_refuses_other_syntax_before_it_runs(rule):
    with pytest.raises(SpaceError, match=r"restriction .* uses .*pass a Python function"):
        Restriction(rule, NAMES)


@pytest.mark.parametrize("rule", ["a <", "a = 2", "", "import os", "a; b", "a\x00b", "(" * 500])
def test_restriction_refuses_text_that_is_no_expression(rule):
    with pytest.raises(SpaceError, match="is not an expression"):
        Restriction(rule, NAMES)


def test_restriction_huge_values_take_no_memory():
    assert Restriction("9 ** 9 ** 9 ** 9 > a", NAMES).holds(SPACE.columns()).all()
    with pytest.raises(SpaceError, match="does arithmetic on text"):
        Restriction("'x' * 9999999999 == mode", NAMES).holds(SPACE.columns())


def test_restriction_max_of_one_argument_is_that_argument():
    assert (
        Restriction("max(a) == 3", NAMES).holds(SPACE.columns()) == (SPACE.columns()["a"] == 3)
    ).all()


@pytest.mark.parametrize("rule", ["mode * 2 == 1", "mode > 1", "min(mode, 1) == 1", "-mode == 1"])
def test_restriction_refuses_arithmetic_on_text(rule):
    with pytest.raises(SpaceError, match="does arithmetic on text"):
        Restriction(rule, NAMES).holds(SPACE.columns())


def test_restriction_unknown_name_lists_parameters():
    with pytest.raises(
        SpaceError, match="restriction a < d uses d, which is not a parameter; parameters: a, b"
    ):
        Restriction("a < d", NAMES)
    with pytest.raises(SpaceError, match=r"restriction _tall uses height"):
        Restriction(_tall, NAMES)


def _tall(height):
    return height > 1


@pytest.mark.parametrize(
    ("function", "rule"),
    [
        (lambda a, b: a * b <= 8, "a * b <= 8"),
        (lambda b, a: a * b <= 8, "a * b <= 8"),
        (lambda mode, flag: mode == "row" and flag is True, "mode == 'row' and flag"),
        (lambda split: split == "auto" or split > 1, "split == 'auto' or split > 1"),
        (lambda split, mode: split == 1 or mode == "row", "split == 1 or mode == 'row'"),
        (lambda: False, "False"),
    ],
)
def test_restriction_function_equals_expression(function, rule):
    assert Restriction(function, NAMES).holds(SPACE.columns()).tolist() == by_python(rule)


def test_restriction_function_gets_each_combination_once():
    seen = []

    def rule(a, flag):
        seen.append((type(a), type(flag), a, flag))
        return True

    Restriction(rule, NAMES).holds(SPACE.columns())
    assert len(seen) == len(set(seen)) == len(VALUES["a"]) * len(VALUES["flag"])
    assert {s[:2] for s in seen} == {(int, bool)}


def test_restriction_of_no_rows_is_empty():
    none = {name: column[:0] for name, column in SPACE.columns().items()}
    for rule in ("a < 2 and flag", "split == 1", "a in (1, 2)", lambda split, a: True):
        holds = Restriction(rule, NAMES).holds(none)
        assert holds.shape == (0,)
        assert holds.dtype == np.bool_


def test_restriction_str_is_its_rule():
    assert str(Restriction("a  <  2", NAMES)) == "a  <  2"
    assert str(Restriction(lambda a: True, NAMES)) == "<lambda>"


def legal(rule, values):
    return [dict(config) for config in SearchSpace(values, [rule])]


SIZES = {"a": [1, 2, 4, 8], "b": [1, 2, 4]}
PRODUCT_IS_SMALL = [{"a": a, "b": b} for a in SIZES["a"] for b in SIZES["b"] if a * b <= 4]


@pytest.mark.parametrize(
    "rule",
    [
        lambda a, b, limit=4: a * b <= limit,
        lambda a, b, *, limit=4: a * b <= limit,
        lambda a, b, /, limit=4: a * b <= limit,
        lambda a, **others: a * others["b"] <= 4,
        lambda **config: config["a"] * config["b"] <= 4,
        lambda *values: values[0] * values[1] <= 4,
        lambda a, b=99: a * b <= 4,
    ],
    ids=["default", "keyword", "positional only", "others", "mapping", "values", "own default"],
)
def test_function_rule_takes_arguments_as_python_does(rule):
    assert legal(rule, SIZES) == PRODUCT_IS_SMALL


def test_function_rule_without_signature_says_what_to_do():
    with pytest.raises(SpaceError, match="does not tell its arguments: write a lambda"):
        SearchSpace(SIZES, [max])


@pytest.mark.parametrize("position", ["a", "b"])
def test_function_rule_argument_without_default_must_be_parameter(position):
    names = [name for name in SIZES if name != position]
    with pytest.raises(SpaceError, match=f"uses {position}, which is not a parameter"):
        Restriction(lambda a, b: True, names)


@pytest.mark.parametrize(
    ("rule", "values", "count"),
    [
        ("a * b > 0", {"a": [2**40, 2**41], "b": [2**40, 2**41]}, 4),
        ("a * b * 8 <= 2**40", {"a": [2**10, 2**31], "b": [2**10, 2**31]}, 1),
        ("a + b > a", {"a": [2**62], "b": [2**62, 2**63]}, 2),
        ("a - b < 0", {"a": [0], "b": [2**63, 2**64 - 1]}, 2),
        ("a % 10 == 5", {"a": [2**64 - 1, 2**64 - 2]}, 1),
        ("a != 2**53", {"a": [2**53, 2**53 + 1]}, 1),
        ("3 ** a % 7 == 5", {"a": [40, 41]}, 1),  # 3 ** 41 % 7 is 5, 3 ** 40 % 7 is 4
    ],
)
def test_text_rule_computes_with_pythons_integers(rule, values, count):
    assert len(SearchSpace(values, [rule])) == count
