"""Stock autotuners' measurements into the store."""

import inspect
import math
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import triton

from foretune.errors import ForetuneWarning
from foretune.lazy import require
from foretune.measurement import Measurement, Status
from foretune.tune.store import Store
from foretune.tune.triton.autotuner import Autotuner
from foretune.tune.triton.history import KernelHistory
from foretune.tune.triton.kernel import to_configuration
from foretune.tune.triton.options import Options
from foretune.tune.triton.problem_key import Call, make_call

if TYPE_CHECKING:
    import os

    from foretune.tune.store import Store


class ListenerRecorder:
    """Writes down what others measure.

    Args:
        store: where.
    """

    def __init__(self, store: Store | str | os.PathLike[str] | None) -> None:
        self._history = KernelHistory(Options(store=store))

    def record(self, event: Mapping[str, Any], caller: Mapping[str, Any]) -> None:
        """Remember one tuning.

        Args:
            event: what the listener was told.
            caller: local names of the tuner's `run`; without them the problem is just the key.
        """
        tuner = caller.get("self")
        if event["cache_hit"] or tuner is None or tuner.nargs is None:
            return
        if isinstance(tuner, Autotuner):  # it remembers by itself
            return
        call = make_call(event["fn"], tuner.keys, tuner.nargs, caller.get("kwargs", {}))
        runs = [_measurement(call, config, t) for config, t in event["configs_timings"].items()]
        self._history.record(call, runs)


def _measurement(call: Call, config: triton.Config, timing: Any) -> Measurement:
    named = to_configuration(config)
    times = [float(t) for t in np.ravel(timing)]
    if not math.isfinite(times[0]):
        return call.failure(named, Status.INVALID, "does not run")
    programs = call.programs(named)
    static = {} if math.isnan(programs) else {"programs": programs}
    return call.success(named, times[0], times, static=static, source="triton.autotune")


def listen(store: "Store | str | os.PathLike[str] | None" = None) -> Callable[[], None]:
    """Add what every autotuner of this process measures to a tuning store, from now on.

    ``foretune store`` lists it, ``foretune train`` learns from it, and kernels that are tuned by
    `foretune.autotune` start with it. A listener that is there already is called as before.

    Args:
        store: path or URL; None is the user's own.

    Returns:
        what ends it.

    Raises:
        UsageError: this Triton tells nobody (before 3.7).
    """
    require("triton", "gpu", "listening to autotuners")
    import triton

    from foretune.errors import UsageError

    knobs = triton.knobs.autotuning
    if not hasattr(knobs, "listener"):
        raise UsageError(f"Triton {triton.__version__} has no listener: install 3.7 or newer")
    before = knobs.listener
    recorder = ListenerRecorder(store)

    def on_autotuning(**event: Any) -> None:
        if before is not None:
            before(**event)
        try:
            recorder.record(event, _caller_locals())
        except Exception as e:  # of ours: the tuning that was heard goes on
            warnings.warn(f"a tuning was not written down: {e}", ForetuneWarning, stacklevel=2)

    def undo() -> None:
        knobs.listener = before

    knobs.listener = on_autotuning
    return undo


def _caller_locals() -> Mapping[str, Any]:
    """Return the local names of the tuner's method that called the listener; none if not found."""
    frame = inspect.currentframe()
    for _ in range(4):
        frame = frame.f_back if frame is not None else None
        if frame is not None and hasattr(frame.f_locals.get("self"), "nargs"):
            return dict(frame.f_locals)
    return {}
