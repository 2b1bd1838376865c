"""What one decorated kernel knows: memory, beliefs, knowledge; made when they are first needed."""

import dataclasses
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import triton

from foretune.collect.meters import find_meter, why_no_meter
from foretune.device import Device
from foretune.errors import ForetuneWarning
from foretune.objective import Objective
from foretune.tune.triton.belief import Beliefs
from foretune.tune.triton.call import Call
from foretune.tune.triton.configs import configuration_of
from foretune.tune.triton.knowledge import Knowledge
from foretune.tune.triton.memory import Memory
from foretune.tune.triton.options import Options
from foretune.tune.triton.tuning import Tuning


@dataclass(frozen=True)
class Offer:
    """A configuration for a call, and what is known of it.

    Attributes:
        config: the configuration.
        expected_loss: how much slower than the best of all it is expected to be, relative;
            infinite where it is certain to be far off, or failed.
        measured: its objective, in the objective's unit; NaN if it was not measured.
    """

    config: triton.Config
    expected_loss: float
    measured: float

    def __repr__(self) -> str:
        known = "" if np.isnan(self.measured) else f", measured={self.measured:.4g}"
        return f"Offer({self.config}, expected_loss={self.expected_loss:.3g}{known})"


class Brain:
    """Makes a `Tuning` of a call.

    Args:
        options: how to decide.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.memory = Memory(options)
        self.lock = threading.RLock()
        """Held by who judges or remembers, never while something is launched or compiled."""
        self._minds: dict[str, tuple[Options, Beliefs, Knowledge]] = {}

    def tuning(self, call: Call, configs: Sequence[triton.Config]) -> Tuning:
        """Return the choice among ``configs`` for a call."""
        options, beliefs, knowledge = self._mind(call)
        candidates = [configuration_of(c) for c in configs]
        return Tuning(call, candidates, options, self.memory, beliefs, knowledge)

    def _mind(self, call: Call) -> tuple[Options, Beliefs, Knowledge]:
        device = call.device
        if device.name not in self._minds:
            options = _measurable(self.options, device)
            beliefs = Beliefs(call.kernel, call.source, device, options)
            knowledge = Knowledge(device, options.goal, beliefs)
            self._minds[device.name] = options, beliefs, knowledge
        return self._minds[device.name]


def offers(tuning: Tuning, configs: Sequence[triton.Config]) -> list[Offer]:
    """Return ``configs`` with what is known of them, the one to take first."""
    judgement = tuning.judgement
    found = {configuration_of(c): c for c in configs}
    told = [np.isfinite(judgement.objective), np.isnan(judgement.objective)]
    kind = np.select(told, [0, 1], 2)
    unlikely = judgement.posterior.mean - np.log(judgement.p_valid)
    value = np.where(kind == 0, judgement.objective, unlikely)
    return [
        Offer(
            found[tuning.candidates.configs[i]],
            float(judgement.expected[i]),
            float(judgement.objective[i]),
        )
        for i in np.lexsort((value, kind))
    ]


def _measurable(options: Options, device: Device) -> Options:
    """Return ``options`` with an objective that can be measured on ``device``."""
    if not options.goal.needs_power or find_meter(device.kind, device.index) is not None:
        return options
    warnings.warn(
        f"objective {options.goal.value!r} needs a power meter ({why_no_meter(device.kind)}): "
        "time is minimised instead",
        ForetuneWarning,
        stacklevel=2,
    )
    return dataclasses.replace(options, objective=Objective.TIME)
