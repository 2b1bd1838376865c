"""Looks up kernels, meters, models and searchers by name, built-in or from plugins."""

import importlib
import importlib.util
import inspect
import sys
from functools import cache
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from foretune.errors import (
    ForetuneError,
    MissingExtra,
    UnknownName,
    UsageError,
    require_known,
    warn,
)
from foretune.kernel import Kernel
from foretune.support.lazy import EXTRA_OF

TUNABLE_EXAMPLE = "@foretune.tunable(KNOB=[…], inputs=…)"
TRITON_PREFIX = "triton_"
"""Prefix of Triton kernels, so that kernels can be listed without importing Triton."""

_BUILTIN: dict[str, dict[str, str]] = {
    "kernels": {
        "matmul": "foretune.collect.kernels.matmul:Matmul",
        "quantized_matvec": "foretune.collect.kernels.quantized_matvec:QuantizedMatvec",
        "softmax": "foretune.collect.kernels.softmax:Softmax",
        "triton_gemm": "foretune.collect.kernels.triton_gemm:TritonGemm",
        "triton_quantized_gemm": (
            "foretune.collect.kernels.triton_quantized_gemm:TritonQuantizedGemm"
        ),
    },
    "families": {
        "gemm": "foretune.features.families.gemm:Gemm",
        "batched_gemm": "foretune.features.families.gemm:BatchedGemm",
        "grouped_gemm": "foretune.features.families.gemm:GroupedGemm",
        "attention_prefill": "foretune.features.families.attention:AttentionPrefill",
        "attention_encoder": "foretune.features.families.attention:AttentionEncoder",
        "attention_decode": "foretune.features.families.attention:AttentionDecode",
        "moe": "foretune.features.families.moe:Moe",
        "norm": "foretune.features.families.rowwise:Norm",
        "softmax": "foretune.features.families.rowwise:Softmax",
        "elementwise": "foretune.features.families.rowwise:Elementwise",
        "quantize": "foretune.features.families.rowwise:Quantize",
        "inductor_mm": "foretune.features.families.inductor:InductorMm",
        "inductor_mixed_mm": "foretune.features.families.inductor:InductorMixedMm",
        "inductor_flex_attention": ("foretune.features.families.inductor:InductorFlexAttention"),
        "convolution": "foretune.features.families.convolution:Convolution",
        "all_reduce": "foretune.features.families.collectives:AllReduce",
        "all_gather": "foretune.features.families.collectives:AllGather",
        "all_to_all": "foretune.features.families.collectives:AllToAll",
        "reduce_scatter": "foretune.features.families.collectives:ReduceScatter",
        "send_recv": "foretune.features.families.collectives:SendReceive",
    },
    "meters": {
        "nvml": "foretune.collect.power:NvmlMeter",
        "rapl": "foretune.collect.power:RaplMeter",
    },
    "models": {
        "xgboost": "foretune.models.trees.boosting:BoostingModel",
        "random_forest": "foretune.models.trees.forest:ForestModel",
    },
    "predictors": {},
    "runners": {"ray": "foretune.collect.distributed.ray_runner:RayRunner"},
    "searchers": {
        "random": "foretune.search.searcher:RandomSearcher",
        "exhaustive": "foretune.search.searcher:ExhaustiveSearcher",
        "tpe": "foretune.search.optuna.searchers:TPESearcher",
        "gp": "foretune.search.optuna.searchers:GPSearcher",
        "cmaes": "foretune.search.optuna.searchers:CMAESSearcher",
        "surrogate": "foretune.search.surrogate:SurrogateSearcher",
        "policy": "foretune.search.policies.searcher:PolicySearcher",
    },
    "observers": {
        "report": "foretune.tune.report.campaign_report:ReportObserver",
        "mlflow": "foretune.tune.mlflow.campaign:CampaignTracker",
    },
    "views": {
        "notebook": "foretune.tune.report.result_views:notebook_view",
        "page": "foretune.tune.report.result_views:write_tuned",
    },
}

_kernels_of_process: dict[str, str] = {}
"""Kernels that `register_kernel` added: name -> ``module:class``."""


def is_code_location(name: str) -> bool:
    """Whether ``name`` is FILE.py:NAME, MODULE:NAME or FILE.py, rather than a registered name."""
    return ":" in name or name.endswith(".py")


def absolute_location(location: str) -> str:
    """Return the location with an absolute path."""
    module, _, name = location.rpartition(":")
    return f"{Path(module).resolve()}:{name}" if module.endswith(".py") else location


def kernel_at(location: str) -> Kernel:
    """Return the kernel at ``FILE.py:NAME`` or ``MODULE:NAME``: a class, an instance or a function.

    Raises UsageError if there is none, and ForetuneError if importing its code fails.
    """
    if ":" not in location:
        names = _own_names(_import_module(location)) or ["NAME"]
        listed = ", ".join(f"{location}:{name}" for name in names)
        raise UsageError(f"{location} is a file: give {listed}")
    return _as_kernel(object_at(location), location)


def object_at(location: str) -> Any:
    """Return the object at ``FILE.py:NAME`` or ``MODULE:NAME``.

    Raises UsageError if there is none, and ForetuneError if importing its code fails.
    """
    source, colon, name = location.rpartition(":")
    if not colon:
        raise UsageError(f"{location} names no function: write {location}:NAME")
    module = _import_module(source)
    try:
        return attrgetter(name)(module)
    except AttributeError:
        raise UnknownName(f"function in {source}", name, _own_names(module)) from None


def is_plain_function(value: Any) -> bool:
    """Whether a value is an undecorated function, whose knobs must be given."""
    return (
        callable(value)
        and not isinstance(value, type | Kernel)
        and not hasattr(value, "has_inputs")
        and type(value).__module__.partition(".")[0] not in ("triton", "foretune")
    )


def _as_kernel(obj: Any, location: str) -> Kernel:
    """Return an instance, a class or a tunable function as a kernel; else raise UsageError."""
    if isinstance(obj, Kernel):
        return obj
    if isinstance(obj, type) and issubclass(obj, Kernel):
        return _instance_of(obj, location)
    is_tunable = hasattr(obj, "has_inputs")
    if is_tunable and obj.has_inputs:
        return obj.kernel()

    # Say what it is, and how it becomes a kernel.
    if is_tunable:
        reason = f"has no inputs to make its arguments: decorate it with {TUNABLE_EXAMPLE}"
    elif type(obj).__module__.partition(".")[0] in ("triton", "foretune"):
        reason = (
            "is a Triton kernel, which is tuned when it is called: decorate it with "
            "@foretune.autotune; 'foretune inspect' compiles it without a GPU"
        )
    elif is_plain_function(obj):
        reason = (
            f"is a function without knobs: 'foretune tune {location} --param KNOB=1,2' names them, "
            f"or decorate it with {TUNABLE_EXAMPLE}"
        )
    else:
        reason = (
            f"is of type {type(obj).__name__}: decorate a function with {TUNABLE_EXAMPLE}, or "
            "derive a class from foretune.Kernel"
        )
    raise UsageError(f"{location} {reason}")


def _instance_of(kind: type[Kernel], location: str) -> Kernel:
    missing = sorted(getattr(kind, "__abstractmethods__", ()))
    if missing:
        raise UsageError(f"{location} is not a complete kernel: it lacks {', '.join(missing)}")
    try:
        return kind()
    except TypeError as e:
        raise UsageError(f"{location} cannot be made without arguments: {e}") from e


def _is_kernel(value: Any, module: ModuleType) -> bool:
    """Return whether a value is a kernel, or a class of kernels that a module defines."""
    if isinstance(value, type):
        concrete = issubclass(value, Kernel) and not inspect.isabstract(value)
        return concrete and value.__module__ == module.__name__
    return isinstance(value, Kernel) or hasattr(value, "has_inputs")


def _own_names(module: ModuleType) -> list[str]:
    """Return the names of kernels and public functions that a module defines."""
    names = []
    for name, value in vars(module).items():
        is_own_function = inspect.isfunction(value) and value.__module__ == module.__name__
        is_public = not name.startswith("_")
        if _is_kernel(value, module) or (is_own_function and is_public):
            names.append(name)
    return names


def _import_module(source: str) -> ModuleType:
    """Import a file or a module, by a name under which other processes can import it."""
    if source.endswith(".py") or "/" in source:
        path = _checked_file(source)
        name = path.stem
        _first_on_path(path.parent)
    else:
        name = source
        _first_on_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as e:
        is_itself_missing = e.name and f"{name}.".startswith(f"{e.name}.")
        if is_itself_missing:
            raise UsageError(f"there is no module {name}: give FILE.py:NAME or MODULE:NAME") from e
        raise ForetuneError(f"{source} cannot be imported: {e}") from e
    except ForetuneError:
        raise
    except (Exception, SystemExit) as e:
        raise ForetuneError(f"{source} cannot be imported: {type(e).__name__}: {e}") from e


def _checked_file(source: str) -> Path:
    """Return the path of a file; raise UsageError if there is none, or it cannot be imported."""
    path = Path(source).resolve()
    if not path.is_file():
        raise UsageError(f"there is no file {source}: give FILE.py:NAME or MODULE:NAME")
    name = path.stem
    other_folders = [p for p in sys.path if Path(p or ".").resolve() != path.parent]
    is_other_module = name in sys.builtin_module_names or PathFinder.find_spec(name, other_folders)
    if not name.isidentifier() or is_other_module:
        raise UsageError(f"{source} has the name of another module: rename it")
    return path


def _first_on_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _singular(group: str) -> str:
    return "family" if group == "families" else group.removesuffix("s")


def registered(group: str) -> dict[str, str]:
    """Return the implementations of a group (``kernels``, …): name -> ``module:class``.

    Warns (`ForetuneWarning`) if a plugin uses a name that is taken.
    """
    names = dict(_installed(group))
    if group == "kernels":
        for name, location in _kernels_of_process.items():
            names.setdefault(name, location)
    return names


def register_kernel(kernel: Kernel) -> None:
    """Let `get_kernel` find the class of a kernel by the kernel's name, in this process only.

    A built-in kernel or a plugin's of the same name is found before it.
    """
    kind = type(kernel)
    _kernels_of_process.setdefault(kernel.name, f"{kind.__module__}:{kind.__qualname__}")


def reset() -> None:
    """Forget the kernels of `register_kernel`, and look for installed plugins again."""
    _kernels_of_process.clear()
    _installed.cache_clear()


@cache
def _installed(group: str) -> dict[str, str]:
    """Return Foretune's own implementations of a group and those of installed plugins."""
    names = dict(_BUILTIN[group])
    for point in entry_points(group=f"foretune.{group}"):
        existing = names.setdefault(point.name, point.value)
        if existing != point.value:
            warn(
                f"{_singular(group)} {point.name!r} is {existing}: {point.value} is ignored until "
                "its package registers it under another name"
            )
    return names


def load(group: str, name: str) -> Any:
    """Return the class registered as ``name``.

    Raises UnknownName, which lists the known names, if there is none; MissingExtra if it needs a
    package that is not installed; ForetuneError if it cannot be imported.
    """
    require_known(_singular(group), name, registered(group))
    what = f"{_singular(group)} {name!r}"
    module, _, attribute = registered(group)[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        if isinstance(e, ForetuneError):
            raise
        missing_package = (getattr(e, "name", None) or "").partition(".")[0]
        if missing_package in EXTRA_OF and isinstance(e, ModuleNotFoundError):
            raise MissingExtra(missing_package, EXTRA_OF[missing_package], what) from e
        raise ForetuneError(f"{what} cannot be imported: {e}") from e


def get_kernel(name: str) -> Kernel:
    """Return a new instance of a kernel.

    ``name`` is a registered name, or ``FILE.py:NAME`` or ``MODULE:NAME``; the latter also registers
    the kernel in this process. Raises UnknownName or UsageError if there is no such kernel.
    """
    if is_code_location(name):
        kernel = kernel_at(name)
        kernel.location = absolute_location(name)
        # Kernels with knobs are made of functions: no class makes another instance of them.
        if not hasattr(kernel, "knobs"):
            register_kernel(kernel)
        return kernel
    if name not in registered("kernels"):
        raise UnknownName("kernel", name, registered("kernels"), "or your own, FILE.py:NAME")
    return load("kernels", name)()
