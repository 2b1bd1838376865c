"""Writes measurements as a Python function without imports, from problem to configuration.

The function is a decision tree. It splits problems by how well each configuration does on them (a
regression tree on all efficiencies at once), and each leaf returns the configuration with the best
average there. A classifier of the best configuration would penalize mistakes that cost nothing. If
the tree is no better on held-out problems than the single best configuration, the function returns
that configuration.
"""

import keyword
import math
import re
import textwrap
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from foretune.collect.compiled.arguments import DTYPES
from foretune.datasets.runs import from_measurements
from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.models.splits import fold_of_rows
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.efficiency import EfficiencyTable, Score, fill_missing
from foretune.values import Value, percent
from foretune.version import __version__

_WIDTH = 100
_CONFIGURATION = "dict[str, int | float | bool | str]"
_RESERVED = {"dict", "float", "str", "_CONFIGURATIONS", "_TYPES"}
"""Names in the function's body that arguments must not shadow."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Question:
    """Whether a parameter is ``value`` (None: absent), or is a number of at most ``value``."""

    name: str
    value: Value | None
    at_most: bool = False

    def answer(self, problem: Problem) -> bool:
        """Return the answer; False if the problem has no such number."""
        found = problem.get(self.name)
        if not self.at_most:
            return found == self.value
        return isinstance(found, (int, float)) and found <= self.value  # type: ignore[operator]


Tree = int | tuple[Question, "Tree", "Tree"]
"""The number of a configuration, or a question with the trees for yes and no."""


@dataclass(frozen=True)
class ExportedFunction:
    """The source of a function ``choose``, without imports, and its share of the best performance.

    `oracle_share` is the share if the best of `configs` is chosen for each problem. `held_out` is
    cross-validated on held-out problems, and None with too few problems.
    """

    source: str
    configs: list[Configuration]
    leaves: int
    training_score: Score
    training_score_single: Score
    oracle_share: float
    held_out: Score | None
    held_out_single: Score | None


def export_function(
    table: EfficiencyTable, max_leaves: int = 8, group: str = "problem", seed: int = 0
) -> ExportedFunction:
    """Return a function from problems to configurations.

    While configurations are chosen, unmeasured pairs are estimated cautiously. Scores leave them
    out and count them. ``group`` names the columns held out together
    (`foretune.models.splits.group_columns`). Raises UsageError if ``max_leaves`` is
    below 1, UnknownName if the problems lack a column of the group.
    """
    if max_leaves < 1:
        raise UsageError(f"--max-configs {max_leaves} leaves nothing to choose: give at least 1")
    single = fit_tree(table.problems, table.efficiency, 1)
    tree = fit_tree(table.problems, table.efficiency, max_leaves)
    held_out = _held_out(table, max_leaves, group, seed)
    held_out_single = _held_out(table, 1, group, seed)

    # A tree that is no better than the single best configuration only makes code longer.
    if held_out and held_out_single and not held_out.kept > held_out_single.kept:
        tree = single
        held_out = held_out_single

    score = _training_score(table, tree)
    score_single = _training_score(table, single)
    title = f"Which configuration of {table.kernel} to run on {table.device}."
    notes = _notes(table, score, score_single, held_out)
    used = sorted(set(_leaves(tree)))
    return ExportedFunction(
        source=write_source(title, notes, table.problems, table.configs, tree),
        configs=[table.configs[i] for i in used],
        leaves=len(_leaves(tree)),
        training_score=score,
        training_score_single=score_single,
        oracle_share=_oracle_share(table, used),
        held_out=held_out,
        held_out_single=held_out_single,
    )


def _training_score(table: EfficiencyTable, tree: Tree) -> Score:
    """Return the score of a tree on the problems from which it was learned."""
    chosen = [follow(tree, problem) for problem in table.problems]
    return Score.of_choices(table.efficiency, chosen)


def _oracle_share(table: EfficiencyTable, used: Sequence[int]) -> float:
    """Return the share that the best of some configurations keeps on each problem."""
    reached = table.efficiency[:, used]
    measured = reached[~np.isnan(reached).all(axis=1)]
    return float(np.nanmax(measured, axis=1).mean())


def _held_out(table: EfficiencyTable, leaves: int, group: str, seed: int) -> Score | None:
    """Return the cross-validated score of trees; None if too few problems can be held out."""
    rows = from_measurements(
        Measurement(table.kernel, problem, Configuration(), table.device, Status.OK)
        for problem in table.problems
    )
    fold = fold_of_rows(rows, "grouped", seed, group)
    if fold is None:
        return None
    chosen = np.zeros(len(fold), dtype=np.intp)
    for number in np.unique(fold):
        known, new = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        tree = fit_tree([table.problems[i] for i in known], table.efficiency[known], leaves)
        chosen[new] = [follow(tree, table.problems[i]) for i in new]
    return Score.of_choices(table.efficiency, chosen)


def _notes(table: EfficiencyTable, same: Score, single: Score, held_out: Score | None) -> str:
    measured = int((~np.isnan(table.efficiency)).sum())
    others = "it was not evaluated on other problems."
    if held_out is not None:
        others = (
            f"on held-out problems, {percent(held_out.kept)}, slightly optimistic, because they "
            "also decided whether a tree is used."
        )
    notes = (
        f"Written by 'foretune export' (Foretune {__version__}); edits are lost when it is written "
        f"again. Minimizes {table.objective.value}, learned from {measured} measurements of "
        f"{same.problems} problems. Of the best performance measured on them it keeps "
        f"{percent(same.kept)} (the single best configuration: {percent(single.kept)}); {others}"
    )
    if same.unmeasured:
        notes += (
            f" On {same.unmeasured} of them its choice was not measured; the share excludes them."
        )
    return notes


def follow(tree: Tree, problem: Problem) -> int:
    """Return the number of the configuration for a problem."""
    while isinstance(tree, tuple):
        question, yes, no = tree
        tree = yes if question.answer(problem) else no
    return tree


def _leaves(tree: Tree) -> list[int]:
    return [*_leaves(tree[1]), *_leaves(tree[2])] if isinstance(tree, tuple) else [tree]


def fit_tree(problems: Sequence[Problem], efficiency: Floats, max_leaves: int) -> Tree:
    """Return a tree whose configurations keep a large share of the best performance.

    ``efficiency`` has the shape (problems, configurations), and NaN for unmeasured pairs.
    """
    gains, columns = fill_missing(efficiency), list(_columns(problems))
    if max_leaves < 2 or not columns:
        return int(gains.mean(axis=0).argmax())
    from sklearn.tree import DecisionTreeRegressor

    table = np.column_stack([values for *_, values in columns])
    model = DecisionTreeRegressor(max_leaf_nodes=max_leaves, random_state=0).fit(table, gains)
    fitted = model.tree_

    def grow(node: int, rows: npt.NDArray[np.intp]) -> Tree:
        column = fitted.feature[node]
        if column < 0:
            return int(gains[rows].mean(axis=0).argmax())
        is_low = table[rows, column] <= fitted.threshold[node]
        low = grow(fitted.children_left[node], rows[is_low])
        high = grow(fitted.children_right[node], rows[~is_low])
        if low == high:  # whatever the answer
            return low
        name, question, _ = columns[column]
        if question is not None:
            return question, high, low
        largest = max(problems[i][name] for i in rows[is_low])
        smallest = min(problems[i][name] for i in rows[~is_low])
        return Question(name, _midpoint(largest, smallest), at_most=True), low, high

    return grow(0, np.arange(len(problems)))


def _columns(problems: Sequence[Problem]) -> Iterator[tuple[str, Question | None, Floats]]:
    """Yield parameter, question and values of each column that distinguishes problems.

    Sizes are ranks (the tree computes in single precision), and have no question yet.
    """
    for name in dict.fromkeys(n for p in problems for n in p):
        values = [p.get(name) for p in problems]
        distinct = sorted(dict.fromkeys(values), key=lambda v: (v is None, isinstance(v, str), v))
        if len(distinct) > 1 and all(type(v) in (int, float) for v in distinct):
            rank = {v: i for i, v in enumerate(distinct)}
            yield name, None, np.array([rank[v] for v in values], float)
        elif len(distinct) > 1:
            for value in distinct[1:] if len(distinct) == 2 else distinct:
                yield name, Question(name, value), np.array([v == value for v in values], float)


def _midpoint(low: float, high: float) -> float:
    """Return a number in [low, high): the geometric mean if both are positive."""
    if isinstance(low, int) and isinstance(high, int):
        return math.isqrt(low * high) if low > 0 else (low + high) // 2
    middle = math.sqrt(low) * math.sqrt(high) if low > 0 else low / 2 + high / 2
    return middle if low <= middle < high else low


def write_source(
    title: str,
    notes: str,
    problems: Sequence[Problem],
    configs: Sequence[Configuration],
    tree: Tree,
) -> str:
    """Return the source of a module with a function ``choose``.

    ``title`` and ``notes`` are for its docstring; leaves of ``tree`` are indices of ``configs``.
    """
    arguments = name_arguments(problems)
    types = _type_arguments(arguments, problems)
    used = sorted(set(_leaves(tree)))
    names = {n for p in problems for n in p}
    switches = {n for n in names if all(isinstance(p.get(n), bool) for p in problems)}
    listed = (", ".join(f"{n!r}: {_literal(v)}" for n, v in configs[i].items()) for i in used)
    declared = list(_parameters(arguments, problems, types))
    signature = [f"def choose({', '.join(declared)}) -> {_CONFIGURATION}:"]
    if len(signature[0]) > _WIDTH:
        lines = (f"    {argument}," for argument in declared)
        signature = ["def choose(", *lines, f") -> {_CONFIGURATION}:"]
    text = [
        '"""' + _escape_docstring(title),
        "",
        *textwrap.wrap(_escape_docstring(notes), _WIDTH),
        '"""',
        "",
        f"_CONFIGURATIONS: tuple[{_CONFIGURATION}, ...] = (",
        *(f"    {{{entries}}}," for entries in listed),
        ")",
        *_type_table(types),
        "",
        "",
        *signature,
        '    """Return the configuration for a problem.',
        "",
        *(f"    {line}" for line in _describe_arguments(arguments, problems, types)),
        '    """',
        *(f"    {a} = _TYPES.get(str({a}), {a})" for a in types),
        *_body(tree, arguments, used, switches, "    "),
    ]
    return "\n".join(line.rstrip() for line in text) + "\n"


def name_arguments(problems: Sequence[Problem]) -> dict[str, str]:
    """Return the argument of each parameter of the problems; optional ones come last.

    A parameter that is the same in all problems, e.g. a data type, gets no argument.
    """
    every = dict.fromkeys(n for p in problems for n in p)
    names = [n for n in every if len({p.get(n) for p in problems}) > 1]
    arguments: dict[str, str] = {}
    for name in sorted(names, key=lambda n: any(n not in p for p in problems)):
        identifier = re.sub(r"[^A-Za-z0-9_]", "_", name)
        if not identifier or identifier[0].isdigit():
            identifier = f"_{identifier}"
        if keyword.iskeyword(identifier) or identifier in _RESERVED:
            identifier += "_"
        while identifier in arguments.values():
            identifier += "_"
        arguments[name] = identifier
    return arguments


def _type_arguments(
    arguments: dict[str, str], problems: Sequence[Problem]
) -> dict[str, set[Value]]:
    """Return the values of each argument that is an element type."""
    known = {*DTYPES, *DTYPES.values()}
    values = {a: {p[n] for p in problems if n in p} for n, a in arguments.items()}
    return {argument: found for argument, found in values.items() if found <= known}


def _type_table(types: dict[str, set[Value]]) -> list[str]:
    """Return the table from all names of element types to those of the problems."""
    used = sorted(map(str, set().union(*types.values())))
    table: dict[str, str] = {}
    for name in used:
        full = DTYPES.get(name, name)
        short = [each for each, meant in DTYPES.items() if meant == full]
        table |= {other: name for other in (full, f"torch.{full}", *short) if other not in used}
    entries = (f"    {other!r}: {name!r}," for other, name in table.items())
    return ["", "_TYPES = {", *entries, "}"] if table else []


def _parameters(
    arguments: dict[str, str], problems: Sequence[Problem], types: Container[str]
) -> Iterator[str]:
    for name, argument in arguments.items():
        kinds = sorted({type(p[name]).__name__ for p in problems if name in p})
        optional = any(name not in p for p in problems)
        if argument in types:
            kinds = ["object"]
        elif optional:
            kinds.append("None")
        yield f"{argument}: {' | '.join(kinds)}" + " = None" * optional


def _describe_arguments(
    arguments: dict[str, str], problems: Sequence[Problem], types: Container[str]
) -> Iterator[str]:
    """Yield the measured range or values of each argument, then the constant parameters."""
    yield "Measured with:"
    for name in dict.fromkeys([*arguments, *(n for p in problems for n in p)]):
        distinct = list(dict.fromkeys(p[name] for p in problems if name in p))
        numbers = [v for v in distinct if not isinstance(v, (str, bool))]
        text = ", ".join(map(str, distinct[:8])) + (", …" if len(distinct) > 8 else "")
        if 1 < len(distinct) == len(numbers):
            text = f"{min(numbers)} … {max(numbers)}"
        argument = arguments.get(name, name)
        called = "" if name == argument else f" ({name})"
        text += "; a torch.dtype, or its name" if argument in types else ""
        text += "" if name in arguments else " in all of them"
        yield from textwrap.wrap(
            _escape_docstring(f"{argument}{called}: {text}"),
            _WIDTH - 4,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )


def _body(
    tree: Tree, arguments: dict[str, str], used: list[int], switches: set[str], indent: str
) -> Iterator[str]:
    if not isinstance(tree, tuple):
        yield f"{indent}return dict(_CONFIGURATIONS[{used.index(tree)}])"
        return
    question, yes, no = tree
    yield f"{indent}if {_condition(question, arguments, switches)}:"
    yield from _body(yes, arguments, used, switches, indent + "    ")
    yield from _body(no, arguments, used, switches, indent)


def _condition(question: Question, arguments: dict[str, str], switches: set[str]) -> str:
    argument, value = arguments[question.name], question.value
    if value is None:
        return f"{argument} is None"
    if question.at_most:
        return f"{argument} <= {_literal(value)}"
    if question.name in switches:
        return argument if value else f"not {argument}"
    # linters object to == True
    return f"{argument} == {_literal(int(value) if isinstance(value, bool) else value)}"


def _literal(value: Value) -> str:
    if isinstance(value, float) and math.isinf(value):
        return f'float("{value}")'
    return ascii(value)


def _escape_docstring(text: str) -> str:
    """Return text as one line that is safe in a docstring."""
    visible = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return visible.replace("\\", "\\\\").replace('"', '\\"')
