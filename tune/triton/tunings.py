"""What all calls of one decorated kernel share: its history, its priors, what was fitted to it."""

import dataclasses
import threading
import warnings
from collections.abc import Sequence

from foretune.collect.meters import find_meter, why_no_meter
from foretune.device import Device
from foretune.errors import ForetuneWarning
from foretune.objective import Objective
from foretune.search.transfer import Fits
from foretune.space import Configuration
from foretune.tune.triton.call import Call
from foretune.tune.triton.history import History
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import Priors
from foretune.tune.triton.tuning import Tuning


class Tunings:
    """Makes the `Tuning` of a call.

    Args:
        options: how to decide.
    """

    def __init__(self, options: Options) -> None:
        self.options = options
        self.history = History(options)
        self.lock = threading.RLock()
        """Held by who chooses or remembers, never while something is launched or compiled."""
        self._shared: dict[str, tuple[Options, Priors, Fits]] = {}

    def of(self, call: Call, candidates: Sequence[Configuration]) -> Tuning:
        """Return the choice among ``candidates`` for a call."""
        device = call.device
        if device.name not in self._shared:
            options = _measurable(self.options, device)
            priors = Priors(call.kernel, call.source, device, options)
            self._shared[device.name] = options, priors, {}
        options, priors, fits = self._shared[device.name]
        return Tuning(call, candidates, options, self.history, priors, fits)


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
