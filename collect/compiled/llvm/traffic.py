"""Cache lines that a call moves between the levels of the memory hierarchy.

Each access is a set of strides, one for each loop around it. A loop whose lines fit into a cache
keeps them there; what the smallest loop that does not fit touches enters the cache each time that
loop runs (the layer condition of stencils, for any loops). Calls follow each other: what fits as a
whole stays.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretune.collect.compiled.llvm.functions import Instruction, Loop, lanes, size_of
from foretune.collect.compiled.llvm.operations import Operations, copied_bytes
from foretune.collect.compiled.llvm.sampled_run import Counts, SampledRun
from foretune.collect.compiled.llvm.values import Unknown, region_of

LINE = 64
"""Bytes of a cache line."""
WAY = 4096
"""Bytes after which addresses fall into the same set of the first cache."""
DEFAULT_BYTES = 4096.0
"""Assumed size of an array that nothing tells."""


@dataclass(frozen=True, eq=False)
class Access:
    """An access, as often as it happens in a call.

    Attributes:
        region: the array, if known.
        nest: loops around it, from the inside.
        strides: bytes from one iteration to the next, per loop; None if data decides the address.
        offset: an address.
        width: bytes at once.
        count: how often.
        writes: whether it stores.
        chased: whether the iteration before loads its address.
    """

    region: int | None
    nest: tuple[Loop, ...]
    strides: tuple[float, ...] | None
    offset: int
    width: float
    count: float
    writes: bool
    chased: bool = False


@dataclass(frozen=True)
class Lines:
    """Lines that a group of accesses touches in one run of a loop.

    ``crowded`` counts a line several times if others use only some sets of the first cache: strides
    that are multiples of large powers of two.
    """

    lines: float
    crowded: float
    kind: str
    accesses: tuple[Access, ...]
    region: int | None


class Traffic:
    """The memory traffic of a call.

    Args:
        operations: the call.
        sizes: bytes of each array, by region.
    """

    def __init__(self, operations: Operations, sizes: Mapping[int, float]) -> None:
        self.run, self.sizes = operations.run, sizes
        loops = self.run.function.loops.values()
        entries = {loop: self.run.counts[loop] for loop in loops}
        self._trips = {
            loop: self.run.counts[loop.header] / n if n else 0.0 for loop, n in entries.items()
        }
        self._chasing = {loop for loop in loops if entries[loop] and operations.chases(loop)}
        self.accesses = self._read_accesses()
        self._touched: dict[Loop | None, tuple[list[Lines], float, float]] = {}

    def totals(self, caches: Mapping[str, float]) -> dict[str, float]:
        """Return lines that enter each cache (name -> bytes) per call, by kind of access."""
        total: Counts = defaultdict(float)
        all_lines = self._touch(None)[1]
        total["footprint"] = all_lines * LINE
        total["accessed"] = sum(a.count * a.width for a in self.accesses)
        total["random"] = sum(a.count for a in self.accesses if a.strides is None)
        for level, (name, capacity) in enumerate(caches.items()):
            if self._total(None, level) * LINE > capacity:
                self._add_misses(total, name, capacity, level)
        return dict(total)

    def _add_misses(self, total: Counts, cache: str, capacity: float, level: int) -> None:
        missing: dict[Loop | None, set[Access]] = defaultdict(set)
        for access in self.accesses:
            smallest = next(
                (o for o in access.nest if self._total(o, level) * LINE > capacity), None
            )
            missing[smallest].add(access)
        for loop, members in missing.items():
            runs = self.run.counts[loop] if loop else 1.0
            for group in self._touch(loop)[0]:
                mine = [access for access in group.accesses if access in members]
                if not mine:
                    continue
                lines = group.lines * runs * len(mine) / len(group.accesses)
                if group.kind in ("random", "chased"):
                    size = self._size(group.region)
                    count = sum(access.count for access in mine)
                    missed = count * max(0.0, 1 - capacity / size)
                    lines = min(count, max(missed, lines if size > capacity else 0.2 * lines))
                total[f"{cache}_{group.kind}"] += lines
                if any(access.writes for access in mine):
                    total[f"{cache}_written"] += lines

    def _total(self, loop: Loop | None, level: int) -> float:
        """Return the lines of one run of a loop; for the first cache, the crowded ones."""
        _, lines, crowded = self._touch(loop)
        return lines if level else crowded

    def _size(self, region: int | None) -> float:
        return max(LINE, self.sizes.get(region or 0, DEFAULT_BYTES))

    def _touch(self, loop: Loop | None) -> tuple[list[Lines], float, float]:
        """Return what one run of a loop (None: the call) touches; its lines, and crowded."""
        if loop not in self._touched:
            groups: dict[tuple[object, ...], list[Access]] = defaultdict(list)
            for access in self.accesses:
                if loop is None or loop in access.nest:
                    groups[access.region, self._signature(access, loop)].append(access)
            found = [self._lines(group, loop) for group in groups.values()]
            by_region: dict[int | None, float] = defaultdict(float)
            for one in found:
                by_region[one.region] += one.lines
            total = sum(
                min(lines, self.sizes.get(region or 0, math.inf) / LINE + 1)
                for region, lines in by_region.items()
            )
            self._touched[loop] = found, total, total + sum(o.crowded - o.lines for o in found)
        return self._touched[loop]

    def _signature(
        self, access: Access, loop: Loop | None
    ) -> tuple[tuple[float, float], ...] | str:
        """Return stride and iterations of each loop inside ``loop``, by stride."""
        if access.strides is None:
            return "chased" if access.chased else "random"
        depth = access.nest.index(loop) + 1 if loop else len(access.nest)
        pairs = zip(access.strides[:depth], access.nest[:depth], strict=True)
        return tuple(sorted((abs(s), round(self._trips[o], 2)) for s, o in pairs if s))

    def _lines(self, group: list[Access], loop: Loop | None) -> Lines:
        region, signature = group[0].region, self._signature(group[0], loop)
        if isinstance(signature, str):
            runs = self.run.counts[loop] if loop else 1.0
            total = self._size(region) / LINE
            touched = total * (1 - math.exp(-sum(a.count for a in group) / runs / total))
            return Lines(touched, touched, signature, tuple(group), region)
        pieces = _merge([(a.offset, a.offset + a.width) for a in group])
        copies, strided, sets = 1.0, False, 1.0
        for stride, trips in signature:
            if stride <= max(high - low for low, high in pieces) + LINE:
                longer = max(0.0, trips - 1) * stride
                pieces = _merge([(low, high + longer) for low, high in pieces])
            else:
                copies, strided = copies * trips, True
                sets = max(sets, math.gcd(int(stride), WAY) / LINE)
        lines = copies * sum(
            max((high - low) / LINE, min(1.0, 0.5 + (high - low) / LINE / 2))
            for low, high in pieces
        )
        short = strided and max(high - low for low, high in pieces) < 4 * LINE
        most = self.sizes.get(region or 0, math.inf) / LINE + 1
        lines, kind = min(lines, most), "strided" if short else "stream"
        return Lines(lines, lines * (sets if short else 1.0), kind, tuple(group), region)

    def _read_accesses(self) -> list[Access]:
        block_of = {i: b for b, code in self.run.function.blocks.items() for i in code}
        found = []
        for (i, number), addresses in self.run.addresses.items():
            block = block_of[i]
            loop = self.run.function.innermost[block]
            nest = tuple(loop.nest()) if loop else ()
            count, width, writes = self.run.counts[block], *_width(self.run, i, number)
            region = next(filter(None, map(region_of, addresses.values())), None)
            if any(isinstance(v, Unknown) for v in addresses.values()):
                elements = lanes(i.type) if i.op == "call" else 1
                chased = not writes and loop in self._chasing
                found.append(
                    Access(
                        region, nest, None, 0, width / elements, count * elements, writes, chased
                    )
                )
                continue
            known = {k: _lanes(v) for k, v in addresses.items()}
            firsts = {k: v[0] for k, v in known.items()}
            strides = tuple(_stride(firsts, len(nest) - 1 - n) for n in range(len(nest)))
            offsets = next(iter(known.values()))
            found += [
                Access(region, nest, strides, offset, width / len(offsets), count, writes)
                for offset in offsets
            ]
        return found


def _lanes(address: Any) -> list[int]:
    """Return the addresses of a vector, or the only one."""
    return list(map(int, address)) if isinstance(address, np.ndarray) else [address]


def _width(run: SampledRun, i: Instruction, number: int) -> tuple[float, bool]:
    """Return the bytes of an access, and whether it writes."""
    if i.op != "call":
        return size_of(i.type), i.op == "store"
    if "llvm.mem" in i.detail:
        return copied_bytes(run, i), number == 0
    writes = "store" in i.detail or "scatter" in i.detail
    return (32.0 if writes else size_of(i.type)), writes


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
    """Join pieces of memory that are less than a line apart."""
    joined: list[tuple[float, float]] = []
    for low, high in sorted(pieces):
        if joined and low - joined[-1][1] <= LINE:
            joined[-1] = (joined[-1][0], max(joined[-1][1], high))
        else:
            joined.append((low, high))
    return joined
