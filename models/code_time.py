"""Time of a CPU kernel from counts of its code: cycles of the core beside lines that are moved."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.errors import PredictorError
from foretune.files import StrPath, read_json
from foretune.kernel import Kernel
from foretune.problem import Problem
from foretune.space import SearchSpace

SHIPPED = Path(__file__).parent / "shipped" / "code_time.json"
MAX_CONFIGURATIONS = 1000
"""Every configuration is compiled: larger spaces are refused."""
CYCLE_NS = 0.27
"""Nanoseconds of a cycle before anything is measured."""
LINE_NS = {"l1": 0.4, "l2": 0.8, "l3": 2.7}
"""Nanoseconds of a line that enters a cache."""
CALL_NS = 5.4
COSTS = ("cycles", *LINE_NS, "call")
OVERLAP = 4.0
"""Exponent of the norm that joins core and memory where they overlap."""
PRIOR_WEIGHT = 3.0
"""How strongly the costs stay at those above: of as much weight as a row's relative error."""
COVERED = 0.9
"""Share of left-out runs within `CodeTime.factor`."""


@dataclass(frozen=True)
class CodeTime:
    """Costs of what `foretune.collect.compiled.llvm.calls.count_code` counts.

    Attributes:
        costs: nanoseconds by count.
        device: the CPU they were measured on.
        factor: 90 % of the runs of left-out kernels are within this factor of the prediction.
    """

    costs: Mapping[str, float]
    device: str = ""
    factor: float = float("nan")

    @classmethod
    def fit(
        cls, counts: pd.DataFrame, ms: np.ndarray, kernels: np.ndarray, device: str = ""
    ) -> Self:
        """Fit to rows of counts and ms of calls; every one of the ``kernels`` counts the same."""
        from scipy.optimize import least_squares

        start = np.log([CYCLE_NS, *LINE_NS.values(), CALL_NS])
        table, target = _table(counts), np.log(ms * 1e6)
        share = 1 / pd.Series(kernels).groupby(kernels).transform("size").to_numpy()
        weight = np.sqrt(share / share.mean())

        def residuals(log_costs: np.ndarray) -> np.ndarray:
            error = np.log(_nanoseconds(table, np.exp(log_costs))) - target
            return np.r_[np.arcsinh(3 * error) * weight, PRIOR_WEIGHT * (log_costs - start)]

        found = np.exp(least_squares(residuals, start, max_nfev=60).x)
        return cls(dict(zip(COSTS, found.tolist(), strict=True)), device)

    def predict(self, counts: pd.DataFrame) -> np.ndarray:
        """Return the milliseconds of each call."""
        costs = np.array([self.costs[name] for name in COSTS])
        return _nanoseconds(_table(counts), costs) / 1e6

    def save(self, path: Path) -> None:
        """Write JSON."""
        import json

        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: StrPath = SHIPPED) -> Self:
        """Return what `save` wrote.

        Raises PredictorError if the file holds no costs.
        """
        content: dict[str, Any] = read_json(path)
        try:
            costs = {name: float(content["costs"][name]) for name in COSTS}
            return cls(costs, str(content["device"]), float(content["factor"]))
        except (KeyError, TypeError, ValueError) as e:
            raise PredictorError(
                f"{path} holds no costs of code: benchmarks/from_code.py --out writes them"
            ) from e


class CodePredictor:
    """Predicts the configurations of a CPU kernel from their code (a `SpacePredictor`).

    Args:
        kernel: a Numba function or a source in C or C++.
        model: costs of the counts; None: those shipped.
    """

    def __init__(self, kernel: Kernel, model: CodeTime | None = None) -> None:
        self.kernel = kernel
        self.model = model or CodeTime.load()

    def predict_space(
        self,
        problem: Problem,
        space: SearchSpace,
        device: Device,
        indices: np.ndarray | None = None,
    ) -> pd.DataFrame:
        """Return time and 90 % interval per configuration; NaN where the code does not compile.

        Raises PredictorError if there are too many configurations to compile.
        """
        from foretune.collect.compiled.llvm.calls import cache_bytes, code_of, count_code

        selected = range(len(space)) if indices is None else indices.tolist()
        if len(selected) > MAX_CONFIGURATIONS:
            raise PredictorError(
                f"{len(selected):,} configurations are too many to compile: give fewer values"
            )
        caches, counts = cache_bytes(device), []
        for i in selected:
            try:
                counts.append(count_code(code_of(self.kernel, problem, space[i]), caches))
            except RuntimeError:
                counts.append({})
        table = pd.DataFrame(counts)
        ms = np.where(table.isna().all(axis=1), np.nan, self.model.predict(table))
        return pd.DataFrame({
            "time_ms": ms, "time_ms_low": ms / self.model.factor,
            "time_ms_high": ms * self.model.factor,
        })  # fmt: skip


def _table(counts: pd.DataFrame) -> np.ndarray:
    return counts.reindex(columns=list(COSTS[:-1])).fillna(0.0).to_numpy(float)


def _nanoseconds(table: np.ndarray, costs: np.ndarray) -> np.ndarray:
    """Return the time between full overlap of core and memory, and none."""
    core, memory = table[:, 0] * costs[0] + costs[-1], table[:, 1:] @ costs[1:-1]
    overlapped = (core**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
    return np.asarray((overlapped + core + memory) / 2)
