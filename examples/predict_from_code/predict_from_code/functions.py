"""Functions in LLVM's intermediate representation, as llvmlite reads it: instructions and loops."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from foretune.errors import ForetuneError
from foretune.support.lazy import require

CONVERSIONS = ("fptosi", "fptoui", "sitofp", "uitofp", "fpext", "fptrunc")
POINTER_CASTS = ("bitcast", "ptrtoint", "inttoptr", "addrspacecast")
CASTS = frozenset({"zext", "sext", "trunc", *POINTER_CASTS, *CONVERSIONS})
PRINTED = frozenset({"icmp", "getelementptr", "shufflevector", "fmul"})
"""Opcodes with details that llvmlite shows only in the printed text; printing is slow."""
OF_OPERAND = frozenset({"store", "icmp", "fcmp", "extractelement", *CASTS})
"""Opcodes whose first operand's type is needed, too."""
SCALARS = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8, "void": 0}
"""Bytes of types other than integers."""
ADDRESS = re.compile(r"getelementptr (?:(?:inbounds|nuw|nusw) )*(.+?), (?:<\d+ x )?ptr\b[^,]* [%@]")
REGION_BITS = 40
"""Made-up addresses: the upper bits number the array, the lower ones are the offset."""
GLOBALS = 1 << 20  # region of global constants; those of arguments and local arrays are smaller


@dataclass(frozen=True)
class Unknown:
    """A value that depends on data; for an address, ``region`` may still be known."""

    region: int | None = None


UNKNOWN = Unknown()


@dataclass(eq=False)
class Instruction:
    """One instruction.

    ``name`` is that of its result (``%x``), or empty; ``type`` is that of its result, or of the
    value stored or compared; ``operands`` are names, or constants: integers if possible, else text.
    ``detail`` is the predicate of a comparison, the source type of a cast or an address, (value,
    block) pairs of a phi, targets of a branch, or the callee of a call. A multiplication that
    ``contracts`` may fuse with an addition.
    """

    name: str
    op: str
    type: str = ""
    operands: list[Any] = field(default_factory=list)
    detail: Any = ""
    contracts: bool = False


@dataclass(eq=False)
class Loop:
    """A loop; ``parent`` is the loop around it."""

    header: str
    blocks: set[str]
    parent: "Loop | None" = None

    def nest(self) -> "Iterator[Loop]":
        """Yield this loop and the loops around it, innermost first."""
        loop: Loop | None = self
        while loop is not None:
            yield loop
            loop = loop.parent


@dataclass(eq=False)
class Function:
    """A function: its parameters and its reachable blocks, in reverse postorder."""

    name: str
    parameters: list[str]
    blocks: dict[str, list[Instruction]]

    def successors(self, block: str) -> list[str]:
        """Return the blocks that may follow."""
        last = self.blocks[block][-1]
        return list(dict.fromkeys(last.detail)) if last.op in ("br", "switch") else []

    @cached_property
    def definitions(self) -> dict[str, Instruction]:
        """Instruction of every named value."""
        return {i.name: i for block in self.blocks.values() for i in block if i.name}

    @cached_property
    def loops(self) -> dict[str, Loop]:
        """Loops by header: blocks that reach each other; within a loop, without its back edges."""
        found: dict[str, Loop] = {}
        work: list[tuple[list[str], Loop | None]] = [(list(self.blocks), None)]
        while work:
            blocks, parent = work.pop()
            number = {block: i for i, block in enumerate(blocks)}
            edges = (
                np.array(
                    [
                        (number[block], number[after])
                        for block in blocks
                        for after in self.successors(block)
                        if after in number and not (parent and after == parent.header)
                    ],
                    dtype=np.int64,
                )
                .reshape(-1, 2)
                .T
            )
            graph = coo_array((np.ones(edges.shape[1]), edges), shape=(len(blocks), len(blocks)))
            label = connected_components(graph, connection="strong")[1]
            begins, ends = label[edges]
            for one in np.unique(begins[begins == ends]):
                inside = [blocks[i] for i in np.flatnonzero(label == one)]
                loop = found[inside[0]] = Loop(inside[0], set(inside), parent)
                work.append((inside, loop))
        return found

    @cached_property
    def innermost(self) -> dict[str, Loop | None]:
        """The innermost loop around each block."""
        return {
            b: min(
                (o for o in self.loops.values() if b in o.blocks),
                key=lambda o: len(o.blocks),
                default=None,
            )
            for b in self.blocks
        }


@lru_cache(maxsize=4)
def read_function(text: str, name: str) -> Function:
    """Return a function of a module in textual IR, or raise ForetuneError if it has none."""
    llvm: Any = require("llvmlite.binding", "cpu", "reading compiled code")
    try:
        function = llvm.parse_assembly(text).get_function(name)
    except NameError as e:
        raise ForetuneError(f"the compiled code has no function {name!r}") from e
    for n, value in enumerate(v for block in function.blocks for v in (block, *block.instructions)):
        if not value.name and str(value.type) != "void":
            value.name = f"unnamed.{n}"
    blocks = {f"%{b.name}": [_instruction(i) for i in b.instructions] for b in function.blocks}
    return _ordered(Function(name, [f"%{a.name}" for a in function.arguments], blocks))


def parts_of(kind: str) -> list[str]:
    """Return the types of a structure's elements."""
    parts, depth, start = [], 0, 1
    for i, letter in enumerate(kind):
        depth += (letter in "[{<") - (letter in "]}>")
        if (letter == "," and depth == 1) or depth == 0:
            parts.append(kind[start:i].strip())
            start = i + 1
    return parts


def integer_bits(kind: str) -> int:
    """Return the width of an integer type; 64 for others."""
    return int(kind[1:]) if re.fullmatch(r"i\d+", kind) else 64


def size_of(kind: str) -> int:
    """Return the bytes of a type."""
    if kind[:1] in ("<", "[") and " x " in kind:
        count, element = kind[1:-1].strip().split(" x ", 1)
        return int(count) * size_of(element)
    if kind.startswith("{"):
        return sum(map(size_of, parts_of(kind)))
    return SCALARS.get(kind, max(1, integer_bits(kind) // 8))


def lanes(kind: str) -> int:
    """Return the elements of a vector type; 1 for others."""
    return int(kind[1:].split(" x ")[0]) if kind.startswith("<") else 1


def _instruction(value: Any) -> Instruction:
    kind, op, given = str(value.type), value.opcode, list(value.operands)
    text = str(value).strip() if op in PRINTED else ""
    made = Instruction(f"%{value.name}" if value.name else "", op, kind)
    made.contracts = "contract" in text or "fast" in text
    if op in OF_OPERAND:
        made.type, made.detail = (kind if op in CASTS else str(given[0].type)), str(given[0].type)
    if op in ("br", "switch"):
        blocks = [f"%{x.name}" for x in given if x.value_kind.name == "basic_block"]
        given = given[: len(blocks) > 1]
        made.detail = blocks[::-1] if op == "br" else blocks
    elif op == "call":
        made.detail = str(_operand(given.pop()))
    elif op == "icmp":
        made.detail = re.sub(".* icmp (samesign )?", "", text).split()[0]
    elif op == "getelementptr" and (found := ADDRESS.search(text)):
        made.detail = found[1]
    made.operands = [_operand(x) for x in given]
    if op == "phi":
        blocks = [f"%{b.name}" for b in value.incoming_blocks]
        made.detail = list(zip(made.operands, blocks, strict=True))
    elif op == "shufflevector":  # the mask is no operand
        made.operands.append(0 if text.endswith("zeroinitializer") else UNKNOWN)
    return made


def _operand(value: Any) -> Any:
    """Return the name of a value, or a constant: its integers, else its text."""
    if (kind := value.value_kind.name) in ("argument", "instruction"):
        return f"%{value.name}"
    if kind in ("function", "global_variable"):
        return f"@{value.name}"
    text = str(value).removeprefix(f"{value.type} ")
    if text in ("null", "zeroinitializer", "false", "true"):
        return int(text == "true")
    if found := re.fullmatch(r"(?:splat \(i\d+ )?(-?\d+)\)?", text):
        return int(found[1])
    if re.fullmatch(r"<(?:i\d+ -?\d+(?:, )?)+>", text):
        return tuple(int(n) for n in re.findall(r" (-?\d+)", text))
    return text


def _ordered(function: Function) -> Function:
    """Keep the reachable blocks, in reverse postorder."""
    entry = next(iter(function.blocks))
    seen, finished = {entry}, []
    stack = [(entry, iter(function.successors(entry)))]
    while stack:
        block, following = stack[-1]
        fresh = next((b for b in following if b not in seen), None)
        if fresh is None:
            finished.append(block)
            stack.pop()
        else:
            seen.add(fresh)
            stack.append((fresh, iter(function.successors(fresh))))
    function.blocks = {block: function.blocks[block] for block in reversed(finished)}
    return function
