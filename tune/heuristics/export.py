"""Exports measurements as a standalone Python function and scores it."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from foretune.datasets.runs import from_measurements
from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.models.validation.splits import fold_of_rows
from foretune.space import Configuration
from foretune.tune.heuristics.code_writer import write_source
from foretune.tune.heuristics.decision_tree import count_leaves
from foretune.tune.heuristics.efficiency import EfficiencyTable, Score, score
from foretune.tune.heuristics.subset import TreeChooser, best_single, fit_chooser
from foretune.version import __version__

MAX_CONFIGS = 8


@dataclass(frozen=True)
class ExportedFunction:
    """A function and its score against the best measured performance.

    Attributes:
        source: Python source without imports; its function is ``choose``.
        configs: the configurations it chooses from.
        leaves: number of leaves of its decision tree.
        chooser: the function as an object.
        training_score: score on the training problems.
        training_score_single: score there of the single best configuration.
        oracle_share: score there of the best configuration per problem among those considered.
        held_out: cross-validated score on held-out problems; None with too few problems.
        held_out_single: the same for the single best configuration.
    """

    source: str
    configs: list[Configuration]
    leaves: int
    chooser: TreeChooser
    training_score: Score
    training_score_single: Score
    oracle_share: float
    held_out: Score | None
    held_out_single: Score | None


def export_function(
    shares: EfficiencyTable,
    max_configs: int = MAX_CONFIGS,
    depth: int | None = None,
    group: str = "problem",
    seed: int = 0,
) -> ExportedFunction:
    """Return a function from problems to configurations.

    While configurations are chosen, unmeasured pairs are estimated cautiously. Scores leave them
    out and count them.

    Args:
        shares: the measured efficiencies.
        max_configs: maximum number of configurations in the function.
        depth: depth of its decision tree; None takes the best depth on held-out problems.
        group: columns held out together (`foretune.models.validation.splits.group_columns`).
        seed: random seed of the folds.

    Raises:
        UsageError: ``max_configs`` is below 1.
        UnknownName: the group names a column that the problems do not have.
    """
    if max_configs < 1:
        raise UsageError(f"--max-configs {max_configs} leaves nothing to choose: give at least 1")
    chooser = fit_chooser(shares.problems, shares.efficiency, max_configs, depth, seed)
    single = best_single(shares.efficiency)
    held_out, held_out_single = _held_out(shares, max_configs, depth, group, seed)
    same = score(shares.efficiency, [chooser.choose(p) for p in shares.problems])
    same_single = score(shares.efficiency, [single] * len(shares.problems))
    configs = [shares.configs[i] for i in chooser.subset]
    notes = _notes(shares, same, same_single, held_out)
    return ExportedFunction(
        source=write_source(_title(shares), notes, shares.problems, configs, chooser.tree),
        configs=configs,
        leaves=count_leaves(chooser.tree),
        chooser=chooser,
        training_score=same,
        training_score_single=same_single,
        oracle_share=float(shares.efficiency_or_zero[:, chooser.considered].max(axis=1).mean()),
        held_out=held_out,
        held_out_single=held_out_single,
    )


def _held_out(
    shares: EfficiencyTable, max_configs: int, depth: int | None, group: str, seed: int
) -> tuple[Score | None, Score | None]:
    """Return the cross-validated scores of choosers and of single configurations."""
    fold = fold_of_rows(_table(shares), "grouped", seed, group)
    if fold is None:
        return None, None
    chosen = np.zeros(len(fold), dtype=np.intp)
    single = np.zeros(len(fold), dtype=np.intp)
    for number in np.unique(fold):
        known, new = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        share = shares.efficiency[known]
        chooser = fit_chooser([shares.problems[i] for i in known], share, max_configs, depth, seed)
        chosen[new] = [chooser.choose(shares.problems[i]) for i in new]
        single[new] = best_single(share)
    return score(shares.efficiency, chosen), score(shares.efficiency, single)


def _table(shares: EfficiencyTable) -> pd.DataFrame:
    nothing = Configuration()
    return from_measurements(
        Measurement(shares.kernel, problem, nothing, shares.device, Status.OK)
        for problem in shares.problems
    )


def _title(shares: EfficiencyTable) -> str:
    return f"Which configuration of {shares.kernel} to run on {shares.device}."


def _notes(shares: EfficiencyTable, same: Score, single: Score, held_out: Score | None) -> str:
    measured = int((~np.isnan(shares.efficiency)).sum())
    others = "it was never tried on others."
    if held_out is not None:
        others = f"on problems held out, {_percent(held_out.kept)}."
    notes = (
        f"Written by 'foretune export' (Foretune {__version__}); edits are lost when it is written "
        f"again. Minimises {shares.objective.value}, learned from {measured} measurements of "
        f"{same.problems} problems. Of the best performance measured on them it keeps "
        f"{_percent(same.kept)} (the single best configuration: {_percent(single.kept)}); {others}"
    )
    if same.unmeasured:
        notes += (
            f" On {same.unmeasured} of them its choice was not measured: they are not in the share."
        )
    return notes


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
