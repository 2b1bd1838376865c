"""What all calls of one decorated kernel share: its history, its priors, what was fitted to it."""

import dataclasses
import threading
import warnings
from collections.abc import Sequence

from foretune.collect.meters import explain_missing_meter, find_meter
from foretune.device import Device
from foretune.errors import ForetuneWarning
from foretune.objective import Objective
from foretune.search.transfer import Fits
from foretune.space import Configuration
from foretune.tune.triton.call import Call
from foretune.tune.triton.history import KernelHistory
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import PriorFactory
from foretune.tune.triton.tuning import CallTuner


class CallTunerFactory:
    """Makes the `CallTuner` of a call.

    Args:
        options: how to decide.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.history = KernelHistory(options)
        self.lock = threading.RLock()
        """Held by who chooses or remembers, never while something is launched or compiled."""
        self._per_device: dict[str, tuple[Options, PriorFactory, Fits]] = {}

    def make_tuner(self, call: Call, candidates: Sequence[Configuration]) -> CallTuner:
        """Return the choice among ``candidates`` for a call."""
        device = call.device
        if device.name not in self._per_device:
            options = _with_measurable_objective(self.options, device)
            priors = PriorFactory(call.kernel, call.source, device, options)
            self._per_device[device.name] = options, priors, {}
        options, priors, fits = self._per_device[device.name]
        return CallTuner(call, candidates, options, self.history, priors, fits)


def _with_measurable_objective(options: Options, device: Device) -> Options:
    """Return ``options`` with an objective that can be measured on ``device``."""
    if (
        not options.parsed_objective.needs_power
        or find_meter(device.kind, device.index) is not None
    ):
        return options
    warnings.warn(
        f"objective {options.parsed_objective.value!r} needs a power meter ({explain_missing_meter(device.kind)}): "
        "time is minimised instead",
        ForetuneWarning,
        stacklevel=2,
    )
    return dataclasses.replace(options, objective=Objective.TIME)
