"""What a call of a CPU kernel computes and moves, counted in its compiled code."""

import inspect
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.device import Device
from foretune.errors import UsageError
from foretune.kernel import Kernel
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.lazy import require
from predict_from_code.functions import REGION_BITS, read_function
from predict_from_code.operations import Operations, Traffic
from predict_from_code.sampled_run import SampledRun

CACHES = {"l1": ("l1_kib", 32.0), "l2": ("l2_kib", 1024.0), "l3": ("l3_kib", 32768.0)}
"""Caches: the device's spec, and its usual size in KiB."""


@dataclass(frozen=True)
class Code:
    """The code of one configuration: a function in a module of textual IR, and its arguments.

    ``arguments`` maps parameters to integers or made-up addresses, ``sizes`` the region of an array
    to its bytes.
    """

    ir: str
    name: str
    arguments: Mapping[str, int]
    sizes: Mapping[int, float]


def code_of(kernel: Kernel, problem: Problem, config: Configuration) -> Code:
    """Compile a configuration of a CPU kernel; it is not run.

    Raises UsageError if the kernel is neither a Numba function nor a source in C or C++, or there
    is no clang; RuntimeError if clang refuses the source.
    """
    function: Any = getattr(kernel, "function", None)
    if hasattr(function, "inspect_llvm"):
        return _numba_code(function, kernel, problem, config)
    source = getattr(kernel, "source", None)
    if source is not None and source.language == "C":
        return _native_code(kernel, problem, config)
    raise UsageError(
        f"{kernel.name} has no LLVM code: give a function that numba.njit compiles, or a source in "
        "C or C++"
    )


def count_code(code: Code, caches: Mapping[str, float]) -> dict[str, float]:
    """Return operations, cycles, and lines moved per call; caches: name -> bytes."""
    run = SampledRun(read_function(code.ir, code.name), dict(code.arguments))
    return {**Operations(run).totals(), **Traffic(run, code.sizes).totals(caches)}


def cache_bytes(device: Device) -> dict[str, float]:
    """Return the sizes of a CPU's caches as `count_code` takes them; a common CPU's if unknown."""
    return {
        name: device.specs.get(spec, default) * 1024 for name, (spec, default) in CACHES.items()
    }


def _numba_code(function: Any, kernel: Kernel, problem: Problem, config: Configuration) -> Code:
    from numba import typeof

    inputs = kernel.make_inputs(problem)
    bound = inspect.signature(function.py_func).bind(*inputs["args"], **inputs["kwargs"], **config)
    bound.apply_defaults()
    kinds = tuple(map(typeof, bound.arguments.values()))
    function.compile(kinds)
    ir = function.inspect_llvm(kinds)
    name = next(
        n
        for n in re.findall(r"^define[^@]*@([\w.$]+)\(", ir, re.MULTILINE)
        if not n.startswith(("cfunc", "_ZN7cpython"))
    )
    arguments: dict[str, int] = {"%retptr": (900 << REGION_BITS)}
    sizes = {}
    for n, (given, value) in enumerate(bound.arguments.items(), start=1):
        if isinstance(value, np.ndarray):
            sizes[n] = float(value.nbytes)
            arguments |= {
                f"%arg.{given}.2": value.size,
                f"%arg.{given}.3": value.itemsize,
                f"%arg.{given}.4": n << REGION_BITS,
                **{f"%arg.{given}.5.{k}": size for k, size in enumerate(value.shape)},
                **{f"%arg.{given}.6.{k}": stride for k, stride in enumerate(value.strides)},
            }
        elif isinstance(value, int):
            arguments[f"%arg.{given}"] = int(value)
    return Code(ir, name, arguments, sizes)


def _native_code(kernel: Any, problem: Problem, config: Configuration) -> Code:
    from foretune.collect.wrapped.native import compile_native

    llvm: Any = require("llvmlite.binding", "cpu", "reading compiled code")
    compiler = kernel.source.compiler or ""
    if "clang" not in compiler:
        compiler = "clang" if kernel.source.suffix == ".c" else "clang++"
    if shutil.which(compiler.split()[0]) is None:
        raise UsageError(f"there is no {compiler} to show the code of {kernel.name}: install clang")
    flags = ("-c", "-emit-llvm", "-fno-discard-value-names")
    with compile_native(kernel.prepare(config), compiler, *flags) as output:
        ir = str(llvm.parse_bitcode(output.read_bytes()))
    names = read_function(ir, kernel.source.name).parameters
    arguments, sizes = {}, {}
    for n, (name, value) in enumerate(zip(names, kernel.arguments, strict=True), start=1):
        if isinstance(value, np.ndarray):
            arguments[name], sizes[n] = n << REGION_BITS, float(value.nbytes)
        elif isinstance(value, np.integer):
            arguments[name] = int(value)
    return Code(ir, kernel.source.name, arguments, sizes)
