"""The cost of calling a CPU kernel, from its code or LLVM's machine code analyzer."""

import inspect
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from foretune.collect.compiled.llvm.functions import REGION_BITS, read_function
from foretune.collect.compiled.llvm.operations import Operations, Traffic
from foretune.collect.compiled.llvm.sampled_run import SampledRun
from foretune.device import Device
from foretune.errors import UsageError
from foretune.kernel import Kernel
from foretune.lazy import require
from foretune.problem import Problem
from foretune.space import Configuration

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
    name = next(n for n in re.findall(r"^define[^@]*@([\w.$]+)\(", ir, re.MULTILINE)
                if not n.startswith(("cfunc", "_ZN7cpython")))  # fmt: skip
    arguments: dict[str, int] = {"%retptr": (900 << REGION_BITS)}
    sizes = {}
    for n, (given, value) in enumerate(bound.arguments.items(), start=1):
        if isinstance(value, np.ndarray):
            sizes[n] = float(value.nbytes)
            arguments |= {
                f"%arg.{given}.2": value.size, f"%arg.{given}.3": value.itemsize,
                f"%arg.{given}.4": n << REGION_BITS,
                **{f"%arg.{given}.5.{k}": size for k, size in enumerate(value.shape)},
                **{f"%arg.{given}.6.{k}": stride for k, stride in enumerate(value.strides)},
            }  # fmt: skip
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


SIMULATED_TIMES = 50
SIMULATED_CPU = "icelake-server"
"""llvm-mca's model: the newest one in Debian's release that knows 512-bit vectors."""
CALL_OR_RETURN = ("call", "ret")


def simulated_cycles(code: Code) -> float | None:
    """Return the cycles of one call by llvm-mca, with all data in the first cache.

    None if llvm-mca is not installed.
    """
    if shutil.which("llvm-mca") is None:
        return None
    counts = SampledRun(read_function(code.ir, code.name), dict(code.arguments)).counts
    return sum(counts[block] * cycles for block, cycles in _block_cycles(code.ir, code.name))


@lru_cache(maxsize=4)
def _block_cycles(ir: str, name: str) -> list[tuple[str, float]]:
    """Return the simulated cycles of each block, in steady state."""
    blocks = [
        (block, [line for line in lines if not line.startswith(CALL_OR_RETURN)])
        for block, lines in _assembly(ir, name)
    ]
    text = "".join(
        f"# LLVM-MCA-BEGIN {n}\n" + "\n".join(lines) + f"\n# LLVM-MCA-END {n}\n"
        for n, (_, lines) in enumerate(blocks) if lines
    )  # fmt: skip
    done = subprocess.run(
        ["llvm-mca", f"-mcpu={SIMULATED_CPU}", f"-iterations={SIMULATED_TIMES}", "-"],
        input=text, capture_output=True, text=True, check=False,
    )  # fmt: skip
    regions = re.findall(r"Code Region - (\d+)\s+.*?Total Cycles:\s+(\d+)", done.stdout, re.DOTALL)
    return [(blocks[int(n)][0], int(cycles) / SIMULATED_TIMES) for n, cycles in regions]


def _assembly(ir: str, name: str) -> list[tuple[str, list[str]]]:
    """Return the instructions of each block of the IR, in machine code of this CPU."""
    llvm: Any = require("llvmlite.binding", "cpu", "reading compiled code")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), opt=3
    )
    target.set_asm_verbosity(True)
    blocks: list[tuple[str, list[str]]] = []
    inside = False
    for line in target.emit_assembly(llvm.parse_assembly(ir)).splitlines():
        if line.startswith(f"{name}:"):
            inside = True
        elif line.startswith(".Lfunc_end"):
            inside = False
        elif inside and (label := re.match(r"(?:\.LBB\d+_\d+:|# %bb\.\d+:)\s*(?:# (%\S+))?", line)):
            blocks.append((label[1] or (blocks[-1][0] if blocks else ""), []))
        elif inside and blocks:
            instruction = line.partition("#")[0].strip()
            if instruction and not instruction.startswith("."):
                blocks[-1][1].append(instruction)
    return blocks
