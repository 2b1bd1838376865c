"""Predicts an operator on a device, without training.

    answer = foretune.predict_operator("gemm", "RTX 4090", M=4096, N=4096, K=4096)

1. A shipped model gives the time on any GPU (`shipped_model`).
2. Rows that were measured on the device correct it: the engines' tables (extra ``llm``), and the
   user's own (`correction`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from foretune.device import Device, find_device_or_none, known_devices
from foretune.device_names import BRANDS
from foretune.errors import UnknownName, UsageError, require_known
from foretune.plan.describe.catalog import resolve_system
from foretune.plan.describe.formats import supported
from foretune.plan.describe.machine_names import split_count
from foretune.plan.describe.system import System
from foretune.plan.operators.correction import Corrected, Correction, nearest_rows
from foretune.plan.operators.measured_rows import MeasuredRows, table_rows, user_rows
from foretune.plan.operators.operator_features import ENGINES, LAUNCH_MS
from foretune.plan.operators.question import Question, read_question
from foretune.plan.operators.shipped_model import (
    NEAR_OCTAVES,
    MeasuredSystem,
    OperatorModel,
    nearest_systems,
    shipped_card,
    shipped_model,
)

Source = Literal["measured", "interpolated", "corrected", "predicted"]
EXACT_OCTAVES = 1e-6
"""A row within this distance is the operator itself."""
INTERPOLATION_OCTAVES = 1.0
"""Octaves to a measured row within which a time counts as interpolated."""
MAX_NEAREST = 3
"""Measured systems that an answer names."""
SIZE_OFFSETS = {"problem.prefix_len": 64.0, "problem.window": 64.0}
"""Added to sizes that may be 0."""
LAUNCH_SHARE = 0.5
"""An operator is limited by its launch if its limits take less than this share of its time."""


@dataclass(frozen=True)
class OperatorAnswer:
    """What an operator costs on a device.

    Attributes:
        operator: its name.
        sizes: by name.
        format: number format; empty for exchanges.
        device: the GPU's full name.
        engine: the engine whose kernels are meant.
        time_ms: milliseconds of one run.
        time_ms_low, time_ms_high: 90 % interval.
        power_w: watts; None where no table has power.
        bottleneck: ``compute``, ``memory``, ``links`` or ``launch``.
        limit_share: share of the limit that is reached: roofline over time.
        source: ``measured``; ``interpolated`` between measured rows; ``corrected`` by them from
            further away; ``predicted`` on a device never measured.
        nearest: measured systems that the answer rests on, nearest first.
        note: what makes the answer unsure; empty if nothing does.
    """

    operator: str
    sizes: Mapping[str, float]
    format: str
    device: str
    engine: str
    time_ms: float
    time_ms_low: float
    time_ms_high: float
    power_w: float | None
    bottleneck: str
    limit_share: float
    source: Source
    nearest: tuple[MeasuredSystem, ...]
    note: str


def predict_operator(
    operator: str,
    on: str | Device,
    sizes: Mapping[str, Any] | None = None,
    *,
    engine: str = "vllm",
    operators: Path | str | None = None,
    **more_sizes: Any,
) -> OperatorAnswer:
    """Return what an operator costs on a GPU, without training and without running it.

    Args:
        operator: ``gemm``, ``attention``, ``mla``, ``experts``, ``norm``, ``softmax``,
            ``elementwise``, ``all_reduce``, …: see `foretune.plan.operators.operator_specs`.
        on: any GPU's name, a measured system's (``h100_sxm``), or a device.
        sizes: sizes and formats by name, like ``{"M": 4096, …, "dtype": "fp8"}``; also as keywords.
        engine: ``vllm``, ``sglang`` or ``trtllm``, whose kernels are meant.
        operators: folder of ``foretune collect --operators`` with rows measured on the device.
        **more_sizes: sizes and formats, as in ``sizes``.

    Raises UnknownName for an operator, a size or a device that is unknown, UsageError for a format
    that the device lacks.
    """
    question = read_question(operator, {**(sizes or {}), **more_sizes})
    folder = Path(operators) if operators is not None else None
    return predict_questions([question], on, engine=engine, operators=folder)[0]


def predict_questions(
    questions: Sequence[Question],
    on: str | Device,
    *,
    engine: str = "vllm",
    operators: Path | None = None,
) -> list[OperatorAnswer]:
    """Return the answers of several questions about one operator."""
    require_known("engine", engine, ENGINES)
    system = _system(on)
    for question in questions:
        _require_possible(question, system)
    first = questions[0]
    known = _KnownOperator.read(first, system, engine, operators)
    return [_answer(question, system, engine, known) for question in questions]


@dataclass(frozen=True)
class _KnownOperator:
    """The measured rows and the models of an operator on a system."""

    model: OperatorModel
    rows: MeasuredRows | None
    nearest: tuple[MeasuredSystem, ...]

    @classmethod
    def read(
        cls, question: Question, system: System, engine: str, folder: Path | None
    ) -> "_KnownOperator":
        kernel = question.spec.kernel
        model = shipped_model(kernel)
        rows = table_rows(kernel, system.name, engine)
        if folder is not None:
            own_rows = user_rows(folder, kernel, system.name)
            if own_rows is None:
                raise UsageError(f"{folder} has no {kernel} measured on {system.device.name}")
            rows = own_rows
        systems = {name: known_devices()[shipped_card()["systems"][name]] for name in model.systems}
        return cls(model=model, rows=rows, nearest=tuple(nearest_systems(system.device, systems)))


def _answer(
    question: Question, system: System, engine: str, known: _KnownOperator
) -> OperatorAnswer:
    # 1. The shipped model, as on a device that was never measured.
    times = known.model.predict(
        question.problem, question.config, system.device, engine, system.intra_node_gbps
    )
    _require_memory(question, system, float(times.limits_ms[0, 1]))
    log_ms = float(times.log_ms[0])
    octaves = known.nearest[0].octaves
    half_width = known.model.half_width_on(octaves)
    source: Source = "predicted"
    note = _unmeasured_note(question, known, system)

    # 2. Rows of the device correct it.
    if known.rows is not None:
        corrected = _correction(question, system, engine, known.model, known.rows)
        log_ms += corrected.log_ratio
        half_width = min(half_width, corrected.half_width)
        if corrected.nearest < EXACT_OCTAVES:
            source = "measured"
        elif corrected.nearest < INTERPOLATION_OCTAVES:
            source = "interpolated"
        else:
            source = "corrected"
        note = ""

    # 3. What limits it: the larger limit, or the launch if both take little of the time.
    ms = float(np.exp(log_ms))
    compute_ms, memory_ms = (float(limit) for limit in times.limits_ms[0])
    limit_ms = max(compute_ms, memory_ms)
    if limit_ms < LAUNCH_SHARE * ms and ms < 1.0 / LAUNCH_SHARE * (limit_ms + 4 * LAUNCH_MS):
        bottleneck = "launch"
    elif compute_ms > memory_ms:
        bottleneck = "compute"
    else:
        bottleneck = "links" if question.spec.between_devices else "memory"
    return OperatorAnswer(
        operator=question.operator,
        sizes=dict(question.sizes),
        format=question.format if question.spec.formats else "",
        device=system.device.name,
        engine=engine,
        time_ms=ms,
        time_ms_low=float(np.exp(log_ms - half_width)),
        time_ms_high=float(np.exp(log_ms + half_width)),
        power_w=_watts(question, system, ms),
        bottleneck=bottleneck,
        limit_share=limit_ms / ms,
        source=source,
        nearest=known.nearest[:MAX_NEAREST],
        note=note,
    )


def _correction(
    question: Question, system: System, engine: str, model: OperatorModel, rows: MeasuredRows
) -> Corrected:
    """Return the correction of a question by measured rows."""
    # Rows and question in octaves of the same sizes; texts are groups.
    asked = {
        **{f"problem.{name}": value for name, value in question.problem.items()},
        **{f"config.{name}": value for name, value in question.config.items()},
    }
    number_names = [n for n, v in asked.items() if not isinstance(v, str) and n in rows.columns]
    text_names = [n for n, v in asked.items() if isinstance(v, str) and n in rows.columns]
    offsets = np.array([SIZE_OFFSETS.get(name, 0.0) for name in number_names])
    sizes = np.column_stack([rows.columns[name] for name in number_names])
    coordinates = np.log2(np.nan_to_num(sizes) + offsets + 1e-9)
    here = np.log2(np.array([float(asked[name]) for name in number_names]) + offsets + 1e-9)
    groups = _groups([rows.columns[name] for name in text_names], len(rows.ms))
    group = _group_of(rows, text_names, groups, asked)

    # The model's error on the nearest rows.
    nearest = nearest_rows(coordinates, groups, here, group)
    near = rows.at(nearest)
    problem = {**_constant(question.problem, len(nearest)), **near.group("problem.")}
    config = {**_constant(question.config, len(nearest)), **near.group("config.")}
    predicted = model.predict(problem, config, system.device, engine, system.intra_node_gbps)
    correction = Correction(
        coordinates=coordinates[nearest],
        groups=groups[nearest],
        log_ratio=np.log(near.ms) - predicted.log_ms,
    )
    return correction.at(here, group)


def _constant(values: Mapping[str, Any], count: int) -> dict[str, np.ndarray]:
    return {name: np.full(count, value) for name, value in values.items()}


def _groups(texts: Sequence[np.ndarray], count: int) -> np.ndarray:
    """Return the number of each row's combination of texts."""
    if not texts:
        return np.zeros(count, dtype=int)
    joined = texts[0]
    for text in texts[1:]:
        joined = np.char.add(np.char.add(joined, "/"), text)
    return np.asarray(np.unique(joined, return_inverse=True)[1])


def _group_of(
    rows: MeasuredRows, names: Sequence[str], groups: np.ndarray, asked: Mapping[str, Any]
) -> int:
    """Return the group of the question; -1 if no row has its formats."""
    same = np.full(len(groups), True)
    for name in names:
        same &= rows.columns[name] == str(asked[name])
    return int(groups[same][0]) if same.any() else -1


def _system(on: str | Device) -> System:
    """Return the system that a user names; raises UnknownName or UsageError."""
    if isinstance(on, Device):
        return System.from_device(on)
    _, name = split_count(on)
    try:
        system = resolve_system(on)
    except UnknownName:
        device = find_device_or_none(name)
        if device is None:
            raise UnknownName("device", name, _short_names(), "or any other GPU's name") from None
        if device.kind == "gpu":
            raise
        system = System.from_device(device)
    if system.device.kind != "gpu":
        raise UsageError(f"{system.device.name} is no GPU: 'foretune collect' measures a CPU")
    return system


def _short_names() -> list[str]:
    """Return the GPUs of the spec table as people call them: without maker and brand."""
    gpus = [device for device in known_devices().values() if device.kind == "gpu"]
    return [
        " ".join(word for word in gpu.name.split() if word.lower() not in BRANDS) for gpu in gpus
    ]


def _require_possible(question: Question, system: System) -> None:
    """Raise UsageError for what the device cannot run."""
    device = system.device
    if not question.spec.formats:
        return
    for name in {question.format, question.kv_format or question.format}:
        if name == "fp16" and device.specs.get("fp16_gflops"):
            continue
        if supported(name, device.architecture) == "no":
            raise UsageError(
                f"{device.name} ({device.architecture}) has no kernels for {name}: "
                "choose another dtype"
            )


def _require_memory(question: Question, system: System, memory_ms: float) -> None:
    """Raise UsageError if the operands, which move ``memory_ms`` at full rate, do not fit."""
    if question.spec.between_devices:
        if question.sizes["devices"] > system.fast_domain_gpus:
            raise UsageError(
                f"{question.sizes['devices']:g} devices are more than the {system.fast_domain_gpus}"
                f" of a node of {system.name}: give at most as many, or plan with 'foretune plan'"
            )
        return
    gib = memory_ms * system.device.specs.get("memory_gbps", float("nan")) * 1e6 / 2**30
    if gib > system.memory_gib > 0:
        raise UsageError(
            f"its operands take {gib:,.0f} GiB, and {system.device.name} has "
            f"{system.memory_gib:.0f}: give smaller sizes"
        )


def _unmeasured_note(question: Question, known: _KnownOperator, system: System) -> str:
    """Return in words why an answer without rows of the device is unsure."""
    nearest = known.nearest[0]
    if nearest.device == system.device.name:
        note = "predicted as if never measured: install the extra llm for its measured rows"
    elif nearest.octaves <= NEAR_OCTAVES:
        note = f"never measured; {nearest.device} is like it"
    else:
        note = "never measured, and no measured GPU is like it"
    if question.spec.between_devices and system.assumptions:
        note += f"; links of {system.intra_node_gbps:g} GB/s are assumed"
    formats = known.model.formats
    if formats and question.measured_format not in formats:
        note += f"; no GPU was measured in {question.format}"
    return note


def _watts(question: Question, system: System, ms: float) -> float | None:
    """Return the power on a system whose power was metered, else None."""
    from foretune.plan.operators.metered_power import metered_watts

    return metered_watts(question, system, ms)
