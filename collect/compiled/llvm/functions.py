"""Functions in LLVM's textual IR (opaque pointers): blocks, instructions and loops."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from foretune.errors import ForetuneError

NAME = r'(?:"[^"]*"|[-\w.$]+)'
LABEL = re.compile(rf"^({NAME}):")
RESULT = re.compile(rf"^(%{NAME}) = (.*)$")
CALLEE = re.compile(rf"(@{NAME}|%{NAME})\((.*)\)")
METADATA = re.compile(r",?\s*![\w.]+(?: !\d+|\([^)]*\))?(?=,|$)")
FLAGS = re.compile(
    r"\b(?:nuw|nsw|exact|fast|nnan|ninf|nsz|arcp|contract|afn|reassoc|disjoint|inbounds|nusw|"
    r"samesign|nneg|volatile|noundef|tail|notail|musttail|nonnull|nocapture|readonly|writeonly|"
    r"readnone|noalias|signext|zeroext|immarg|fastcc|align \d+|captures\([^)]*\)|range\([^)]*\)|"
    r"dereferenceable\(\d+\))\s+"
)
TYPE = re.compile(
    r"^(<\s*\d+\s+x\s+[^>]+>|\{[^}]*\}|\[[^\]]*\]|ptr(?: addrspace\(\d+\))?|[a-z]\w*)"
)
CONVERSIONS = ("fptosi", "fptoui", "sitofp", "uitofp", "fpext", "fptrunc")
POINTER_CASTS = ("bitcast", "ptrtoint", "inttoptr", "addrspacecast")
CASTS = frozenset({"zext", "sext", "trunc", *POINTER_CASTS, *CONVERSIONS})
TEXTUAL = frozenset({"ret", "unreachable", "resume", "fence"})
SCALARS = {"float": 4, "double": 8, "half": 2, "bfloat": 2, "ptr": 8, "void": 0}
"""Bytes of types other than integers."""


@dataclass(eq=False)
class Instruction:
    """One instruction.

    Attributes:
        name: of its result, like ``%x``; empty without one.
        op: its opcode.
        type: the type of its result, or of the value that is stored or compared.
        operands: values: names, or constants as text.
        detail: predicate of a comparison, source type of a cast or an address, incoming
            (value, block) of a phi, targets of a branch, callee of a call.
        contracts: whether a multiplication may fuse with an addition.
    """

    name: str
    op: str
    type: str = ""
    operands: list[str] = field(default_factory=list)
    detail: Any = ""
    contracts: bool = False


@dataclass(eq=False)
class Loop:
    """A natural loop; ``parent`` is the loop around it."""

    header: str
    blocks: set[str]
    parent: "Loop | None" = None

    def nest(self) -> "Iterator[Loop]":
        """Yield this loop and those around it, from the inside."""
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
        """Loops by header."""
        order = {block: i for i, block in enumerate(self.blocks)}
        before: dict[str, list[str]] = {block: [] for block in self.blocks}
        for block in self.blocks:
            for after in self.successors(block):
                before[after].append(block)
        dominator = _dominators(order, before)
        found: dict[str, Loop] = {}
        for block in self.blocks:
            for header in self.successors(block):
                if _dominates(header, block, dominator):
                    loop = found.setdefault(header, Loop(header, {header}))
                    work = [block]
                    while work:
                        if (one := work.pop()) not in loop.blocks:
                            loop.blocks.add(one)
                            work += before[one]
        for loop in found.values():
            around = [o for o in found.values() if o is not loop and loop.header in o.blocks]
            loop.parent = min(around, key=lambda o: len(o.blocks), default=None)
        return found

    @cached_property
    def innermost(self) -> dict[str, Loop | None]:
        """The innermost loop around each block."""
        return {
            b: min((o for o in self.loops.values() if b in o.blocks), key=lambda o: len(o.blocks),
                   default=None)
            for b in self.blocks
        }  # fmt: skip


def read_function(text: str, name: str) -> Function:
    """Return a function of a module in textual IR.

    Raises ForetuneError if the module does not define it.
    """
    lines = iter(text.splitlines())
    for line in lines:
        head = line.startswith("define") and re.search(rf"@({NAME})\((.*)\)", line)
        if head and head[1].strip('"') == name:
            parameters = [p.split()[-1] for p in split(head[2])]
            return _ordered(Function(name, parameters, _blocks(lines)))
    raise ForetuneError(f"the compiled code has no function {name!r}")


def split(text: str) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth, start, quoted = [], 0, 0, False
    for i, letter in enumerate(text):
        quoted ^= letter == '"'
        if quoted:
            continue
        depth += (letter in "([{<") - (letter in ")]}>")
        if letter == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text[start:].strip() else parts


def typed(text: str) -> tuple[str, str]:
    """Split ``i64 %x`` into type and value."""
    found = TYPE.match(text)
    return (found[1], text[found.end() :].strip()) if found else ("", text)


def integer_bits(kind: str) -> int:
    """Return the width of an integer type; 64 for others."""
    return int(kind[1:]) if re.fullmatch(r"i\d+", kind) else 64


def size_of(kind: str) -> int:
    """Return the bytes of a type."""
    kind = kind.strip()
    if kind[:1] in ("<", "[") and " x " in kind:
        count, element = kind[1:-1].strip().split(" x ", 1)
        return int(count) * size_of(element)
    if kind.startswith("{"):
        return sum(map(size_of, split(kind[1:-1])))
    return SCALARS.get(kind, max(1, integer_bits(kind) // 8))


def lanes(kind: str) -> int:
    """Return the elements of a vector type; 1 for others."""
    return int(kind[1:].split(" x ")[0]) if kind.startswith("<") else 1


def _blocks(lines: Iterator[str]) -> dict[str, list[Instruction]]:
    blocks: dict[str, list[Instruction]] = {}
    current = blocks.setdefault("%0", [])
    for line in lines:
        if line.startswith("}"):
            break
        if label := LABEL.match(line):
            if not blocks.get("%0", [1]):
                del blocks["%0"]
            current = blocks.setdefault("%" + label[1], [])
            continue
        text = line.split(" ; ")[0].strip()
        if not text or text[0] in ";#":
            continue
        while text.startswith("switch") and not text.endswith("]"):
            text += " " + next(lines).strip()
        current.append(_instruction(text))
    return blocks


def _instruction(line: str) -> Instruction:
    line = METADATA.sub("", line).rstrip(",")
    named = RESULT.match(line)
    name, line = (named[1], named[2]) if named else ("", line)
    op, _, rest = FLAGS.sub("", line).partition(" ")
    made = Instruction(name, op, contracts="contract" in line or "fast" in line)
    if op == "phi":
        made.type, rest = typed(rest)
        pairs = [split(pair.strip()[1:-1]) for pair in split(rest)]
        made.detail = [(value, block) for value, block in pairs]
        made.operands = [value for value, _ in pairs]
    elif op in ("br", "switch"):
        made.operands = [split(rest)[0].split()[-1]] if "," in rest else []
        made.detail = re.findall(rf"label (%{NAME})", rest)
    elif op in CASTS:
        source, made.type = rest.rsplit(" to ", 1)
        made.detail, value = typed(source)
        made.operands = [value]
    elif op == "call":
        _read_call(made, rest)
    elif op not in TEXTUAL:
        _read_operands(made, rest)
    return made


def _read_call(made: Instruction, rest: str) -> None:
    made.type = typed(rest)[0] or "void"
    if found := CALLEE.search(rest):
        made.detail = found[1]
        made.operands = [typed(part)[1] for part in split(found[2])]


def _read_operands(made: Instruction, rest: str) -> None:
    if made.op in ("icmp", "fcmp"):
        made.detail, rest = rest.split(" ", 1)
    parts = split(rest)
    if made.op in ("getelementptr", "load", "alloca"):
        made.detail = parts[0]
        made.type = "ptr" if made.op != "load" else parts[0]
        if made.op == "alloca":
            return
        parts = parts[1 : 2 if made.op == "load" else None]
    if made.op == "select":
        made.operands.append(typed(parts.pop(0))[1])
    pairs = [typed(part) for part in parts]
    made.type = made.type or pairs[0][0]
    if made.op == "getelementptr":
        made.type = next((kind for kind, _ in pairs if kind.startswith("<")), "ptr")
    typed_names = ("true", "false", "null", "undef", "poison", "zeroinitializer")
    made.operands += [
        value if value else part for (_, value), part in zip(pairs, parts, strict=True)
        if value or part in typed_names or not part[:1].isalpha()
    ]  # fmt: skip
    if made.op == "store":
        made.operands = made.operands[:2]


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


def _dominators(order: dict[str, int], before: dict[str, list[str]]) -> dict[str, str]:
    """Return the immediate dominator of each block (Cooper, Harvey and Kennedy, 2001)."""
    entry = next(iter(order))
    found, changed = {entry: entry}, True
    while changed:
        changed = False
        for block in list(order)[1:]:
            known = [b for b in before[block] if b in found]
            one = known[0]
            for other in known[1:]:
                while one != other:
                    if order[one] > order[other]:
                        one = found[one]
                    else:
                        other = found[other]
            if found.get(block) != one:
                found[block], changed = one, True
    return found


def _dominates(one: str, block: str, dominator: dict[str, str]) -> bool:
    while block != one and dominator[block] != block:
        block = dominator[block]
    return block == one
