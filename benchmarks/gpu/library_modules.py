"""Imports the libraries of `libraries.py`, and lets them run where there is no GPU."""

import contextlib
import importlib
import importlib.util
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import distributions, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import triton
from library_cases import CASES, Case

DEVICE = "NVIDIA H100 80GB HBM3"
"""What `--compile-only` compiles for."""
PACKAGES = ("fla-core", "liger-kernel", "flag-gems", "unsloth")
Modules = list[tuple[Case, Any]]
Note = Callable[..., None]


def load(libraries: Sequence[str], kernels: Sequence[str] | None, note: Note) -> Modules:
    """Import the modules of the cases of these libraries.

    With ``kernels``, only cases are taken whose kernel has one of these in its name. ``note`` is
    told which modules cannot be imported.
    """
    modules = []
    for case in CASES:
        wanted = kernels is None or any(n in case.kernel for n in kernels)
        if case.library not in libraries or not wanted:
            continue
        try:
            if case.library == "unsloth":
                stand_in_for_unsloth()
            modules.append((case, importlib.import_module(case.module)))
        except Exception as error:
            note(
                library=case.library,
                kernel=case.kernel,
                note=f"not imported: {type(error).__name__}: {error}",
            )
    return modules


def load_patched(libraries: Sequence[str], kernels: Sequence[str] | None, note: Note) -> Modules:
    """Patch Triton, then import the cases' modules."""
    import foretune

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # modules that the patch does not reach are noted below
        patch = foretune.patch_triton()
        modules = load(libraries, kernels, note)
    for name, why in patch.unreached.items():
        note(kernel=name, note=f"tuned by Triton: it {why}")
    return modules


def stand_in_for_unsloth() -> None:
    """Let Unsloth's grouped GEMM be imported alone: the package wants all of a training stack."""
    if "unsloth" in sys.modules:
        return
    found = importlib.util.find_spec("unsloth")
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'unsloth'")
    root = next(iter(found.submodule_search_locations))
    parts: dict[str, dict[str, Any]] = {
        "unsloth": {"__path__": [root], "DEVICE_TYPE": "cuda"},
        "unsloth.device_type": {
            "cuda_visible_capabilities": lambda: [torch.cuda.get_device_capability(0)]
        },
        "unsloth.kernels": {"__path__": [str(Path(root) / "kernels")]},
        "unsloth.kernels.utils": {"torch_gpu_device": torch.cuda.device},
    }
    for name, values in parts.items():
        module = ModuleType(name)
        vars(module).update(values)
        sys.modules[name] = module


def packages() -> str:
    """Return the versions of the libraries."""
    names = [d.name for d in distributions() if d.name.replace("_", "-") in PACKAGES]
    return ", ".join(f"{name} {version(name)}" for name in sorted(set(names)))


def find_tuner(kernel: Any) -> Any:
    """Return the autotuner in what decorates a kernel."""
    while not isinstance(kernel, triton.runtime.Autotuner):
        kernel = kernel.fn
    return kernel


@contextlib.contextmanager
def replayed(device: str = DEVICE) -> Iterator[None]:
    """Compile for a device and launch nothing; libraries see this device."""
    from replay_driver import ReplayDriver

    driver = ReplayDriver(made_up, device=device, compile=True)
    interface: Any = driver.device_interface
    names = ("get_device_name", "get_device_capability", "get_device_properties", "device_count")
    for name in names:
        setattr(torch.cuda, name, getattr(interface, name))
    told: dict[str, Any] = {
        "current_device": lambda: 0,
        "device": lambda index: contextlib.nullcontext(),
        "is_current_stream_capturing": interface.is_current_stream_capturing,
    }
    for name, value in told.items():
        setattr(torch.cuda, name, value)
    with driver.active():
        yield


def made_up(launch: Any) -> float:
    """Return a time without meaning, the same for the same configuration."""
    values = [v for v in launch.config.values() if isinstance(v, int)]
    return 0.05 + 0.01 * (sum(values) % 7)
