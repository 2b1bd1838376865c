"""Work as data: a kernel of which nothing is known but what its user says, as expressions."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np

from foretune.device import roofline_terms_ms
from foretune.errors import PredictorError, UsageError
from foretune.expression import Expression
from foretune.family import Cost, Family, Quantity
from foretune.features.families import formats
from foretune.features.families.tiles import cores_of, wave_features

FLOPS, BYTES = "flops", "bytes"
"""Columns ``problem.flops`` and ``problem.bytes`` are the work of kernels nobody knows."""


class UserDefinedCost(Family):
    """A family whose work is given by expressions over the columns of problem and configuration.

    Columns go by their short names; where both groups have a name, it is the problem's.

    Args:
        name: of the kernel.
        flops: operations of a launch, e.g. ``2 * M * N * K``.
        bytes_moved: bytes it must move, e.g. ``2 * (M * K + K * N + M * N)``.
        blocks: that are launched, e.g. ``-(-M // BLOCK_M) * -(-N // BLOCK_N)``; empty: not known.
        precision: of the operations, as in ``device.<precision>_gflops``; empty: that of the
            columns ``format`` or ``dtype``, else ``fp32``.

    Raises:
        SpaceError: an expression cannot be understood.
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
        """Return the kernel with the work that was given; None if none was.

        Raises:
            UsageError: only a part of it was.
        """
        if bool(flops) != bool(bytes_moved) or (blocks and not flops):
            raise UsageError("work is known by operations and bytes: give both")
        return cls(name, flops, bytes_moved, blocks) if flops else None

    def to_json(self) -> dict[str, str]:
        """Return the arguments beside the name."""
        return {**self.texts, "precision": self.precision}

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return what the expressions say.

        Raises:
            KeyError: a column that they use is missing.
            PredictorError: one cannot be evaluated, as it calculates with text.
        """
        kind = config.get("format", problem.get("dtype", "fp32"))
        return Cost(
            flops=self._value("flops", problem, config),
            bytes_moved=self._value("bytes_moved", problem, config),
            dtype=self.precision or formats.compute_dtype(kind),
        )

    def derived(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return the waves of blocks and how full they are, where blocks are given."""
        if "blocks" not in self._expressions:
            return {}
        return wave_features("blocks", self._value("blocks", problem, config), device)

    def launch_parts_ms(
        self, problem: Mapping[str, Any], config: Mapping[str, Any], device: Mapping[str, Any]
    ) -> dict[str, Quantity]:
        """Return operations by whole waves of blocks, and bytes; nothing without blocks."""
        if "blocks" not in self._expressions:
            return {}
        waves = self._value("blocks", problem, config) / cores_of(device)
        compute, memory = roofline_terms_ms(self.cost(problem, config), device)
        return {"operations": compute * np.ceil(waves) / waves, "memory": memory}

    def _value(
        self, which: str, problem: Mapping[str, Any], config: Mapping[str, Any]
    ) -> np.ndarray:
        rule = self._expressions[which]
        columns = {}
        for name in rule.names:
            group = problem if name in problem else config
            if name not in group:
                raise KeyError(f"problem.{name}")
            columns[name] = np.atleast_1d(group[name])
        value: np.ndarray = rule.evaluate(columns)
        if (value < 0).any():
            raise PredictorError(f"{which} {rule.text!r} is less than nothing in some rows")
        return value
