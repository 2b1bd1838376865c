"""A process that compiles: answers its parent over an inherited socket until that closes.

Run as ``python -m foretune.collect.compiled.compile_worker DESCRIPTOR``. A compiler that aborts
takes this process with it, one that never ends is killed with it; the parent starts another.
"""

import contextlib
import importlib
import os
import sys
import time
import warnings
from multiprocessing.connection import Connection
from typing import Any

from foretune.collect.child import become_worker
from foretune.collect.compiled.compile_pool import CompileRequest, CompileResult, load_kernel
from foretune.errors import ForetuneError, UsageError
from foretune.measurement import Status
from foretune.space import Configuration

MAX_ERROR = 300
"""Characters of a compiler's message that are kept."""


def serve(descriptor: int) -> None:
    """Take an order, say that it can be done, then compile one configuration after the other."""
    become_worker(os.getppid())
    warnings.simplefilter("ignore")  # the launching process gives Triton's own warnings
    with Connection(descriptor) as connection, contextlib.suppress(EOFError, OSError):
        request: CompileRequest = connection.recv()
        try:
            kernel = _prepare(request)
        except Exception as e:
            connection.send(e if isinstance(e, ForetuneError) else ForetuneError(_line(e)))
            return
        connection.send(None)
        while True:
            connection.send(_compile(request, kernel, connection.recv()))


def _prepare(request: CompileRequest) -> Any:
    if request.cache_dir:
        os.environ["TRITON_CACHE_DIR"] = request.cache_dir
    os.environ.pop("TRITON_INTERPRET", None)  # Triton's own functions would be interpreted, too
    sys.path += [p for p in request.path if p not in sys.path]
    from foretune.lazy import require

    require("triton", "gpu", "compiling Triton kernels")
    importlib.import_module(
        "foretune.collect.compiled.static_features"
    )  # not in a configuration's time
    return load_kernel(request.kernel)


def _compile(
    request: CompileRequest, kernel: Any, config: Configuration
) -> "CompileResult | ForetuneError":
    from foretune.collect.compiled.compiling import specialize

    try:
        specialized = specialize(kernel, request.args, request.kwargs, config, request.target)
    except UsageError as e:  # wrong for every configuration, not a result
        return e
    except Exception as e:
        return CompileResult(config, Status.COMPILE_ERROR, _line(e))
    started = time.perf_counter()
    try:
        run = _full if request.tier == "full" else _ttgir
        return run(config, specialized, started)
    except Exception as e:
        seconds = time.perf_counter() - started
        return CompileResult(config, Status.COMPILE_ERROR, _line(e), compile_s=seconds)


def _full(config: Configuration, specialized: Any, started: float) -> CompileResult:
    from triton import knobs

    from foretune.collect.compiled.compiling import compile_full
    from foretune.collect.compiled.static_features import occupancy_of, static_features

    hits: list[bool] = []
    knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
    compiled = compile_full(specialized)
    seconds = time.perf_counter() - started
    features = static_features(compiled, specialized.target, specialized.declared)
    excess = ""
    if "registers" in features:
        excess = occupancy_of(features, specialized.target).excess
    status = Status.INVALID if excess else Status.OK
    cached = bool(hits and hits[-1])
    return CompileResult(config, status, excess, features, seconds, cached, compiled.hash)


def _ttgir(config: Configuration, specialized: Any, started: float) -> CompileResult:
    from foretune.collect.compiled.compiling import compile_ttgir
    from foretune.collect.compiled.static_features import ttgir_features

    ttgir = compile_ttgir(specialized)
    seconds = time.perf_counter() - started
    features = ttgir_features(ttgir, specialized)
    if features.get("fits", 1.0):
        return CompileResult(config, Status.OK, "", features, seconds)
    limit = specialized.target.limits.shared_bytes_per_cta
    needed = f"it needs {features['shared_bytes']:.0f} bytes of shared memory"
    excess = f"{needed}, {specialized.target.name} has {limit}"
    return CompileResult(config, Status.INVALID, excess, features, seconds)


def _line(error: BaseException) -> str:
    """Return the telling line of an error: Triton's end with the reason, ptxas' begin with it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    reason = lines[0] if type(error).__name__ == "PTXASError" else lines[-1]
    return f"{type(error).__name__}: {reason}"[:MAX_ERROR]


if __name__ == "__main__":
    serve(int(sys.argv[1]))
