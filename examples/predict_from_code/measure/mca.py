"""LLVM's machine code analyzer (llvm-mca), a baseline of measure_costs.py."""

import re
import subprocess
from functools import lru_cache

import llvmlite.binding as llvm
from predict_from_code.calls import Code
from predict_from_code.functions import read_function
from predict_from_code.sampled_run import SampledRun

SIMULATED_TIMES = 50
SIMULATED_CPU = "icelake-server"
"""llvm-mca's model: the newest one in Debian's release that knows 512-bit vectors."""
CALL_OR_RETURN = ("call", "ret")


def simulated_cycles(code: Code) -> float:
    """Return the cycles of one call by llvm-mca, with all data in the first cache."""
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
        for n, (_, lines) in enumerate(blocks)
        if lines
    )
    done = subprocess.run(
        ["llvm-mca", f"-mcpu={SIMULATED_CPU}", f"-iterations={SIMULATED_TIMES}", "-"],
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )
    regions = re.findall(r"Code Region - (\d+)\s+.*?Total Cycles:\s+(\d+)", done.stdout, re.DOTALL)
    return [(blocks[int(n)][0], int(cycles) / SIMULATED_TIMES) for n, cycles in regions]


def _assembly(ir: str, name: str) -> list[tuple[str, list[str]]]:
    """Return the instructions of each block of the IR, in machine code of this CPU."""
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
