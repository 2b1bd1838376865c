"""Explains predictions: Shapley values, and the importance of parameters."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.runs import newest_runs
from foretune.device import Device
from foretune.errors import PredictorError
from foretune.features.arrays import Rows, as_array
from foretune.features.featureset import EXTRA_GROUPS, FeatureSet
from foretune.features.geometry import launch_geometry
from foretune.models.predictor import Predictor
from foretune.models.target_names import Target
from foretune.models.targets import usable_rows
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.regressor import threads_for
from foretune.problem import Problem
from foretune.space import SearchSpace
from foretune.support.lazy import require
from foretune.values import Value

BASE = "base"
"""Column of the trees' mean prediction, equal in every row."""
UNIT = "calibrated roofline"
"""Line of a comparison: the ratio of the two runs by the calibrated roofline alone."""
SAMPLES = 500
"""Rows sampled for importances: accurate to a few percent, and fast enough for deep trees."""
PREDICTIONS_PER_ROW = 64
"""Predictions that take about as long as the contributions of one row; decides on threads."""
FEATURE_GROUPS = {
    "problem": "sizes of the problem",
    "config": "configuration",
    "device": "device",
    "alignment": "alignment of sizes",
    "geometry": "launch geometry",
    **EXTRA_GROUPS,
    "analytic": "cost and derived quantities",
}
"""Groups of features and their names in reports."""
CONFIGURATIONS = 2000
"""Configurations that importances of parameters are averaged over."""
SWEEPS = 20
"""Alternations of least squares that separate the effects of values and bases."""


@dataclass(frozen=True)
class Importance:
    """Contribution of each feature to the predictions, averaged over a number of ``rows``.

    ``features`` has the columns ``feature``, ``group``, ``mean`` (mean absolute contribution to the
    log of the target) and ``factor`` (its exponential), the largest first; the indicators of a text
    column count as one. ``groups`` has ``group``, ``mean`` and ``factor``; a group's contribution
    is the sum over its features, so opposite effects cancel.
    """

    features: pd.DataFrame
    groups: pd.DataFrame
    rows: int


@dataclass(frozen=True)
class Comparison:
    """Why run B is predicted faster or slower than run A.

    ``factors`` has the columns ``feature``, ``group``, ``a``, ``b`` (its value in either run) and
    ``factor`` (its effect on B's target relative to A's), the largest first. The line `UNIT` is the
    ratio of the units and has no values. ``tree`` is the ratio of B's target to A's by trees and
    unit alone, the product of all factors; ``predicted`` is the ratio by the whole predictor.
    """

    target: Target
    factors: pd.DataFrame
    tree: float
    predicted: float


def is_explainable(predictor: Predictor, target: Target = "time_ms") -> bool:
    """Return whether contributions to ``target`` can be computed exactly for ``predictor``."""
    model = predictor.targets_.get(target)
    return model is not None and isinstance(model.experts.tree, BoostingModel)


def contributions(
    predictor: Predictor, rows: pd.DataFrame, target: Target = "time_ms"
) -> pd.DataFrame:
    """Return the contribution of each feature to the log of ``target`` over its unit, per row.

    Columns are the features and `BASE`; they sum to the trees' prediction. Raises PredictorError if
    the predictor lacks the target or is not an xgboost model, or ``rows`` lack a column. Only
    problem, configuration and device of ``rows`` are read.
    """
    tree = _boosted_trees(predictor, target)
    X = predictor.features_.transform(rows)
    if len(X) == 0:
        return X.assign(**{BASE: 0.0})
    xgboost = require("xgboost", "learn", "a predictor of boosted trees")

    threads = threads_for(len(X) * PREDICTIONS_PER_ROW)
    data = xgboost.DMatrix(X.to_numpy(), nthread=threads)
    tree.booster_.set_param({"nthread": threads})
    shares = tree.booster_.predict(data, pred_contribs=True).astype(np.float64)
    tree.booster_.set_param({"nthread": 1})
    return pd.DataFrame(shares, columns=[*X.columns, BASE], index=rows.index)


def importance(predictor: Predictor, target: Target = "time_ms") -> Importance:
    """Return the mean absolute contribution of every feature and feature group.

    It averages over at most `SAMPLES` successful training rows. Raises what `contributions` does.
    """
    _boosted_trees(predictor, target)  # refuses other models before rows are read
    rows = usable_rows(target, newest_runs(predictor.runs_))
    if len(rows) > SAMPLES:
        rows = rows.sample(SAMPLES, random_state=0)
    shares = _by_column(predictor.features_, contributions(predictor, rows, target))
    features = _mean_effects(shares, "feature")

    # Within a group, contributions of different signs cancel row by row, before the mean.
    group_of = feature_groups(predictor.features_, predictor.runs_)
    shares_of_group = shares.T.groupby(group_of).sum().T
    groups = _mean_effects(shares_of_group, "group")

    features.insert(1, "group", features["feature"].map(group_of))
    return Importance(features=features, groups=groups, rows=len(rows))


def compare(
    predictor: Predictor, rows: pd.DataFrame, a: int, b: int, target: Target = "time_ms"
) -> Comparison:
    """Explain why the run in row ``b`` is predicted faster or slower than that in row ``a``.

    Raises PredictorError: see `contributions`.
    """
    pair = rows.iloc[[a, b]]
    features = predictor.features_
    shares = _by_column(features, contributions(predictor, pair, target))
    values = _values(features, pair)
    group_of = feature_groups(features, predictor.runs_)

    # The trees predict the log of the target over its unit, as a sum of contributions: the log of
    # the ratio of B to A is the sum of their differences, and the difference of the units' logs.
    lines = []
    for name in shares:
        share_of_a, share_of_b = shares[name]
        value_of_a, value_of_b = values[name]
        lines.append((name, group_of[name], value_of_a, value_of_b, float(share_of_b - share_of_a)))
    scale = predictor.targets_[target].scale
    log_unit = scale.log_unit(features, pair) + scale.log_scale(pair)
    lines.append((UNIT, UNIT, None, None, float(log_unit[1] - log_unit[0])))

    table = pd.DataFrame(lines, columns=["feature", "group", "a", "b", "log"])
    table = table.sort_values("log", key=np.abs, ascending=False, kind="stable", ignore_index=True)
    factors = table.assign(factor=np.exp(table["log"])).drop(columns="log")
    predicted = predictor.predict(pair)[target].to_numpy()
    return Comparison(
        target=target,
        factors=factors,
        tree=float(np.exp(table["log"].sum())),
        predicted=float(predicted[1] / predicted[0]),
    )


def feature_groups(features: FeatureSet, runs: pd.DataFrame) -> dict[str, str]:
    """Return feature -> its group, a key of `FEATURE_GROUPS`."""
    first_row = Rows(runs.iloc[:1])
    geometry = launch_geometry(
        first_row.group("problem"), first_row.group("config"), first_row.group("device")
    )
    groups = {}
    for feature in features.columns_ or ():
        for name in (feature, _column(features, feature)):
            prefix, dot, _ = name.partition(".")
            if dot and prefix in FEATURE_GROUPS:
                groups[name] = prefix
            elif name in geometry:
                groups[name] = "geometry"
            else:
                groups[name] = "analytic"
    return groups


def parameter_importance(
    predictor: Predictor,
    problems: Iterable[Problem],
    space_of: Callable[[Problem], SearchSpace],
    device: Device,
) -> pd.DataFrame:
    """Return the factor by which each tunable parameter alone changes the predicted time.

    Partial dependence (Friedman, Annals of Statistics 29(5), 2001) over random configurations: one
    parameter at a time takes each of its values while the others stay. Illegal combinations are
    left out. It averages over the ``problems`` on ``device``, with `CONFIGURATIONS` in all;
    ``predictor`` knows ``time_ms``. Columns are ``parameter``, ``factor`` (slowest over fastest
    value, geometric means) and ``best`` (the fastest value), the largest factor first.
    """
    rng = np.random.default_rng(0)
    problems = list(problems)
    tables: dict[str, list[pd.DataFrame]] = {}
    for problem in problems:
        space = space_of(problem)
        n_bases = max(CONFIGURATIONS // len(problems), 1)
        bases = space.sample_indices(n_bases, rng)
        log_ms_of = _log_ms_by_value(predictor, problem, space, device, bases=bases)
        for name, log_ms in log_ms_of.items():
            tables.setdefault(name, []).append(log_ms)

    # The spaces of different problems may have different values: `concat` aligns them by value.
    rows = []
    for name, log_ms_of_problems in tables.items():
        factor, best = _value_effect(pd.concat(log_ms_of_problems))
        rows.append((name, factor, best))
    table = pd.DataFrame(rows, columns=["parameter", "factor", "best"])
    return table.sort_values("factor", ascending=False, kind="stable", ignore_index=True)


def _boosted_trees(predictor: Predictor, target: Target) -> BoostingModel:
    if target not in predictor.targets_:
        raise PredictorError(
            f"this predictor has no {target}: it predicts {', '.join(predictor.targets_)}"
        )
    tree = predictor.targets_[target].experts.tree
    if not isinstance(tree, BoostingModel):
        raise PredictorError(
            f"contributions need an xgboost model, but this predictor's is {predictor.model}: "
            "train one with --model xgboost"
        )
    return tree


def _column(features: FeatureSet, name: str) -> str:
    """Return the text column of an indicator feature, or the feature's name."""
    column = name.partition("=")[0]
    return column if column in features.categories_ else name


def _by_column(features: FeatureSet, shares: pd.DataFrame) -> pd.DataFrame:
    """Return contributions without the base, with the indicators of each text column summed."""
    without_base = shares.drop(columns=BASE)
    columns = [_column(features, name) for name in without_base]
    return without_base.T.groupby(columns, sort=False).sum().T


def _mean_effects(shares: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the mean magnitude of each column of ``shares``, the largest first."""
    mean = shares.abs().mean()
    table = pd.DataFrame({name: mean.index, "mean": mean.to_numpy(), "factor": np.exp(mean)})
    return table.sort_values("mean", ascending=False, kind="stable", ignore_index=True)


def _values(features: FeatureSet, pair: pd.DataFrame) -> dict[str, tuple[Any, Any]]:
    """Return each feature's values in two rows; those of a text column as text."""
    X = features.transform(pair)
    values: dict[str, tuple[Any, Any]] = {}
    for name in X:
        column = _column(features, name)
        is_indicator = column != name
        cells = as_array(pair[column]) if is_indicator else X[name].to_numpy()
        values[column] = (cells[0].item(), cells[1].item())
    return values


def _log_ms_by_value(
    predictor: Predictor, problem: Problem, space: SearchSpace, device: Device, *, bases: np.ndarray
) -> dict[str, pd.DataFrame]:
    """Return, per parameter, one row per base and one column per value; NaN if illegal.

    ``bases`` are indices of configurations in ``space``.
    """
    if not space.parameters:
        return {}
    codes_of_bases = space.codes_of(bases)
    n_values = [len(values) for values in space.parameters.values()]

    # Every base with each value of one parameter after the other.
    variants = []
    for column, n_choices in enumerate(n_values):
        codes = np.repeat(codes_of_bases, n_choices, axis=0)
        codes[:, column] = np.tile(np.arange(n_choices), len(bases))
        variants.append(codes)

    # Predict each legal configuration once: a base occurs among the variants of all parameters.
    indices = space.indices_of(np.concatenate(variants))
    is_legal = indices >= 0
    distinct, position = np.unique(indices[is_legal], return_inverse=True)
    predicted = predictor.predict_space(problem, space, device, distinct)["time_ms"].to_numpy()
    log_ms = np.full(len(indices), np.nan)
    log_ms[is_legal] = np.log(predicted)[position]

    ends = np.cumsum(n_values)[:-1] * len(bases)
    tables = {}
    for (name, values), part in zip(space.parameters.items(), np.split(log_ms, ends), strict=True):
        columns = pd.Index(values, dtype=object)
        tables[name] = pd.DataFrame(part.reshape(len(bases), -1), columns=columns)
    return tables


def _value_effect(log_ms: pd.DataFrame) -> tuple[float, Value]:
    """Return the factor between the slowest and fastest value, and the fastest value.

    Base and value effects are separated by least squares (alternating means). Plain column means
    would penalize values that are legal only in slow configurations.
    """
    # A base with a single legal value says nothing about the parameter.
    has_alternatives = log_ms.notna().sum(axis=1) > 1
    compared = log_ms[has_alternatives].dropna(axis=1, how="all")
    if compared.empty:
        return 1.0, log_ms.columns[0]

    # Model: cell = effect of its base + effect of its value. In turn, each effect is the mean of
    # what the other leaves.
    cells = compared.to_numpy()
    value_effect = np.zeros(cells.shape[1])
    for _ in range(SWEEPS):
        base_effect = np.nanmean(cells - value_effect, axis=1, keepdims=True)
        value_effect = np.nanmean(cells - base_effect, axis=0)
    factor = np.exp(np.ptp(value_effect))
    return float(factor), compared.columns[int(value_effect.argmin())]
