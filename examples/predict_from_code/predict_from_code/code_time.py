"""Predicts the time of a CPU kernel from its code: core cycles and moved cache lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.device import Device
from foretune.errors import PredictorError
from foretune.kernel import Kernel
from foretune.problem import Problem
from foretune.space import SearchSpace
from foretune.support.files import StrPath, read_json

SHIPPED = Path(__file__).parent / "code_time.json"
MAX_CONFIGURATIONS = 1000  # every configuration is compiled: larger spaces are refused
COSTS = ("cycles", "l1", "l2", "l3", "call")  # cycles, lines that enter each cache, and calls
OVERLAP = 4.0  # exponent of the norm that joins core and memory where they overlap


@dataclass(frozen=True)
class CodeTime:
    """Costs in ns of the counts from `predict_from_code.calls.count_code`.

    They were measured on ``device``. For kernels that were left out of the fit, 90 % of the runs
    are within ``factor`` of the prediction.
    """

    costs: Mapping[str, float]
    device: str = ""
    factor: float = float("nan")

    def predict(self, counts: pd.DataFrame) -> np.ndarray:
        """Return the milliseconds of each call."""
        costs = np.array([self.costs[name] for name in COSTS])
        table = counts.reindex(columns=list(COSTS[:-1])).fillna(0.0).to_numpy(float)
        core, memory = table[:, 0] * costs[0] + costs[-1], table[:, 1:] @ costs[1:-1]
        overlapped = (core**OVERLAP + memory**OVERLAP) ** (1 / OVERLAP)
        # between full overlap of core and memory, and none
        return np.asarray((overlapped + core + memory) / 2) / 1e6

    @classmethod
    def load(cls, path: StrPath = SHIPPED) -> Self:
        """Return the costs in a file; raise PredictorError if it holds none."""
        content: dict[str, Any] = read_json(path)
        try:
            costs = {name: float(content["costs"][name]) for name in COSTS}
            return cls(costs, str(content["device"]), float(content["factor"]))
        except (KeyError, TypeError, ValueError) as e:
            raise PredictorError(
                f"{path} holds no costs of code: measure/measure_costs.py --out writes them"
            ) from e


@dataclass(eq=False)
class CodePredictor:
    """Predicts the configurations of a CPU kernel from their code (a `SpacePredictor`)."""

    kernel: Kernel  # a Numba function or a source in C or C++
    model: CodeTime = field(default_factory=CodeTime.load)

    def predict_space(
        self,
        problem: Problem,
        space: SearchSpace,
        device: Device,
        indices: np.ndarray | None = None,
    ) -> pd.DataFrame:
        """Return time and 90 % interval per configuration; NaN if its code does not compile.

        Raises PredictorError if there are too many configurations to compile.
        """
        from predict_from_code.calls import cache_bytes, code_of, count_code

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
        return pd.DataFrame(
            {
                "time_ms": ms,
                "time_ms_low": ms / self.model.factor,
                "time_ms_high": ms * self.model.factor,
            }
        )
