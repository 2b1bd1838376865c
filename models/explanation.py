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
from foretune.models.targets import Target, usable_rows
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.regressor import threads_for
from foretune.problem import Problem
from foretune.space import SearchSpace
from foretune.support.lazy import require
from foretune.values import Value

BASE = "base"  # column of the trees' mean prediction, equal in every row
UNIT = "calibrated roofline"  # line of the calibrated roofline's ratio of the two runs
SAMPLES = 500
"""Rows sampled for importances: accurate to a few percent, and fast enough for deep trees."""
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
_SWEEPS = 20
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
    known = predictor.targets_.get(target)
    return known is not None and isinstance(known.experts.tree, BoostingModel)


def contributions(
    predictor: Predictor, rows: pd.DataFrame, target: Target = "time_ms"
) -> pd.DataFrame:
    """Return the contribution of each feature to the log of ``target`` over its unit, per row.

    Columns are the features and `BASE`; they sum to the trees' prediction. Raises PredictorError if
    the predictor lacks the target or is not an xgboost model, or ``rows`` lack a column. Only
    problem, configuration and device of ``rows`` are read.
    """
    tree = _tree(predictor, target)
    X = predictor.features_.transform(rows)
    if len(X) == 0:
        return X.assign(**{BASE: 0.0})
    xgboost = require("xgboost", "learn", "a predictor of boosted trees")

    threads = threads_for(len(X) * 64)  # far more work per row than a prediction
    data = xgboost.DMatrix(X.to_numpy(), nthread=threads)
    tree.booster_.set_param({"nthread": threads})
    values = tree.booster_.predict(data, pred_contribs=True).astype(np.float64)
    tree.booster_.set_param({"nthread": 1})
    return pd.DataFrame(values, columns=[*X.columns, BASE], index=rows.index)


def importance(predictor: Predictor, target: Target = "time_ms") -> Importance:
    """Return the mean absolute contribution of every feature and feature group.

    It averages over at most `SAMPLES` successful training rows. Raises what `contributions` does.
    """
    _tree(predictor, target)
    rows = usable_rows(target, newest_runs(predictor.runs_))
    if len(rows) > SAMPLES:
        rows = rows.sample(SAMPLES, random_state=0)
    shares = _by_column(predictor.features_, contributions(predictor, rows, target))
    groups = feature_groups(predictor.features_, predictor.runs_)
    by_group = shares.T.groupby(groups).sum().T
    features = _means(shares, "feature")
    features.insert(1, "group", features["feature"].map(groups))
    return Importance(features, _means(by_group, "group"), len(rows))


def compare(
    predictor: Predictor, rows: pd.DataFrame, a: int, b: int, target: Target = "time_ms"
) -> Comparison:
    """Explain why the run in row ``b`` is predicted faster or slower than that in row ``a``.

    Raises PredictorError: see `contributions`.
    """
    pair = rows.iloc[[a, b]]
    shares = _by_column(predictor.features_, contributions(predictor, pair, target))
    known = predictor.targets_[target].scale
    unit = known.log_unit(predictor.features_, pair) + known.log_scale(pair)
    values = _values(predictor.features_, pair)
    groups = feature_groups(predictor.features_, predictor.runs_)
    lines = [
        (name, groups[name], *values[name], float(shares[name].iloc[1] - shares[name].iloc[0]))
        for name in shares
    ]
    lines.append((UNIT, UNIT, None, None, float(unit[1] - unit[0])))
    table = pd.DataFrame(lines, columns=["feature", "group", "a", "b", "log"])
    table = table.sort_values("log", key=np.abs, ascending=False, kind="stable", ignore_index=True)
    predicted = predictor.predict(pair)[target].to_numpy()
    return Comparison(
        target,
        table.assign(factor=np.exp(table["log"])).drop(columns="log"),
        tree=float(np.exp(table["log"].sum())),
        predicted=float(predicted[1] / predicted[0]),
    )


def feature_groups(features: FeatureSet, runs: pd.DataFrame) -> dict[str, str]:
    """Return feature -> its group, a key of `FEATURE_GROUPS`."""
    one = runs.iloc[:1]
    geometry = launch_geometry(*map(Rows(one).group, ("problem", "config", "device")))
    groups = {}
    for column in features.columns_ or ():
        for name in (column, _column(features, column)):
            prefix, dot, _ = name.partition(".")
            derived = "geometry" if name in geometry else "analytic"
            groups[name] = prefix if dot and prefix in FEATURE_GROUPS else derived
    return groups


def _column(features: FeatureSet, name: str) -> str:
    """Return the text column of an indicator feature, or the feature's name."""
    column = name.partition("=")[0]
    return column if column in features.categories_ else name


def _by_column(features: FeatureSet, shares: pd.DataFrame) -> pd.DataFrame:
    """Return contributions without the base, with the indicators of each text column summed."""
    shares = shares.drop(columns=BASE)
    columns = [_column(features, name) for name in shares]
    return shares.T.groupby(columns, sort=False).sum().T


def _tree(predictor: Predictor, target: Target) -> BoostingModel:
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


def _means(shares: pd.DataFrame, name: str) -> pd.DataFrame:
    mean = shares.abs().mean()
    table = pd.DataFrame({name: mean.index, "mean": mean.to_numpy(), "factor": np.exp(mean)})
    return table.sort_values("mean", ascending=False, kind="stable", ignore_index=True)


def _values(features: FeatureSet, pair: pd.DataFrame) -> dict[str, tuple[Any, Any]]:
    X = features.transform(pair)
    values: dict[str, tuple[Any, Any]] = {}
    for name in X:
        column = _column(features, name)
        cells = X[name].to_numpy() if column == name else as_array(pair[column])
        values[column] = (cells[0].item(), cells[1].item())
    return values


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
        bases = space.sample_indices(max(CONFIGURATIONS // len(problems), 1), rng)
        for name, log_ms in _log_ms_by_value(predictor, problem, space, device, bases).items():
            tables.setdefault(name, []).append(log_ms)
    rows = [(name, *_value_effect(pd.concat(parts))) for name, parts in tables.items()]
    table = pd.DataFrame(rows, columns=["parameter", "factor", "best"])
    return table.sort_values("factor", ascending=False, kind="stable", ignore_index=True)


def _log_ms_by_value(
    predictor: Predictor, problem: Problem, space: SearchSpace, device: Device, bases: np.ndarray
) -> dict[str, pd.DataFrame]:
    """Return, per parameter, one row per base and one column per value; NaN if illegal."""
    if not space.parameters:
        return {}
    shape = tuple(len(values) for values in space.parameters.values())
    variants = []
    for column, choices in enumerate(shape):
        codes = np.repeat(space.codes_of(bases), choices, axis=0)
        codes[:, column] = np.tile(np.arange(choices), len(bases))
        variants.append(codes)
    indices = space.indices_of(np.concatenate(variants))
    legal = indices >= 0
    distinct, position = np.unique(indices[legal], return_inverse=True)
    predicted = predictor.predict_space(problem, space, device, distinct)["time_ms"].to_numpy()
    log_ms = np.full(len(indices), np.nan)
    log_ms[legal] = np.log(predicted)[position]
    parts = np.split(log_ms, np.cumsum(shape)[:-1] * len(bases))
    return {
        name: pd.DataFrame(part.reshape(len(bases), -1), columns=pd.Index(values, dtype=object))
        for (name, values), part in zip(space.parameters.items(), parts, strict=True)
    }


def _value_effect(log_ms: pd.DataFrame) -> tuple[float, Value]:
    """Return the factor between the slowest and fastest value, and the fastest value.

    Base and value effects are separated by least squares (alternating means). Plain column means
    would penalize values that are legal only in slow configurations.
    """
    compared = log_ms[log_ms.notna().sum(axis=1) > 1].dropna(axis=1, how="all")
    if compared.empty:
        return 1.0, log_ms.columns[0]
    cells = compared.to_numpy()
    effect = np.zeros(cells.shape[1])
    for _ in range(_SWEEPS):
        base = np.nanmean(cells - effect, axis=1, keepdims=True)
        effect = np.nanmean(cells - base, axis=0)
    return float(np.exp(np.ptp(effect))), compared.columns[int(effect.argmin())]
