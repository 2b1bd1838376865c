"""Predictions of operators on GPUs without measurements: a shipped model per kernel.

A model is boosted trees on log(time / roofline), learned from measured operators of ten GPUs. Its
intervals come from leaving each of these GPUs out: how far off was the model on a GPU like one that
it knew, and how far on one of another kind? ``shipped/card.json`` says what it learned from.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from io import BytesIO
from math import log2
from typing import Any

import numpy as np

from foretune.device import Device
from foretune.plan.operators.compact_trees import CompactTrees
from foretune.plan.operators.operator_features import (
    generation_number,
    operator_features,
)

EXCHANGES = ("all_reduce", "all_to_all", "all_gather", "reduce_scatter")
"""Kernels between devices."""
FOLDER = "shipped"
CARD = "card.json"
COMPARED_SPECS = ("memory_gbps", "bf16_gflops", "cores")
"""Specs that say how far apart two GPUs are."""
OTHER_GENERATION = 1.0
"""Octaves that another generation of units counts."""
OTHER_MAKER = 2.0
"""Octaves that another maker counts."""
NEAR_OCTAVES = 0.6
"""GPUs of one generation whose specs differ by less than this are siblings. Chosen on the pairs of
measured GPUs: H100 and H200 differ by 0.52 octaves."""


@dataclass(frozen=True)
class MeasuredSystem:
    """A measured system: its short name, its GPU and the octaves between it and another GPU."""

    name: str
    device: str
    octaves: float


@dataclass(frozen=True)
class LogTimes:
    """Predictions, one entry per row.

    Attributes:
        log_ms: log of milliseconds.
        unit: log milliseconds of a launch and its limits, see `OperatorFeatures.log_unit`.
        limits_ms: (rows, 2): operations over peak rate, and bytes over bandwidth.
    """

    log_ms: np.ndarray
    unit: np.ndarray
    limits_ms: np.ndarray


@dataclass(frozen=True)
class OperatorModel(ABC):
    """The model of one kernel.

    Attributes:
        kernel: its name in run tables.
        half_width: half of the interval in log time, on a sibling of a measured GPU (``near``) and
            on another one (``far``).
        systems: names of the measured systems that it knows.
        formats: formats that it knows; none if they do not matter.
    """

    kernel: str
    half_width: Mapping[str, float]
    systems: tuple[str, ...]
    formats: tuple[str, ...]

    @abstractmethod
    def predict(
        self,
        problem: Mapping[str, Any],
        config: Mapping[str, Any],
        device: Device,
        engine: str,
        link_gbps: float = float("nan"),
    ) -> LogTimes:
        """Return the times of operators; sizes are numbers, or arrays with an entry per row.

        ``link_gbps`` is the rate of a link between devices, which exchanges need.
        """

    def half_width_on(self, octaves: float) -> float:
        """Return half of the interval in log time on a GPU that far from a measured one."""
        return self.half_width["near" if octaves <= NEAR_OCTAVES else "far"]


@dataclass(frozen=True)
class TreeModel(OperatorModel):
    """Trees of log(time / unit); ``names`` are the columns that they read."""

    names: tuple[str, ...]
    trees: CompactTrees

    def predict(
        self,
        problem: Mapping[str, Any],
        config: Mapping[str, Any],
        device: Device,
        engine: str,
        link_gbps: float = float("nan"),
    ) -> LogTimes:
        """Return the times of operators, see `OperatorModel`."""
        features = operator_features(
            self.kernel,
            problem,
            config,
            device=rates_of(self.kernel, device.specs, link_gbps),
            generation=generation_number(device.architecture),
            engine=engine,
        )
        known = dict(zip(features.names, features.matrix.T, strict=True))
        missing = np.full(len(features.matrix), np.nan)
        matrix = np.column_stack([known.get(name, missing) for name in self.names])
        unit = features.log_unit
        return LogTimes(
            log_ms=unit + self.trees.predict(matrix), unit=unit, limits_ms=features.limits_ms
        )


@dataclass(frozen=True)
class BandwidthLaw(OperatorModel):
    """A launch, and bytes at a share of the bandwidth: for kernels that stream rows."""

    launch_ms: float
    bandwidth_share: float

    def predict(
        self,
        problem: Mapping[str, Any],
        config: Mapping[str, Any],
        device: Device,
        engine: str,
        link_gbps: float = float("nan"),
    ) -> LogTimes:
        """Return the times of operators, see `OperatorModel`."""
        features = operator_features(
            self.kernel,
            problem,
            config,
            device=device.specs,
            generation=generation_number(device.architecture),
            engine=engine,
        )
        ms = self.launch_ms + features.limits_ms[:, 1] / self.bandwidth_share
        return LogTimes(log_ms=np.log(ms), unit=features.log_unit, limits_ms=features.limits_ms)


def rates_of(kernel: str, specs: Mapping[str, Any], link_gbps: Any) -> dict[str, Any]:
    """Return a device's specs for a kernel: exchanges move bytes over links, not memory."""
    if kernel not in EXCHANGES:
        return dict(specs)
    return {**specs, "memory_gbps": link_gbps}


@cache
def shipped_card() -> dict[str, Any]:
    """Return what the shipped models learned from, and their errors."""
    text = files("foretune.plan.operators").joinpath(FOLDER, CARD).read_text(encoding="utf-8")
    card: dict[str, Any] = json.loads(text)
    return card


@cache
def shipped_model(kernel: str) -> OperatorModel:
    """Return the shipped model of a kernel."""
    card = shipped_card()["models"][kernel]
    systems = tuple(card["systems"])
    if "bandwidth_share" in card:
        return BandwidthLaw(
            kernel=kernel,
            half_width=card["half_width"],
            systems=systems,
            formats=(),
            launch_ms=card["launch_ms"],
            bandwidth_share=card["bandwidth_share"],
        )
    packed = files("foretune.plan.operators").joinpath(FOLDER, f"{kernel}.npz").read_bytes()
    with np.load(BytesIO(packed), allow_pickle=False) as arrays:
        trees = CompactTrees.from_arrays(dict(arrays))
    return TreeModel(
        kernel=kernel,
        half_width=card["half_width"],
        systems=systems,
        formats=tuple(card["formats"]),
        names=tuple(card["columns"]),
        trees=trees,
    )


def octaves_between(device: Device, other: Device) -> float:
    """Return how far apart two GPUs are.

    It is the largest log2 ratio of their specs, and a step each for another generation and another
    maker.
    """
    ratios = [
        abs(log2(device.specs[name] / other.specs[name]))
        for name in COMPARED_SPECS
        if device.specs.get(name) and other.specs.get(name)
    ]
    apart = max(ratios, default=OTHER_MAKER)
    if device.architecture[:2] != other.architecture[:2]:
        return apart + OTHER_MAKER
    if device.architecture != other.architecture and not _same_units(device, other):
        return apart + OTHER_GENERATION
    return apart


def _same_units(device: Device, other: Device) -> bool:
    """Return whether two NVIDIA GPUs differ in the minor number only, like sm_100 and sm_103.

    Not in 8: an A100 (8.0) and an L40S (8.9) have little in common.
    """
    numbers = {int(generation_number(d.architecture) or 0) for d in (device, other)}
    return len(numbers) == 1 and numbers != {8}


def nearest_systems(device: Device, systems: Mapping[str, Device]) -> list[MeasuredSystem]:
    """Return measured systems, given as name -> GPU, nearest first."""
    found = [
        MeasuredSystem(name=name, device=other.name, octaves=octaves_between(device, other))
        for name, other in systems.items()
    ]
    return sorted(found, key=lambda system: system.octaves)
