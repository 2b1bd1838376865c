"""Which number is which instruction? The table of foretune.collect.compiled.machine_code, learned.

python benchmarks/opcodes.py FOLDER…

Disassembles every cubin under the folders (a Triton cache, for one) with the nvdisasm that Triton
brings and prints mnemonics with their numbers, then what the table does not know or has otherwise.
"""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from triton import backends

from foretune.collect.compiled.feature_names import CLASSES
from foretune.collect.compiled.machine_code import CLASS_MNEMONICS, IGNORED, OPCODE_MASK, classes

NVDISASM = Path(backends.__file__).parent / "nvidia" / "bin" / "nvdisasm"
INSTRUCTION = re.compile(
    r"/\*[0-9a-f]{4,}\*/\s+\{?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)[^\n]*/\* 0x([0-9a-f]{16}) \*/"
)
CLASS_OF = {name: group for group, names in CLASS_MNEMONICS.items() for name in names.split()}
CLASS_OF[IGNORED] = IGNORED
ARCHITECTURE = re.compile(r"EF_CUDA_(?:SM|ACCELERATORS.*?SM)(\d+)")


def main() -> None:
    learned: dict[str, set[int]] = defaultdict(set)
    unknown: set[str] = set()
    count = 0
    for cubin in (c for folder in sys.argv[1:] for c in sorted(Path(folder).rglob("*.cubin"))):
        count += 1
        for arch, mnemonic, number in instructions(cubin):
            learned[mnemonic].add(number)
            if class_of(arch, number) != CLASS_OF.get(mnemonic):
                unknown.add(f"{mnemonic} {number:03x} on sm_{arch}")
    for mnemonic in sorted(learned):
        print(mnemonic, *(f"{number:03x}" for number in sorted(learned[mnemonic])))
    print(f"{count} cubins; not in the table, or of another class there: {sorted(unknown)}")


def instructions(cubin: Path) -> Iterator[tuple[int, str, int]]:
    """Yield architecture, mnemonic and number of every instruction."""
    command = [str(NVDISASM), "-c", "-hex", str(cubin)]
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = ARCHITECTURE.search(text)
    if found is None:
        print(f"{cubin} is of an architecture that nvdisasm does not know", file=sys.stderr)
        return
    for mnemonic, word in INSTRUCTION.findall(text):
        yield int(found.group(1)), mnemonic, int(word, 16) & OPCODE_MASK


def class_of(arch: int, number: int) -> str:
    """Return the class that Foretune counts a number in."""
    position = classes(arch)[number]
    return IGNORED if position < 0 else list(CLASSES)[position]


if __name__ == "__main__":
    main()
