"""Records what stock Triton autotuners measure.

Triton calls ``knobs.autotuning.listener`` after every tuning, with the winner and all times but
without the call. The tuner is one frame up and has it.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from foretune.errors import ForetuneWarning
from foretune.lazy import require

if TYPE_CHECKING:
    import os

    from foretune.tune.store import Store


def listen(store: "Store | str | os.PathLike[str] | None" = None) -> Callable[[], None]:
    """Store what Triton's autotuners in this process measure from now on.

    ``foretune store`` lists the measurements, ``foretune train`` learns from them, and
    `foretune.autotune` starts from them. An existing listener is still called.

    Args:
        store: path or URL; None for the user's own.

    Returns:
        a function that ends it.

    Raises:
        UsageError: Triton is older than 3.7 and has no listener.
    """
    require("triton", "gpu", "listening to autotuners")
    import triton

    from foretune.errors import UsageError
    from foretune.tune.triton.listener_recorder import ListenerRecorder

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
        except Exception as e:  # our errors must not stop the tuning
            warnings.warn(f"a tuning was not written down: {e}", ForetuneWarning, stacklevel=2)

    def undo() -> None:
        knobs.listener = before

    knobs.listener = on_autotuning
    return undo


def _caller_locals() -> Mapping[str, Any]:
    """Return the local variables of the tuner's `run`; empty if it is not found."""
    frame = inspect.currentframe()
    for _ in range(4):
        frame = frame.f_back if frame is not None else None
        if frame is not None and hasattr(frame.f_locals.get("self"), "nargs"):
            return dict(frame.f_locals)
    return {}
