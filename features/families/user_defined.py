"""A cost model given by user expressions."""

from typing import Self

import numpy as np

from foretune.device import roofline_terms_ms
from foretune.errors import PredictorError, UsageError
from foretune.family import Cells, Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import cores_of, wave_features
from foretune.support.expression import Expression

FLOPS, BYTES = "flops", "bytes"
"""``problem.flops`` and ``problem.bytes`` define the work of unknown kernels."""


class UserDefinedCost(Family):
    """A family whose cost is given by expressions over problem and configuration columns.

    Columns have their short names; a problem column hides a configuration column of the same name.
    Raises SpaceError if an expression is invalid.

    Args:
        flops: operations per launch, e.g. ``2 * M * N * K``.
        bytes_moved: bytes moved per launch, e.g. ``2 * (M * K + K * N + M * N)``.
        blocks: launched blocks, e.g. ``-(-M // BLOCK_M) * -(-N // BLOCK_N)``; empty if unknown.
        precision: selects ``device.<precision>_gflops``; if empty, the column ``format`` or
            ``dtype`` gives it, else it is ``fp32``.
    """

    def __init__(
        self, name: str, flops: str, bytes_moved: str, blocks: str = "", precision: str = ""
    ) -> None:
        self.name = name
        self.precision = precision
        self.texts = {"flops": flops, "bytes_moved": bytes_moved, "blocks": blocks}
        self._expressions = {n: Expression(text, n) for n, text in self.texts.items() if text}

    @classmethod
    def from_expressions(
        cls, name: str, flops: str, bytes_moved: str, blocks: str = ""
    ) -> Self | None:
        """Return the family with the given work; None if no work is given.

        Raises UsageError if only part of the work is given.
        """
        if bool(flops) != bool(bytes_moved) or (blocks and not flops):
            raise UsageError("work needs operations and bytes: give both")
        return cls(name, flops, bytes_moved, blocks) if flops else None

    def to_json(self) -> dict[str, str]:
        """Return the constructor's arguments except the name."""
        return {**self.texts, "precision": self.precision}

    def cost(self, problem: Cells, config: Cells) -> Cost:
        """Evaluate the expressions."""
        kind = config.get("format", problem.get("dtype", "fp32"))
        return Cost(
            flops=self._value("flops", problem, config),
            bytes_moved=self._value("bytes_moved", problem, config),
            dtype=self.precision or formats.compute_dtype(kind),
        )

    def derived(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return the waves of blocks and their fill, if blocks are given."""
        if "blocks" not in self._expressions:
            return {}
        return wave_features("blocks", self._value("blocks", problem, config), device)

    def launch_parts_ms(self, problem: Cells, config: Cells, device: Cells) -> dict[str, Quantity]:
        """Return compute time in whole waves, and memory time; nothing without blocks."""
        if "blocks" not in self._expressions:
            return {}
        waves = self._value("blocks", problem, config) / cores_of(device)
        compute, memory = roofline_terms_ms(self.cost(problem, config), device)
        return {"operations": compute * np.ceil(waves) / waves, "memory": memory}

    def _value(self, which: str, problem: Cells, config: Cells) -> np.ndarray:
        rule = self._expressions[which]
        columns = {}
        for name in rule.names:
            group = problem if name in problem else config
            if name not in group:
                raise KeyError(f"problem.{name}")
            columns[name] = np.atleast_1d(group[name])
        value: np.ndarray = rule.evaluate(columns)
        if (value < 0).any():
            raise PredictorError(f"{which} {rule.text!r} is negative in some rows")
        return value
