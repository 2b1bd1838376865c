"""Values of LLVM IR for known arguments: integers, vectors of integers, or unknown."""

import math
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from foretune.collect.compiled.llvm.functions import (
    GLOBALS,
    REGION_BITS,
    UNKNOWN,
    Instruction,
    Unknown,
    integer_bits,
    parts_of,
    size_of,
)

PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "shl": lambda a, b: a << b,
    "ashr": lambda a, b: a >> b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "lshr": lambda a, b: a >> b,
    "udiv": lambda a, b: a // b,
    "urem": lambda a, b: a % b,
    "sdiv": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "srem": lambda a, b: int(math.fmod(a, b)),
}
COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}
SAME = frozenset({"sext", "bitcast", "ptrtoint", "inttoptr", "freeze", "addrspacecast"})
EXTREMES = re.compile(r"@llvm\.([su])(min|max)\.")


def region_of(value: Any) -> int | None:
    """Return the array that an address points into, if known."""
    if isinstance(value, Unknown):
        return value.region
    if isinstance(value, np.ndarray):
        value = value[0]
    return value >> REGION_BITS or None


def holds(predicate: str, a: int, b: int, width: int) -> bool:
    """Return whether ``icmp predicate a, b`` holds."""
    if predicate[0] == "u":
        a, b = a & ((1 << width) - 1), b & ((1 << width) - 1)
    return COMPARED[predicate[-2:]](a, b)


class Values(dict[str, Any]):
    """Values by name; `get_value` also takes constants, `evaluate` computes an instruction."""

    def get_value(self, operand: Any) -> Any:
        """Return the value of an operand."""
        if isinstance(operand, str):
            return GLOBALS << REGION_BITS if operand[0] == "@" else self.get(operand, UNKNOWN)
        return np.array(operand, dtype=object) if isinstance(operand, tuple) else operand

    def evaluate(self, i: Instruction) -> Any:
        """Return the result of an instruction other than a phi."""
        if i.op in PLAIN:
            return self._arithmetic(i)
        if i.op in SAME or i.op in ("trunc", "zext"):
            return self._cast(i)
        method = getattr(self, f"_{i.op}", None)
        return method(i) if method else UNKNOWN

    def _arithmetic(self, i: Instruction) -> Any:
        a, b = map(self.get_value, i.operands)
        if isinstance(a, Unknown) or isinstance(b, Unknown):
            return UNKNOWN
        width = integer_bits(i.type)
        if i.op in ("lshr", "udiv", "urem") and isinstance(a, int) and isinstance(b, int):
            a, b = a & ((1 << width) - 1), b & ((1 << width) - 1)
        try:
            return _signed(PLAIN[i.op](a, b), width)
        except (ArithmeticError, TypeError, ValueError):
            return UNKNOWN

    def _cast(self, i: Instruction) -> Any:
        value = self.get_value(i.operands[0])
        if isinstance(value, Unknown):
            return value
        if i.op == "trunc":
            return _signed(value, integer_bits(i.type))
        if isinstance(value, int) and i.op == "zext":
            return value & ((1 << integer_bits(i.detail)) - 1)
        return UNKNOWN if i.op == "bitcast" and isinstance(value, np.ndarray) else value

    def _icmp(self, i: Instruction) -> Any:
        a, b = map(self.get_value, i.operands)
        if not isinstance(a, int) or not isinstance(b, int):
            return UNKNOWN
        return int(holds(i.detail, a, b, integer_bits(i.type)))

    def _select(self, i: Instruction) -> Any:
        condition, a, b = map(self.get_value, i.operands)
        if isinstance(condition, int):
            return a if condition & 1 else b
        if isinstance(a, int) and isinstance(b, int) and a == b:
            return a
        return Unknown(region_of(a) or region_of(b)) if i.type == "ptr" else UNKNOWN

    def _getelementptr(self, i: Instruction) -> Any:
        base, *indices = map(self.get_value, i.operands)
        if any(isinstance(index, Unknown) for index in (base, *indices)):
            return Unknown(region_of(base))
        kind = i.detail
        offset = indices[0] * size_of(kind)
        for index in indices[1:]:
            if kind.startswith("{"):
                parts = parts_of(kind)
                offset, kind = offset + sum(map(size_of, parts[:index])), parts[index]
            else:
                kind = kind.strip()[1:-1].split(" x ", 1)[1]
                offset = offset + index * size_of(kind)
        return base + offset

    def _insertelement(self, i: Instruction) -> Any:
        return self.get_value(i.operands[1]) if i.operands[2] == 0 else UNKNOWN

    def _shufflevector(self, i: Instruction) -> Any:
        return self.get_value(i.operands[0]) if i.operands[-1] == 0 else UNKNOWN

    def _extractelement(self, i: Instruction) -> Any:
        value, index = map(self.get_value, i.operands)
        known = isinstance(value, np.ndarray) and isinstance(index, int)
        return int(value[index]) if known else value

    def _call(self, i: Instruction) -> Any:
        found = EXTREMES.match(i.detail)
        values = [self.get_value(operand) for operand in i.operands[:2]] if found else []
        if not found or not all(isinstance(value, int) for value in values):
            return UNKNOWN
        if found[1] == "u":
            values = [value & ((1 << integer_bits(i.type)) - 1) for value in values]
        return max(values) if found[2] == "max" else min(values)


def _signed(value: Any, width: int) -> Any:
    if isinstance(value, np.ndarray):
        return value
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value
