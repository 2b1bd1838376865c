"""Explanations: what each tunable parameter is worth, according to a predictor."""

from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.mapping import Value
from foretune.models.predictor import Predictor
from foretune.problem import Problem
from foretune.space import SearchSpace

_SWEEPS = 20


def parameter_importance(
    predictor: Predictor,
    problems: Iterable[Problem],
    space_of: Callable[[Problem], SearchSpace],
    device: Device,
    seed: int = 0,
    samples: int = 2000,
) -> pd.DataFrame:
    """Return by what factor each tunable parameter alone changes the predicted time.

    Partial dependence (Friedman, Annals of Statistics 29(5), 2001) over configurations drawn from
    the space: one parameter at a time is set to each of its values while the others stay, and
    combinations that are not legal are left out.

    Args:
        predictor: fitted; it must know time.
        problems: averaged over.
        space_of: the space of each problem.
        device: what is predicted for.
        seed: of the draw.
        samples: configurations drawn in all, shared among the problems.

    Returns:
        Columns ``parameter``, ``factor`` (slowest over fastest value, geometric means) and ``best``
        (the fastest value), the parameter that matters most first.
    """
    rng = np.random.default_rng(seed)
    problems = list(problems)
    tables: dict[str, list[pd.DataFrame]] = {}
    for problem in problems:
        space = space_of(problem)
        bases = space.sample_indices(max(samples // len(problems), 1), rng)
        for name, log_ms in _log_ms_by_value(predictor, problem, space, device, bases).items():
            tables.setdefault(name, []).append(log_ms)
    rows = [(name, *_value_effect(pd.concat(parts))) for name, parts in tables.items()]
    table = pd.DataFrame(rows, columns=["parameter", "factor", "best"])
    return table.sort_values("factor", ascending=False, kind="stable", ignore_index=True)


def _log_ms_by_value(
    predictor: Predictor,
    problem: Problem,
    space: SearchSpace,
    device: Device,
    bases: np.ndarray,
) -> dict[str, pd.DataFrame]:
    """Return per parameter one row per base and one column per value; NaN where not legal."""
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
    """Return the factor between the slowest and the fastest value, and the fastest value.

    A value that is legal only in slow company must not look slow itself: so base and value effects
    are separated (least squares, by alternating means) rather than columns averaged.
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
