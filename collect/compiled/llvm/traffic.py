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

import numpy as np

from foretune.collect.compiled.llvm.functions import Instruction, Loop, Unknown, lanes, size_of
from foretune.collect.compiled.llvm.operations import copied_bytes
from foretune.collect.compiled.llvm.sampled_run import SampledRun, region_of

LINE = 64
"""Bytes of a cache line."""
DEFAULT_BYTES = 4096.0
"""Assumed size of an array that nothing tells."""
Signature = tuple[tuple[float, float], ...] | None
"""Stride and iterations of each loop; None if data decides the address."""


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
    """

    region: int | None
    nest: tuple[Loop, ...]
    strides: tuple[float, ...] | None
    offset: int
    width: float
    count: float


Group = tuple[float, list[Access]]
"""Lines that accesses to one array touch in one run of a loop, and these."""


class Traffic:
    """The memory traffic of a call.

    Args:
        run: the call.
        sizes: bytes of each array, by region.
    """

    def __init__(self, run: SampledRun, sizes: Mapping[int, float]) -> None:
        self.run, self.sizes = run, sizes
        self._trips = {
            loop: run.counts[loop.header] / run.counts[loop] if run.counts[loop] else 0.0
            for loop in run.function.loops.values()
        }
        self.accesses = self._read_accesses()
        self._touched: dict[Loop | None, tuple[list[Group], float]] = {}

    def totals(self, caches: Mapping[str, float]) -> dict[str, float]:
        """Return the bytes touched, and the lines that enter each cache (name -> bytes)."""
        footprint = self._touch(None)[1] * LINE
        misses = {name: self._misses(size) for name, size in caches.items() if footprint > size}
        return {"footprint": footprint, **misses}

    def _misses(self, capacity: float) -> float:
        total, missing = 0.0, defaultdict[Loop | None, set[Access]](set)
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

    def _touch(self, loop: Loop | None) -> tuple[list[Group], float]:
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

    def _signature(self, access: Access, loop: Loop | None) -> Signature:
        """Return stride and iterations of each loop inside ``loop``, by stride."""
        if access.strides is None:
            return None
        depth = access.nest.index(loop) + 1 if loop else len(access.nest)
        pairs = zip(access.strides[:depth], access.nest[:depth], strict=True)
        return tuple(sorted((abs(s), round(self._trips[o], 2)) for s, o in pairs if s))

    def _lines(
        self, region: int | None, signature: Signature, group: list[Access], loop: Loop | None
    ) -> float:
        """Return the lines that a group touches in one run of a loop."""
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
            if any(isinstance(v, Unknown) for v in addresses.values()):
                elements = lanes(i.type) if i.op == "call" else 1
                found.append(Access(region, nest, None, 0, width / elements, count * elements))
                continue
            known = {k: np.atleast_1d(v).tolist() for k, v in addresses.items()}
            firsts = {k: v[0] for k, v in known.items()}
            strides = tuple(_stride(firsts, len(nest) - 1 - n) for n in range(len(nest)))
            offsets = next(iter(known.values()))
            found += [
                Access(region, nest, strides, offset, width / len(offsets), count)
                for offset in offsets
            ]
        return found


def _width(run: SampledRun, i: Instruction) -> float:
    """Return the bytes of an access."""
    if i.op == "call" and "llvm.mem" in i.detail:
        return copied_bytes(run, i)
    writes = "store" in i.detail or "scatter" in i.detail
    return 32.0 if i.op == "call" and writes else size_of(i.type)


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
