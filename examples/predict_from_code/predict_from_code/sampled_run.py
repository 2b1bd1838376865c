"""How often each block of a call runs, and at which addresses, without running it.

A sampled run interprets the integers of a function for known arguments. In each loop it follows the
first two iterations, the middle and the last one. The operands of the exit comparison change by
constant steps, so the first two iterations give the number of iterations.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np

from predict_from_code import functions as ir

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
    if isinstance(value, ir.Unknown):
        return value.region
    if isinstance(value, np.ndarray):
        value = value[0]
    return value >> ir.REGION_BITS or None


class Values(dict[str, Any]):
    """Values by name; `get_value` also takes constants, `evaluate` computes an instruction."""

    def get_value(self, operand: Any) -> Any:
        """Return the value of an operand."""
        if isinstance(operand, str):
            known = self.get(operand, ir.UNKNOWN)
            return ir.GLOBALS << ir.REGION_BITS if operand[0] == "@" else known
        return np.array(operand, dtype=object) if isinstance(operand, tuple) else operand

    def evaluate(self, i: ir.Instruction) -> Any:
        """Return the result of an instruction other than a phi."""
        if i.op in PLAIN:
            return self._arithmetic(i)
        if i.op in SAME or i.op in ("trunc", "zext"):
            return self._cast(i)
        method = getattr(self, f"_{i.op}", None)
        return method(i) if method else ir.UNKNOWN

    def _arithmetic(self, i: ir.Instruction) -> Any:
        a, b = map(self.get_value, i.operands)
        if isinstance(a, ir.Unknown) or isinstance(b, ir.Unknown):
            return ir.UNKNOWN
        width = ir.integer_bits(i.type)
        if i.op in ("lshr", "udiv", "urem") and isinstance(a, int) and isinstance(b, int):
            a, b = a & ((1 << width) - 1), b & ((1 << width) - 1)
        try:
            return _signed(PLAIN[i.op](a, b), width)
        except (ArithmeticError, TypeError, ValueError):
            return ir.UNKNOWN

    def _cast(self, i: ir.Instruction) -> Any:
        value = self.get_value(i.operands[0])
        if isinstance(value, ir.Unknown):
            return value
        if i.op == "trunc":
            return _signed(value, ir.integer_bits(i.type))
        if isinstance(value, int) and i.op == "zext":
            return value & ((1 << ir.integer_bits(i.detail)) - 1)
        return ir.UNKNOWN if i.op == "bitcast" and isinstance(value, np.ndarray) else value

    def _icmp(self, i: ir.Instruction) -> Any:
        a, b = map(self.get_value, i.operands)
        if not isinstance(a, int) or not isinstance(b, int):
            return ir.UNKNOWN
        if i.detail[0] == "u":
            mask = (1 << ir.integer_bits(i.type)) - 1
            a, b = a & mask, b & mask
        return int(COMPARED[i.detail[-2:]](a, b))

    def _select(self, i: ir.Instruction) -> Any:
        condition, a, b = map(self.get_value, i.operands)
        if isinstance(condition, int):
            return a if condition & 1 else b
        if isinstance(a, int) and isinstance(b, int) and a == b:
            return a
        return ir.Unknown(region_of(a) or region_of(b)) if i.type == "ptr" else ir.UNKNOWN

    def _getelementptr(self, i: ir.Instruction) -> Any:
        base, *indices = map(self.get_value, i.operands)
        if any(isinstance(index, ir.Unknown) for index in (base, *indices)):
            return ir.Unknown(region_of(base))
        kind = i.detail
        offset = indices[0] * ir.size_of(kind)
        for index in indices[1:]:
            if kind.startswith("{"):
                parts = ir.parts_of(kind)
                offset, kind = offset + sum(map(ir.size_of, parts[:index])), parts[index]
            else:
                kind = kind.strip()[1:-1].split(" x ", 1)[1]
                offset = offset + index * ir.size_of(kind)
        return base + offset

    def _insertelement(self, i: ir.Instruction) -> Any:
        return self.get_value(i.operands[1]) if i.operands[2] == 0 else ir.UNKNOWN

    def _shufflevector(self, i: ir.Instruction) -> Any:
        return self.get_value(i.operands[0]) if i.operands[-1] == 0 else ir.UNKNOWN

    def _extractelement(self, i: ir.Instruction) -> Any:
        value, index = map(self.get_value, i.operands)
        known = isinstance(value, np.ndarray) and isinstance(index, int)
        return int(value[index]) if known else value

    def _call(self, i: ir.Instruction) -> Any:
        found = EXTREMES.match(i.detail)
        values = [self.get_value(operand) for operand in i.operands[:2]] if found else []
        if not found or not all(isinstance(value, int) for value in values):
            return ir.UNKNOWN
        if found[1] == "u":
            values = [value & ((1 << ir.integer_bits(i.type)) - 1) for value in values]
        return max(values) if found[2] == "max" else min(values)


def _signed(value: Any, width: int) -> Any:
    if isinstance(value, np.ndarray):
        return value
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


UNKNOWN_TRIPS = 4  # assumed iterations of a loop that data ends
MAX_FOLLOWED = 64
"""Maximum iterations followed one by one, in a loop without a linear exit comparison."""
MAX_ADDRESSES = 400  # most addresses kept per instruction
FEW_TRIPS = 4  # up to this many iterations, all are followed
NEGATED = {"eq": "ne", "ne": "eq", "gt": "le", "ge": "lt", "lt": "ge", "le": "gt"}
Edge = tuple[str, str]
Counts = defaultdict[Any, float]
Exit = tuple[str, int, int, bool]
"""A predicate, its operands, and whether the loop ends when the predicate holds."""


class Pass:
    """One pass over a loop's body: how often its blocks ran, and where control flow went."""

    def __init__(self) -> None:
        self.counts: Counts = defaultdict(float)
        self.leaving: dict[Edge, float] = defaultdict(float)
        self.back: dict[str, float] = defaultdict(float)
        self.exits: dict[str, Exit | None] = {}


class SampledRun:
    """A call followed by samples, for integers by parameter; arrays are ``number << REGION_BITS``.

    ``counts``: block -> how often it runs, loop -> how often it is entered. ``addresses``:
    instruction and number of the address -> iterations of the loops around it -> address.
    """

    def __init__(self, function: ir.Function, arguments: dict[str, int]) -> None:
        self.function = function
        self.values = Values(arguments)
        self.addresses: dict[tuple[ir.Instruction, int], dict[tuple[int, ...], Any]] = defaultdict(
            dict
        )
        self._iterations: tuple[int, ...] = ()
        self._data: set[str] = set()
        self.counts = self._pass(None, next(iter(function.blocks)), {}).counts

    def _pass(self, loop: ir.Loop | None, entry: str, before: dict[str, float]) -> Pass:
        """Run the body of ``loop`` once; None is the function's."""
        done = Pass()
        inflow: dict[str, dict[str, float]] = defaultdict(dict, {entry: before})
        for block, code in self.function.blocks.items():
            weight = 1.0 if block == entry else sum(inflow[block].values())
            if weight < 1e-9 or not (loop is None or block in loop.blocks):
                continue
            inner = self.function.loops.get(block)
            if inner is not None and inner is not loop:
                counts, leaving = self._run_loop(inner, inflow[block])
                for key, count in counts.items():
                    done.counts[key] += count * weight
                following = [(edge, share * weight) for edge, share in leaving.items()]
            elif self.function.innermost[block] is loop:
                if block != entry:
                    self._enter(block, inflow[block])
                done.counts[block] += weight
                self._run_block(code)
                shares = self._branch(loop, block, done)
                following = [((block, to), share * weight) for to, share in shares.items()]
            else:
                continue
            for (source, to), amount in following:
                if loop is not None and to == loop.header:
                    done.back[source] += amount
                elif loop is not None and to not in loop.blocks:
                    done.leaving[source, to] += amount
                else:
                    inflow[to][source] = inflow[to].get(source, 0.0) + amount
        return done

    def _run_block(self, code: list[ir.Instruction]) -> None:
        for i in code:
            if i.op == "phi":
                continue
            for n, pointer in enumerate(pointers_of(i)):
                if len(known := self.addresses[i, n]) < MAX_ADDRESSES:
                    known.setdefault(self._iterations, self.values.get_value(pointer))
            if i.name:
                self.values[i.name] = self.values.evaluate(i)

    def _enter(self, block: str, before: dict[str, float]) -> None:
        """Set a block's phis to the incoming values."""
        total, new = sum(before.values()), {}
        for i in self.function.blocks[block]:
            if i.op != "phi":
                break
            incoming = [(self.values.get_value(v), before.get(b, 0.0)) for v, b in i.detail]
            values = [value for value, share in incoming if share > 0.01 * total]
            known = values[:1] if all(_same(v, values[0]) for v in values) else []
            regions = map(region_of, values)
            new[i.name] = known[0] if known else ir.Unknown(next(filter(None, regions), None))
        self.values.update(new)

    def _branch(self, loop: ir.Loop | None, block: str, done: Pass) -> dict[str, float]:
        """Return the share of the flow to each successor."""
        last, following = self.function.blocks[block][-1], self.function.successors(block)
        if last.op != "br" or len(following) != 2:
            return dict.fromkeys(following, 1 / max(1, len(following)))
        yes, no = last.detail
        value = self.values.get_value(last.operands[0])
        leaves = loop is not None and (yes not in loop.blocks or no not in loop.blocks)
        if leaves and loop is not None:
            done.exits[block] = self._exit(last, yes not in loop.blocks)
        if isinstance(value, int):
            return {yes if value & 1 else no: 1.0}
        self._data.add(block)
        if leaves and loop is not None:  # its iterations are guessed, or another exit counts them
            return {yes if yes in loop.blocks else no: 1.0}
        return {yes: 0.5, no: 0.5}

    def _exit(self, branch: ir.Instruction, if_holds: bool) -> Exit | None:
        test = self.function.definitions.get(branch.operands[0])
        if test is None or test.op != "icmp":
            return None
        a, b = map(self.values.get_value, test.operands)
        if isinstance(a, int) and isinstance(b, int) and ir.integer_bits(test.type) > 1:
            return test.detail, a, b, if_holds
        return None

    def _run_loop(
        self, loop: ir.Loop, before: dict[str, float]
    ) -> tuple[Counts, dict[Edge, float]]:
        """Return counts for one entry of a loop, and the share of each exit."""
        outer, phis = (
            self._iterations,
            [i.name for i in self.function.blocks[loop.header] if i.op == "phi"],
        )
        counts: Counts = defaultdict(float, {loop: 1.0})

        def run(number: int) -> Pass:
            self._iterations = (*outer, number)
            done = self._pass(loop, loop.header, {})
            self._iterations = outer
            return done

        def add(done: Pass, weight: float = 1.0) -> None:
            for key, count in done.counts.items():
                counts[key] += count * weight

        self._enter(loop.header, before)
        start = {name: self.values[name] for name in phis}
        last = first = run(0)
        add(first)
        if _goes_on(first):
            self._enter(loop.header, first.back)
            step = {name: _difference(self.values[name], start[name]) for name in phis}
            second = last = run(1)
            add(second)
            trips = self._trips(first, second)
            if trips is not None and trips > FEW_TRIPS and not self._is_linear(loop, second, start):
                last = run(2)
                trips = trips if self._trips(second, last) == trips - 1 else None
                add(last, 0 if trips else 1)
            samples = _samples(trips, is_simple=len(loop.blocks) == 1)
            add(second, samples.pop(1, 1) - 1)
            for number, weight in samples.items():
                self.values.update(
                    {
                        n: s if isinstance(s := step[n], ir.Unknown) else start[n] + number * s
                        for n in phis
                    }
                )
                last = run(number)
                add(last, weight)
            number = 2 + (last is not second and not samples)
            while not samples and _goes_on(last) and number < (trips or MAX_FOLLOWED):
                self._enter(loop.header, last.back)
                last = run(number)
                add(last)
                number += 1
        return counts, self._ways_out(loop, last.leaving)

    def _is_linear(self, loop: ir.Loop, second: Pass, start: dict[str, Any]) -> bool:
        """Enter the third iteration; return whether its phis changed by the step of the second."""
        before = {name: self.values[name] for name in start}
        self._enter(loop.header, second.back)
        return all(
            isinstance(after := self.values[name], ir.Unknown)
            or _same(_difference(after, before[name]), _difference(before[name], value))
            for name, value in start.items()
        )

    def _trips(self, first: Pass, second: Pass) -> int | None:
        """Return the iterations of a loop; None if its comparisons are not linear."""
        pairs = [(before, second.exits.get(block)) for block, before in first.exits.items()]
        counts = [_count(before, after) for before, after in pairs if before and after]
        found = [count for count in counts if count]
        if not found and self._data.intersection(first.exits):
            return UNKNOWN_TRIPS
        return max(2, min(found)) if found else None

    def _ways_out(self, loop: ir.Loop, leaving: dict[Edge, float]) -> dict[Edge, float]:
        if not leaving:  # the number of iterations was a guess
            after = [(b, to) for b in loop.blocks for to in self.function.successors(b)]
            leaving = {edge: 1.0 for edge in after if edge[1] not in loop.blocks}
        total = sum(leaving.values())
        return {edge: amount / total for edge, amount in leaving.items()}


def pointers_of(i: ir.Instruction) -> list[str]:
    """Return the addresses that an instruction accesses; the target of a copy comes first."""
    if i.op in ("load", "store"):
        return i.operands[-1:]
    if i.op == "call" and "llvm.masked." in i.detail:
        return [i.operands[1 if "store" in i.detail or "scatter" in i.detail else 0]]
    if i.op == "call" and "llvm.mem" in i.detail:
        return i.operands[: 1 if "memset" in i.detail else 2]
    return []


def _goes_on(done: Pass) -> bool:
    return sum(done.back.values()) > 1e-9


def _samples(trips: int | None, is_simple: bool) -> dict[int, int]:
    """Return the iterations to follow after the first one, and how many each stands for.

    The result is empty if all iterations are followed.
    """
    if trips is None or trips <= FEW_TRIPS:
        return {}
    if is_simple:
        return {1: trips - 2, trips - 1: 1}
    return {1: 1, trips // 2: trips - 3, trips - 1: 1}


def _same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and bool(np.all(a == b))


def _difference(after: Any, before: Any) -> Any:
    unknown = isinstance(after, ir.Unknown) or isinstance(before, ir.Unknown)
    return ir.Unknown(region_of(after)) if unknown else after - before


def _count(before: Exit, after: Exit) -> int | None:
    """Return the iterations until a comparison of linearly changing operands leaves the loop."""
    predicate, a, b, leaves = before
    kind = predicate[-2:]
    distance = a - b
    step = (after[1] - after[2]) - distance
    if step == 0:
        return None
    if not leaves:
        kind = NEGATED[kind]
    turn = -distance / step
    if kind == "ne":
        return 1 if distance else 2
    if kind == "eq":
        return int(turn) + 1 if turn >= 0 and turn == int(turn) else None
    if (kind[0] == "g") != (step > 0):
        return None
    reached = math.ceil(turn) if kind[1] == "e" else math.floor(turn) + 1
    return max(0, reached) + 1
