"""A trial: one start of a server with a setting, and what it showed under all loads."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import isfinite, nan
from typing import Any

from foretune.errors import UsageError
from foretune.measurement import Measurement, Status
from foretune.plan.prove.figures import LoadFigures
from foretune.plan.prove.load import Load
from foretune.plan.prove.prediction import NOISE, Promise
from foretune.plan.prove.score import best_load
from foretune.plan.serve.requirements import Requirements
from foretune.problem import Problem
from foretune.space import Configuration

KERNEL = "serve"
"""Kernel of a trial's measurement in the store."""
SEPARATOR = "."


@dataclass(frozen=True)
class PlainFigures:
    """Figures of one load as numbers."""

    ttft_ms: float
    tpot_ms: float
    tokens_per_s: float


@dataclass(frozen=True)
class Trial:
    """One start of a server, or one look at a server that was running.

    Attributes:
        number: from 1 on, in order of time.
        config: the setting.
        command: what was started, as shell text at the usual port; trials take a free one. The
            address of a server that was running.
        promises: load -> what was expected before the start.
        proofs: load -> what was measured.
        reason: why nothing, or not everything, was measured; empty if all was.
        started_s: seconds until the server was healthy; NaN if it never was, or was running.
        seconds: of the whole trial.
        memory_gib: measured memory under load; NaN if unknown.
        promised_gib: predicted memory.
        log: file with the server's output; empty for a running server.
        disturbance: what else kept the machine busy, in words.
    """

    number: int
    config: Configuration
    command: str
    promises: Mapping[Load, Promise]
    proofs: Mapping[Load, LoadFigures]
    reason: str = ""
    started_s: float = nan
    seconds: float = nan
    memory_gib: float = nan
    promised_gib: float = nan
    log: str = ""
    disturbance: str = ""

    @property
    def ok(self) -> bool:
        """Whether at least one load was measured."""
        return bool(self.proofs)

    @property
    def figures(self) -> dict[Load, PlainFigures]:
        """The measured figures of each load."""
        return {
            load: PlainFigures(**{name: getattr(shown, name).value for name in NOISE})
            for load, shown in self.proofs.items()
        }

    def score(self, requirements: Requirements) -> float:
        """Return the score of the best load; infinite if nothing was measured."""
        by_name = {load.key: shown for load, shown in self.figures.items()}
        return best_load(by_name, requirements)[1]

    def to_json(self) -> dict[str, Any]:
        """Return plain values; unknown ones are None."""
        loads = list(self.promises) or list(self.proofs)
        rows = []
        for load in loads:
            promise = self.promises.get(load)
            proof = self.proofs.get(load)
            rows.append(
                {
                    "load": load.name,
                    "promised": None if promise is None else _known(asdict(promise)),
                    "proven": None if proof is None else _proof_to_json(proof),
                }
            )
        facts = _known(
            {
                "started_s": self.started_s,
                "seconds": self.seconds,
                "memory_gib": self.memory_gib,
                "promised_gib": self.promised_gib,
            }
        )
        return {
            "number": self.number,
            "setting": dict(self.config),
            "command": self.command,
            "loads": rows,
            "reason": self.reason,
            **facts,
            "log": self.log,
            "disturbance": self.disturbance,
        }

    def to_measurement(
        self, problem: Problem, device: str, requirements: Requirements
    ) -> Measurement:
        """Return the trial as a row of the store: its time is the score, `static` the figures."""
        if not self.ok:
            return Measurement(
                kernel=KERNEL,
                problem=problem,
                config=self.config,
                device=device,
                status=Status.RUNTIME_ERROR,
                error=self.reason,
            )
        static = {
            f"{load.key}{SEPARATOR}{name}": value
            for load, shown in self.figures.items()
            for name, value in asdict(shown).items()
            if isfinite(value)
        }
        return Measurement(
            kernel=KERNEL,
            problem=problem,
            config=self.config,
            device=device,
            status=Status.OK,
            time_ms=self.score(requirements),
            static=static,
            error=self.reason,
        )


def stored_figures(measurement: Measurement, loads: list[Load]) -> dict[Load, PlainFigures]:
    """Return the figures of a trial in the store; loads that it lacks are missing."""
    found = {}
    for load in loads:
        values = {
            name: measurement.static.get(f"{load.key}{SEPARATOR}{name}", nan) for name in NOISE
        }
        if isfinite(values["tokens_per_s"]):
            found[load] = PlainFigures(**values)
    return found


def trial_problem(loads: list[Load], requirements: Requirements) -> Problem:
    """Return what trials must share to be compared: lengths, loads, goal and limits."""
    if not loads:
        raise UsageError("give at least one load")
    workload = loads[0].workload
    limits = {
        name: value
        for name, value in (("ttft", requirements.ttft_ms), ("tpot", requirements.tpot_ms))
        if isfinite(value)
    }
    return Problem(
        {
            "isl": workload.isl,
            "osl": workload.osl,
            "prefix": workload.prefix,
            "loads": " ".join(load.key for load in loads),
            "goal": requirements.goal,
            **limits,
        }
    )


def _proof_to_json(proof: LoadFigures) -> dict[str, Any]:
    """Return the figures with their intervals, the errors, and the engine's own metrics."""
    figures = {name: _known(asdict(getattr(proof, name))) for name in NOISE}
    return {
        **figures,
        "runs": [_known(asdict(run)) for run in proof.runs],
        "errors": dict(proof.errors),
        "engine": dict(proof.engine),
    }


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with None for NaN and infinity, which JSON lacks."""
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in values.items()
    }
