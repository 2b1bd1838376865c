"""Writes what stock autotuners measure into a store."""

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import triton

from foretune.measurement import Measurement, Status
from foretune.tune.store import Store
from foretune.tune.triton.autotuner import Autotuner
from foretune.tune.triton.call_cache import CallCaches
from foretune.tune.triton.kernel import to_configuration
from foretune.tune.triton.options import Options
from foretune.tune.triton.problem_key import Call, make_call


class ListenerRecorder:
    """Writes the measurements of stock autotuners into a store."""

    def __init__(self, store: Store | str | os.PathLike[str] | None) -> None:
        self._caches = CallCaches(Options(store=store))

    def record(self, event: Mapping[str, Any], caller: Mapping[str, Any]) -> None:
        """Store one tuning.

        Args:
            event: arguments of the listener.
            caller: local variables of the tuner's `run`; the tuning is skipped if they are missing.
        """
        tuner = caller.get("self")
        if event["cache_hit"] or tuner is None or tuner.nargs is None:
            return
        if isinstance(tuner, Autotuner):  # stores its own measurements
            return
        call = make_call(event["fn"], tuner.keys, tuner.nargs, caller.get("kwargs", {}))
        runs = [_measurement(call, config, t) for config, t in event["configs_timings"].items()]
        self._caches.cache_of(call).append(*runs)


def _measurement(call: Call, config: triton.Config, timing: Any) -> Measurement:
    named = to_configuration(config)
    times = [float(t) for t in np.ravel(timing)]
    if not math.isfinite(times[0]):
        return call.failure(named, Status.INVALID, "does not run")
    programs = call.programs(named)
    static = {} if math.isnan(programs) else {"programs": programs}
    return call.success(named, times[0], times, static=static, source="triton.autotune")
