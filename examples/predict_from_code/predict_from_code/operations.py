"""What a call computes and moves: cycles on a current core, and lines between the caches.

Throughputs and latencies are rounded ones of current x86 cores. They need not be exact, because
learned costs correct them.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from predict_from_code import functions as ir
from predict_from_code.sampled_run import Counts, SampledRun, region_of

UNIT_BYTES = 32  # width of an execution unit; wider vectors count several times
WINDOW = 256  # operations that a core keeps in flight
FREE = frozenset(
    {"phi", "ret", "getelementptr", "switch", "alloca", "freeze", "unreachable", "fence", "resume"}
).union(ir.POINTER_CASTS)
DIVISIONS = ("sdiv", "udiv", "srem", "urem")
Cost = tuple[str, float, float]  # kind of operation, units of it, latency in cycles
PLAIN: dict[str, tuple[str, float]] = {
    **dict.fromkeys(("fadd", "fsub", "fcmp"), ("fadd", 3)),
    **{"fmul": ("fmul", 3), "fneg": ("fadd", 1), "load": ("load", 5), "store": ("store", 0)},
    **dict.fromkeys(ir.CONVERSIONS, ("cvt", 4)),
    **dict.fromkeys(("shufflevector", "insertelement", "extractelement"), ("shuffle", 1)),
}
CALLS: tuple[tuple[str, str, float], ...] = (
    (r"fmuladd|llvm\.fma\.", "fma", 4),
    (r"masked\.load", "load", 5),
    (r"masked\.store", "store", 0),
    (r"llvm\.mem", "copy", 0),
    (r"vector\.reduce", "reduce", 12),
    (r"llvm\.(fabs|copysign|max|min)", "fadd", 2),
    (r"llvm\.(smax|smin|umax|umin|abs|ctpop|bswap|fsh|usub|uadd|ssub|sadd)", "alu", 1),
    (r"llvm\.(floor|ceil|trunc|rint|round|nearbyint)", "cvt", 8),
)
"""Called functions: pattern, kind, latency."""
IGNORED = re.compile(r"llvm\.(assume|lifetime|dbg|experimental|expect|prefetch|stacksave)")


class Operations:
    """Counts the operations of a `SampledRun`."""

    def __init__(self, run: SampledRun) -> None:
        self.run, self.function = run, run.function
        self._uses: dict[str, list[ir.Instruction]] = defaultdict(list)
        for i in (i for block in self.function.blocks.values() for i in block):
            for operand in i.operands:
                self._uses[operand].append(i)
        self.costs = {
            i: cost
            for block in self.function.blocks.values()
            for i in block
            if (cost := self._cost(i))
        }

    def totals(self) -> dict[str, float]:
        """Return operations by kind, and cycles by throughput and by chains, of one call."""
        total: Counts = defaultdict(float)
        by_loop: dict[ir.Loop | None, Counts] = defaultdict(lambda: defaultdict(float))
        for block, code in self.function.blocks.items():
            count, loop = self.run.counts[block], self.function.innermost[block]
            for kind, units, _ in (self.costs[i] for i in code if i in self.costs):
                by_loop[loop][kind] += units * count
        for loop, kinds in by_loop.items():
            busy, chain = throughput(kinds), 0.0
            if loop is not None:
                chain = self.chain_cycles(loop) * self.run.counts[loop.header]
                chain /= self._overlap(loop, sum(kinds.values()))
            cycles = {"busy": busy, "chain": chain, "cycles": max(busy, chain)}
            for kind, amount in (*kinds.items(), *cycles.items()):
                total[kind] += amount
        return dict(total)

    def _overlap(self, loop: ir.Loop, operations: float) -> float:
        """Return how many runs of an inner loop overlap through out-of-order execution."""
        entries = self.run.counts[loop]
        if loop.parent is None or not entries:
            return 1.0
        return 1.0 + min(3.0, WINDOW * entries / operations)

    def _cost(self, i: ir.Instruction) -> Cost | None:
        width, vector = ir.size_of(i.type) if i.type else 0, i.type.startswith("<")
        units = max(1, math.ceil(width / UNIT_BYTES))
        if i.op == "br":
            return ("branch", 1, 0) if len(i.detail) == 2 else None
        if i.op in FREE or (i.op in ("zext", "trunc") and not vector):
            return None
        if i.op == "call":
            return self._call_cost(i, units)
        if i.op in PLAIN or i.op in ("fdiv", "frem") or "float" in i.type or "double" in i.type:
            return self._float_cost(i, units)
        if i.op in DIVISIONS and isinstance(i.operands[1], str):
            return ("idiv", ir.lanes(i.type), 12)
        if i.op == "mul" or i.op in DIVISIONS:  # a division by a constant is a product and a shift
            several = 1 if i.op == "mul" else 2
            return ("vmul" if vector else "mul", several * units, 2 * several + 1)
        return ("valu" if vector else "alu", units, 1)

    def _float_cost(self, i: ir.Instruction, units: float) -> Cost | None:
        """Return the cost of an instruction on floats or lanes, of a load, or of a store."""
        if i.op in ("fdiv", "frem"):
            return _division(i.type, 11)
        if i.op == "fcmp" and self._is_extreme(i):
            return None
        if i.op == "fmul" and self._fuses(i):
            return ("fused", 0, 0)
        if i.op not in PLAIN:  # a selection
            test = self.function.definitions.get(i.operands[0])
            extreme = test is not None and test.op == "fcmp" and self._is_extreme(test)
            return ("fadd", units, 2 if extreme else 1)
        kind, latency = PLAIN[i.op]
        made = map(self.function.definitions.get, i.operands)
        fused = i.op == "fadd" and any(m and m.op == "fmul" and self._fuses(m) for m in made)
        return (kind, units, 4 if fused else latency)

    def _call_cost(self, i: ir.Instruction, units: float) -> Cost | None:
        if IGNORED.search(i.detail):
            return None
        if "masked.gather" in i.detail:
            return ("gather", ir.lanes(i.type), 20)
        if "masked.scatter" in i.detail:
            return ("scatter", 8, 0)
        if "llvm.sqrt" in i.detail:
            return _division(i.type, 14)
        if "llvm.mem" in i.detail:
            return ("copy", copied_bytes(self.run, i) / UNIT_BYTES, 0)
        found = next((c for c in CALLS if re.search(c[0], i.detail)), ("", "call", 40.0))
        return (found[1], 6 if found[1] == "reduce" else units, found[2])

    def _fuses(self, i: ir.Instruction) -> bool:
        """Whether a product becomes part of a fused multiply-add."""
        uses = self._uses[i.name]
        return i.contracts and len(uses) == 1 and uses[0].op in ("fadd", "fsub")

    def _is_extreme(self, i: ir.Instruction) -> bool:
        """Whether a comparison and a selection of the same values form one minimum or maximum."""
        uses = self._uses[i.name]
        return (
            len(uses) == 1
            and uses[0].op == "select"
            and set(uses[0].operands[1:]) == set(i.operands)
        )

    def chain_cycles(self, loop: ir.Loop) -> float:
        """Return the cycles per iteration of the longest loop-carried dependency chain."""
        phis = [i for i in self.function.blocks[loop.header] if i.op == "phi"]
        reached: dict[Any, dict[int, float]] = {i.name: {n: 0.0} for n, i in enumerate(phis)}
        for block, code in self.function.blocks.items():  # in the order of the flow
            for i in code if block in loop.blocks else ():
                if i.name and i.name not in reached:
                    latency = self.costs[i][2] if i in self.costs else 0.0
                    found = reached[i.name] = {}
                    for before in (reached.get(operand, {}) for operand in i.operands):
                        for start, cycles in before.items():
                            found[start] = max(found.get(start, 0.0), cycles + latency)
        longest = np.full((len(phis), len(phis)), -np.inf)
        for n, phi in enumerate(phis):
            for value, block in phi.detail:
                if block in loop.blocks:
                    for start, latency in reached.get(value, {}).items():
                        longest[start, n] = max(longest[start, n], latency)
        return _cycle_time(longest)


def throughput(kinds: Counts) -> float:
    """Return the cycles of operations that do not wait for each other."""
    k = kinds
    vector = k["fmul"] + k["fma"] + k["fadd"] + k["valu"] + k["shuffle"] + k["cvt"] + k["vmul"]
    return max(
        (k["fmul"] + k["fma"]) / 2,
        k["fadd"] / 2,
        (vector + k["reduce"]) / 4,
        (k["load"] + k["store"] + k["gather"]) / 2,
        k["store"] + k["copy"],
        (k["alu"] + k["branch"] + k["mul"]) / 4,
        sum(k.values()) / 6,
        k["fdiv"] * 3 + k["fdiv64"] * 5,
        k["idiv"] * 8,
        (k["cvt"] + k["vmul"]) / 2,
        (k["shuffle"] + k["reduce"]) / 2,
        k["gather"],
        k["scatter"] * 1.5,
        k["call"] * 20,
    )


def copied_bytes(run: SampledRun, i: ir.Instruction) -> float:
    """Return the bytes that a call of memcpy or memset moves; one line if unknown."""
    length = run.values.get_value(i.operands[2])
    return float(length) if isinstance(length, int) else 64.0


def _division(kind: str, latency: float) -> Cost:
    double = "double" in kind
    units = max(0.5, ir.size_of(kind) / UNIT_BYTES if kind.startswith("<") else 0.5)
    return ("fdiv64", units, latency + 4) if double else ("fdiv", units, latency)


def _cycle_time(longest: np.ndarray) -> float:
    """Return the maximum mean latency of a cycle, the growth in time per iteration."""
    if not longest.size:
        return 0.0
    reached, history = np.zeros(len(longest)), []
    for _ in range(12):
        reached = np.maximum((reached[:, None] + longest).max(axis=0), -1e9)
        history.append(max(0.0, float(reached.max())))
    return max(0.0, (history[-1] - history[5]) / 6)


LINE = 64  # bytes of a cache line
DEFAULT_BYTES = 4096.0  # assumed size of an array that nothing tells
Signature = tuple[tuple[float, float], ...] | None
"""Stride and iterations of each loop; None if data decides the address."""


@dataclass(frozen=True, eq=False)
class Access:
    """A memory access; ``count`` is how often it happens in a call.

    ``region`` is the array, if known; ``nest`` has the loops around it, innermost first;
    ``strides`` are bytes from one iteration to the next, per loop, None if data decides the
    address; ``offset`` is an address, ``width`` the bytes per access.
    """

    region: int | None
    nest: tuple[ir.Loop, ...]
    strides: tuple[float, ...] | None
    offset: int
    width: float
    count: float


Group = tuple[float, list[Access]]
"""Lines that accesses to one array touch in one run of a loop, and these accesses."""


class Traffic:
    """The memory traffic of a call; ``sizes`` are the bytes of each array, by region.

    Each access is a set of strides, one for each loop around it. A loop whose lines fit into a
    cache keeps them there. The lines of the smallest loop that does not fit enter the cache each
    time that loop runs (the layer condition of stencils, for any loops). Calls follow each other,
    so data that fits as a whole stays.
    """

    def __init__(self, run: SampledRun, sizes: Mapping[int, float]) -> None:
        self.run, self.sizes = run, sizes
        self._trips = {
            loop: run.counts[loop.header] / run.counts[loop] if run.counts[loop] else 0.0
            for loop in run.function.loops.values()
        }
        self.accesses = self._read_accesses()
        self._touched: dict[ir.Loop | None, tuple[list[Group], float]] = {}

    def totals(self, caches: Mapping[str, float]) -> dict[str, float]:
        """Return the bytes touched, and the lines that enter each cache (name -> bytes)."""
        footprint = self._touch(None)[1] * LINE
        misses = {name: self._misses(size) for name, size in caches.items() if footprint > size}
        return {"footprint": footprint, **misses}

    def _misses(self, capacity: float) -> float:
        total, missing = 0.0, defaultdict[ir.Loop | None, set[Access]](set)
        for access in self.accesses:
            smallest = next((o for o in access.nest if self._touch(o)[1] * LINE > capacity), None)
            missing[smallest].add(access)
        for loop, members in missing.items():
            runs = self.run.counts[loop] if loop else 1.0
            for touched, accesses in self._touch(loop)[0]:
                mine = [access for access in accesses if access in members]
                lines = touched * runs * len(mine) / len(accesses)
                if mine and mine[0].strides is None:
                    size = self._size(mine[0].region)
                    count = sum(access.count for access in mine)
                    missed = count * max(0.0, 1 - capacity / size)
                    lines = min(count, max(missed, lines if size > capacity else 0.2 * lines))
                total += lines
        return total

    def _size(self, region: int | None) -> float:
        return max(LINE, self.sizes.get(region or 0, DEFAULT_BYTES))

    def _touch(self, loop: ir.Loop | None) -> tuple[list[Group], float]:
        """Return what one run of a loop (None: the call) touches, and its lines."""
        if loop not in self._touched:
            groups: dict[tuple[int | None, Signature], list[Access]] = defaultdict(list)
            for access in self.accesses:
                if loop is None or loop in access.nest:
                    groups[access.region, self._signature(access, loop)].append(access)
            found = [(self._lines(*key, group, loop), group) for key, group in groups.items()]
            by_region: dict[int | None, float] = defaultdict(float)
            for lines, group in found:
                by_region[group[0].region] += lines
            total = sum(min(lines, self._most(region)) for region, lines in by_region.items())
            self._touched[loop] = found, total
        return self._touched[loop]

    def _most(self, region: int | None) -> float:
        return self.sizes.get(region or 0, math.inf) / LINE + 1

    def _signature(self, access: Access, loop: ir.Loop | None) -> Signature:
        """Return stride and iterations of each loop inside ``loop``, by stride."""
        if access.strides is None:
            return None
        depth = access.nest.index(loop) + 1 if loop else len(access.nest)
        pairs = zip(access.strides[:depth], access.nest[:depth], strict=True)
        return tuple(sorted((abs(s), round(self._trips[o], 2)) for s, o in pairs if s))

    def _lines(
        self, region: int | None, signature: Signature, group: list[Access], loop: ir.Loop | None
    ) -> float:
        if signature is None:
            runs = self.run.counts[loop] if loop else 1.0
            total = self._size(region) / LINE
            return total * (1 - math.exp(-sum(a.count for a in group) / runs / total))
        pieces, copies = _merge([(a.offset, a.offset + a.width) for a in group]), 1.0
        for stride, trips in signature:
            if stride <= max(high - low for low, high in pieces) + LINE:
                longer = max(0.0, trips - 1) * stride
                pieces = _merge([(low, high + longer) for low, high in pieces])
            else:
                copies *= trips
        lines = copies * sum(
            max((high - low) / LINE, min(1.0, 0.5 + (high - low) / LINE / 2))
            for low, high in pieces
        )
        return min(lines, self._most(region))

    def _read_accesses(self) -> list[Access]:
        block_of = {i: b for b, code in self.run.function.blocks.items() for i in code}
        found = []
        for (i, _), addresses in self.run.addresses.items():
            block = block_of[i]
            loop = self.run.function.innermost[block]
            nest = tuple(loop.nest()) if loop else ()
            count, width = self.run.counts[block], _width(self.run, i)
            region = next(filter(None, map(region_of, addresses.values())), None)
            if any(isinstance(v, ir.Unknown) for v in addresses.values()):
                elements = ir.lanes(i.type) if i.op == "call" else 1
                found.append(Access(region, nest, None, 0, width / elements, count * elements))
                continue
            known = {k: np.atleast_1d(v).tolist() for k, v in addresses.items()}
            firsts = {k: v[0] for k, v in known.items()}
            strides = tuple(_stride(firsts, len(nest) - 1 - n) for n in range(len(nest)))
            offsets = next(iter(known.values()))
            share = width / len(offsets)
            found += [Access(region, nest, strides, offset, share, count) for offset in offsets]
        return found


def _width(run: SampledRun, i: ir.Instruction) -> float:
    if i.op == "call" and "llvm.mem" in i.detail:
        return copied_bytes(run, i)
    writes = "store" in i.detail or "scatter" in i.detail
    return 32.0 if i.op == "call" and writes else ir.size_of(i.type)


def _stride(addresses: Mapping[tuple[int, ...], int], level: int) -> float:
    """Return how far an address moves in one iteration of the loop at a nesting level."""
    seen: dict[tuple[int, ...], tuple[int, int]] = {}
    for iterations, address in addresses.items():
        if len(iterations) <= level:
            continue
        others = (*iterations[:level], -1, *iterations[level + 1 :])
        number, first = seen.setdefault(others, (iterations[level], address))
        if iterations[level] > number:
            return (address - first) / (iterations[level] - number)
    return 0.0


def _merge(pieces: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join memory ranges that are less than a line apart."""
    joined: list[tuple[float, float]] = []
    for low, high in sorted(pieces):
        if joined and low - joined[-1][1] <= LINE:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined
