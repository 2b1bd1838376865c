"""Measurements as a Python function without imports, from problem to configuration.

The function is a decision tree (`foretune.tune.configuration_tree`). If the tree is no better on
held-out problems than the single best configuration, the function returns that configuration.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from foretune.datasets.runs import from_measurements
from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.models.splits import fold_of_rows
from foretune.space import Configuration
from foretune.tune.configuration_tree import Tree, fit_tree, follow, leaves
from foretune.tune.efficiency import EfficiencyTable, Score
from foretune.tune.function_source import write_source
from foretune.values import percent
from foretune.version import __version__


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
    single = fit_tree(table.problems, table.efficiency, max_leaves=1)
    tree = fit_tree(table.problems, table.efficiency, max_leaves)
    held_out = _held_out(table, max_leaves=max_leaves, group=group, seed=seed)
    held_out_single = _held_out(table, max_leaves=1, group=group, seed=seed)

    # A tree that is no better than the single best configuration only makes code longer.
    if held_out and held_out_single and not held_out.kept > held_out_single.kept:
        tree = single
        held_out = held_out_single

    score = _training_score(table, tree)
    score_single = _training_score(table, single)
    title = f"Which configuration of {table.kernel} to run on {table.device}."
    notes = _notes(table, score, score_single, held_out)
    used = sorted(set(leaves(tree)))
    return ExportedFunction(
        source=write_source(title, notes, table.problems, table.configs, tree),
        configs=[table.configs[number] for number in used],
        leaves=len(leaves(tree)),
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
    efficiency = table.efficiency[:, used]
    is_measured = ~np.isnan(efficiency).all(axis=1)
    best = np.nanmax(efficiency[is_measured], axis=1)
    return float(best.mean())


def _held_out(table: EfficiencyTable, *, max_leaves: int, group: str, seed: int) -> Score | None:
    """Return the cross-validated score of trees; None if too few problems can be held out."""
    rows = from_measurements(
        Measurement(table.kernel, problem, Configuration(), table.device, Status.OK)
        for problem in table.problems
    )
    fold_of_problem = fold_of_rows(rows, "grouped", seed, group)
    if fold_of_problem is None:
        return None
    chosen = np.zeros(len(fold_of_problem), dtype=np.intp)
    for fold in np.unique(fold_of_problem):
        is_held_out = fold_of_problem == fold
        training = np.flatnonzero(~is_held_out)
        training_problems = [table.problems[number] for number in training]
        tree = fit_tree(training_problems, table.efficiency[training], max_leaves)
        for number in np.flatnonzero(is_held_out):
            chosen[number] = follow(tree, table.problems[number])
    return Score.of_choices(table.efficiency, chosen)


def _notes(table: EfficiencyTable, score: Score, single: Score, held_out: Score | None) -> str:
    """Return how the function was made, and what it keeps, for its docstring."""
    n_measured = int((~np.isnan(table.efficiency)).sum())
    if held_out is None:
        others = "it was not evaluated on other problems."
    else:
        others = (
            f"on held-out problems, {percent(held_out.kept)}, slightly optimistic, because they "
            "also decided whether a tree is used."
        )
    notes = (
        f"Written by 'foretune export' (Foretune {__version__}); edits are lost when it is written "
        f"again. Minimizes {table.objective.value}, learned from {n_measured} measurements of "
        f"{score.problems} problems. Of the best performance measured on them it keeps "
        f"{percent(score.kept)} (the single best configuration: {percent(single.kept)}); {others}"
    )
    if score.unmeasured:
        notes += (
            f" On {score.unmeasured} of them its choice was not measured; the share excludes them."
        )
    return notes
