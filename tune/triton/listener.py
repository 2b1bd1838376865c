"""Records what stock Triton autotuners measure.

Triton calls ``knobs.autotuning.listener`` after every tuning, with the winner and all times but
without the call. The tuner is one frame up and has it.
"""

import inspect
import math
from collections.abc import Callable, Mapping
from itertools import islice
from traceback import walk_stack
from typing import TYPE_CHECKING, Any

from foretune.errors import UsageError, warn
from foretune.measurement import Measurement, Status
from foretune.support.lazy import require

if TYPE_CHECKING:
    from foretune.tune.store.fallible import StoreLocation
    from foretune.tune.triton.call_tuner import CallTunerFactory
    from foretune.tune.triton.problem_key import Call


MAX_FRAMES = 5
"""Frames between this module and the tuner's `run`, at most."""


def listen(store: "StoreLocation" = None) -> Callable[[], None]:
    """Store what Triton's autotuners in this process measure from now on.

    ``foretune store`` lists the measurements, ``foretune train`` learns from them, and
    `foretune.autotune` starts from them. An existing listener is still called. ``store`` is a path
    or URL; None is the user's own. Returns a function that stops listening. Raises UsageError if
    Triton is older than 3.7 and has no listener.
    """
    require("triton", "gpu", "listening to autotuners")
    import triton

    from foretune.tune.triton.call_tuner import CallTunerFactory
    from foretune.tune.triton.options import Options

    knobs = triton.knobs.autotuning
    if not hasattr(knobs, "listener"):
        raise UsageError(f"Triton {triton.__version__} has no listener: install 3.7 or newer")
    earlier_listener = knobs.listener
    factory = CallTunerFactory(Options(store=store))

    def on_autotuning(**event: Any) -> None:
        if earlier_listener is not None:
            earlier_listener(**event)
        try:
            _record(factory, event, _caller_locals())
        except Exception as e:  # our errors must not stop the tuning
            warn(f"a tuning was not stored: {e}")

    def undo() -> None:
        knobs.listener = earlier_listener

    knobs.listener = on_autotuning
    return undo


def _caller_locals() -> Mapping[str, Any]:
    """Return the local variables of the tuner's `run`; empty if it is not found."""
    for frame, _ in islice(walk_stack(inspect.currentframe()), MAX_FRAMES):
        if hasattr(frame.f_locals.get("self"), "nargs"):
            return dict(frame.f_locals)
    return {}


def _record(
    factory: "CallTunerFactory", event: Mapping[str, Any], caller: Mapping[str, Any]
) -> None:
    """Store a tuning, unless it is Foretune's own, whose measurements are already stored."""
    from foretune.tune.triton.autotuner import Autotuner
    from foretune.tune.triton.kernel import user_hook
    from foretune.tune.triton.problem_key import make_call

    tuner: Any = caller.get("self")
    if event["cache_hit"] or getattr(tuner, "nargs", None) is None or isinstance(tuner, Autotuner):
        return
    arguments = {**tuner.nargs, **caller.get("kwargs", {})}
    call = make_call(tuner.fn, tuner.keys, arguments, hook=user_hook(tuner))
    timings = event["configs_timings"]
    measurements = [_measurement(call, config, timing) for config, timing in timings.items()]
    factory.cache_of(call).append(*measurements)


def _measurement(call: "Call", config: Any, timing: Any) -> Measurement:
    """Return a configuration's measurement; ``timing`` is a time or quantiles, the median first."""
    from foretune.tune.triton.candidate_features import CandidateFeatures
    from foretune.tune.triton.kernel import to_configuration

    configuration = to_configuration(config)
    times_ms = list(timing) if isinstance(timing, (list, tuple)) else [float(timing)]
    median_ms = times_ms[0]
    if not math.isfinite(median_ms):
        return call.failure(configuration, Status.INVALID, "does not run")
    static = CandidateFeatures(call).of(configuration)
    return call.success(configuration, median_ms, times_ms, static=static, source="triton.autotune")
