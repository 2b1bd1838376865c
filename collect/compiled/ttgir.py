"""Triton's GPU-level intermediate code as numbers: pipeline, matrix units, bytes and operations.

Read as text, line by line: its printed form says every type, and parsing it needs no compiler.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

_OPERATION = re.compile(r'\s*(?:%[\w:.$-]+ = )?"?((?:[a-z]\w*\.)+[a-z]\w*)')
_SHAPED = re.compile(r"(\w*)<((?:\d+x)*)(!tt\.ptr<\w+>|[a-z]\w*)(?:, (#\w+))?")
_BITS = re.compile(r"\d+")
_BLOCKED = re.compile(
    r"^(#\w+) = #ttg\.blocked<\{sizePerThread = \[([\d, ]+)\].*?order = \[(\d+)", re.M
)
_MMA = re.compile(
    r"#ttg\.(?:nvidia_mma<\{versionMajor|amd_mfma<\{version|amd_wmma<\{version) = (\d+)"
    r".*?instrShape = \[([\d, ]+)\]"
)
_TENSOR_MEMORY = re.compile(r"#ttng\.tensor_memory_encoding<blockM = (\d+), blockN = (\d+)")
_WARPS = re.compile(r'"ttg\.(?:total-)?num-warps" = (\d+)')
_WARP_SIZE = re.compile(r'"ttg\.threads-per-warp" = (\d+)')
_ALLOCATED = re.compile(r"^\s*(%[\w]+) = ttg\.local_alloc(?: (%[\w#]+))?")
_INDEXED = re.compile(r"ttg\.memdesc_index (%\w+)\[")
_SPECIALIZE_ARGUMENTS = re.compile(r"ttg\.warp_specialize\(([^)]*)\)")

LOADS = {
    "tt.load",
    "tt.descriptor_load",
    "tt.descriptor_gather",
    "ttg.async_copy_global_to_local",
    "ttng.async_tma_copy_global_to_local",
    "ttng.async_tma_gather",
    "amdg.buffer_load",
    "amdg.buffer_load_to_local",
    "amdg.async_tdm_copy_global_to_local",
}
STORES = {
    "tt.store",
    "tt.descriptor_store",
    "ttng.async_tma_copy_local_to_global",
    "ttng.async_tma_scatter",
    "amdg.buffer_store",
    "amdg.async_tdm_copy_local_to_global",
}
ASYNC = {name for name in LOADS if "async" in name or name.endswith("_to_local")}
WAITS = {"ttg.async_wait", "ttng.wait_barrier", "amdg.async_wait", "amdg.async_tdm_wait"}
DOTS = {
    "tt.dot",
    "tt.dot_scaled",
    "ttng.warp_group_dot",
    "ttng.tc_gen5_mma",
    "ttng.tc_gen5_mma_scaled",
}
ATOMICS = {"tt.atomic_rmw", "tt.atomic_cas", "amdg.buffer_atomic_rmw", "amdg.buffer_atomic_cas"}
REDUCTIONS = {"tt.reduce", "tt.scan"}
FLOAT_OPERATION = re.compile(
    r"arith\.(?:add|sub|mul|div|rem|maximum|minimum|maxnum|minnum|neg)f$|math\."
)
TRITON_FLOAT_OPERATIONS = {
    "tt.extern_elementwise",
    "tt.precise_divf",
    "tt.precise_sqrt",
    "tt.clampf",
}
LOOPS = {"scf.for", "scf.while"}
MAX_CONTIGUOUS_BYTES = 16


@dataclass(frozen=True)
class Shape:
    """A tile, or a single element: how many, how wide, laid out how."""

    sizes: tuple[int, ...] = ()
    element: str = "i0"
    layout: str = ""
    in_registers: bool = False

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.sizes)

    @property
    def bits(self) -> int:
        """Bits of one element; of what a pointer points to, if it is one."""
        name = self.element.removeprefix("!tt.ptr<")
        found = _BITS.search(name)
        return int(found.group()) if found else 0

    @property
    def is_pointer(self) -> bool:
        """Whether its elements are pointers."""
        return self.element.startswith("!")

    @property
    def registers(self) -> float:
        """32-bit registers of the whole tile, all threads together; 0 of what lies elsewhere."""
        bits = 64 if self.is_pointer else self.bits
        return self.elements * bits / 32 if self.in_registers else 0.0

    @property
    def bytes(self) -> int:
        """Bytes of the tile; of a tile of pointers, those that they point to."""
        return self.elements * self.bits // 8


@dataclass
class Region:
    """What happens in one loop, or outside of any, inner loops not included."""

    depth: int = 0
    group: int = 0
    carried: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def operations(self) -> float:
        """Return operations of matrix products and on elements."""
        return self.counts["dot_flops"] + self.counts["float_ops"]


def read_ttgir(text: str) -> dict[str, float]:
    """Return the features `foretune.collect.compiled.feature_names.TTGIR` names.

    Args:
        text: a module as Triton prints it (``kernel.asm["ttgir"]``).
    """
    head, _, body = text.partition("\nmodule ")
    layouts = {name: _contiguous(sizes, first) for name, sizes, first in _BLOCKED.findall(head)}
    reader = _Reader(layouts)
    for line in body.split("\n"):
        reader.read(line)
    return _summary(text, head, body, reader)


def _summary(text: str, head: str, body: str, reader: "_Reader") -> dict[str, float]:
    threads = reader.warps(body) * _first_int(_WARP_SIZE, body, 32)
    total: Counter[str] = sum((r.counts for r in reader.regions), Counter())
    hot, carried = reader.hot_loop()
    moved = hot["load_bytes"] + hot["store_bytes"]
    work = hot["dot_flops"] + hot["float_ops"]
    version, shape = _mma(head)
    return {
        "warps": float(reader.warps(body)),
        "pipeline_depth": float(reader.pipeline_depth(body)),
        "shared_alloc_bytes": reader.allocated_bytes,
        "dots": float(total["dots"]),
        "dot_bits": float(reader.dot_bits),
        "mma_version": float(version if total["dots"] else 0),
        **{f"mma_{axis}": float(size) for axis, size in zip("mnk", shape, strict=True)},
        **{
            name: float(total[name])
            for name in (
                "async_copies", "async_waits", "convert_layouts", "shared_loads", "shared_stores",
                "reductions", "atomics",
            )
        },
        "loops": float(len(reader.regions) - 1),
        **{n: float(total[n]) for n in ("load_bytes", "store_bytes", "dot_flops", "float_ops")},
        "loop_load_bytes": float(hot["load_bytes"]),
        "loop_store_bytes": float(hot["store_bytes"]),
        "loop_dot_flops": float(hot["dot_flops"]),
        "loop_float_ops": float(hot["float_ops"]),
        "loop_intensity": work / moved if moved else 0.0,
        "loop_convert_layouts": float(hot["convert_layouts"]),
        "carried_registers": carried / threads,
        "tile_registers": reader.largest_tile / threads,
        **reader.load_width(),
    }  # fmt: skip


class _Reader:
    """Adds up what the lines of a module say, loop by loop."""

    def __init__(self, layouts: dict[str, int]) -> None:
        self.regions = [Region()]
        self.allocated_bytes = 0.0
        self.largest_tile = 0.0
        self.dot_bits = 0
        self._layouts = layouts
        self._open_loops: list[tuple[str, Region]] = []
        self._buffers: dict[str, int] = {}
        self._widths: list[tuple[float, float]] = []
        self._specialized_groups = 0
        self._in_group = False
        self._extra_warps = 0

    def read(self, line: str) -> None:
        match = _OPERATION.match(line)
        if match is None:
            self._close(line)
            return
        name = match.group(1)
        if name in LOOPS:
            self._enter(line)
        elif name == "ttg.warp_specialize":
            self._specialized_groups += 1
            self._in_group = True
        elif name == "ttg.local_alloc":
            self._allocate(line)
        else:
            self._count(name, line)

    def warps(self, body: str) -> int:
        """Return the warps of one block; specialised groups take theirs in fours."""
        declared = max((int(n) for n in _WARPS.findall(body.split("\n", 1)[0])), default=4)
        return declared + -(-self._extra_warps // 4) * 4

    def pipeline_depth(self, body: str) -> int:
        indexed = set(_INDEXED.findall(body))
        for names in _SPECIALIZE_ARGUMENTS.findall(body):  # indexed in there, by other names
            indexed.update(names.split(", "))
        return max((n for name, n in self._buffers.items() if name in indexed), default=1)

    def load_width(self) -> dict[str, float]:
        weight = sum(w for w, _ in self._widths)
        if not weight:
            return {}
        return {"load_width_bytes": sum(w * width for w, width in self._widths) / weight}

    def hot_loop(self) -> tuple[Counter[str], float]:
        """Return what one iteration of the busiest loop does, and the registers it carries.

        The groups of a warp-specialised kernel run their loops side by side: they are one.
        """
        groups: dict[tuple[int, int], list[Region]] = {}
        for number, region in enumerate(self.regions[1:], 1):
            key = (region.group, region.depth) if region.group else (0, number)
            groups.setdefault(key, []).append(region)
        best = max(
            groups.values(),
            key=lambda rs: (
                sum(r.operations() for r in rs),
                sum(r.counts["load_bytes"] for r in rs),
            ),
            default=[],
        )
        return sum((r.counts for r in best), Counter()), max((r.carried for r in best), default=0.0)

    def _enter(self, line: str) -> None:
        depth = len(self._open_loops) + 1
        group = self._specialized_groups if self._in_group else 0
        carried = 0.0
        if "->" in line:
            carried = sum(s.registers for s in _shapes(line.partition("->")[2]) if s.sizes)
        self.regions.append(Region(depth, group, carried))
        self._open_loops.append((_indent(line), self.regions[-1]))

    def _close(self, line: str) -> None:
        stripped = line.lstrip()
        if stripped.startswith("partition"):
            warps = re.search(r"num_warps\((\d+)\)", stripped)
            self._extra_warps += int(warps.group(1)) if warps else 0
        elif stripped.startswith("}"):
            indent = _indent(line)
            if self._open_loops and self._open_loops[-1][0] == indent and "do {" not in stripped:
                self._open_loops.pop()
            elif stripped.startswith("} : (") and self._in_group:
                self._in_group = False

    def _allocate(self, line: str) -> None:
        found = _ALLOCATED.match(line)
        shape = next(_shapes(line.partition("->")[2]), None)
        if found is None or shape is None:
            return
        self.allocated_bytes += shape.bytes
        is_barrier = shape.element == "i64"
        if found.group(2) is None and not is_barrier and len(shape.sizes) > 1:
            self._buffers[found.group(1)] = shape.sizes[0]
        elif found.group(2) is not None:
            self._region.counts["shared_stores"] += 1

    @property
    def _region(self) -> Region:
        return self._open_loops[-1][1] if self._open_loops else self.regions[0]

    def _count(self, name: str, line: str) -> None:
        if name in LOADS:
            self._load(name, line)
        elif name in STORES:
            shape = _last(line) if name.startswith("amdg.") else _first(line)
            self._region.counts["store_bytes"] += shape.bytes
        elif name in DOTS:
            self._dot(line)
        elif FLOAT_OPERATION.match(name) or name in TRITON_FLOAT_OPERATIONS:
            shape = _last(line)
            self._region.counts["float_ops"] += shape.elements
            self.largest_tile = max(self.largest_tile, shape.registers)
        elif name in _COUNTED:
            self._region.counts[_COUNTED[name]] += 1

    def _load(self, name: str, line: str) -> None:
        shape = _last(line) if name.startswith(("ttng.", "amdg.")) else _first(line)
        self._region.counts["load_bytes"] += shape.bytes
        self._region.counts["async_copies"] += name in ASYNC
        contiguous = self._layouts.get(shape.layout)
        if contiguous:
            width = min(contiguous * shape.bits / 8, MAX_CONTIGUOUS_BYTES)
            self._widths.append((shape.bytes, width))

    def _dot(self, line: str) -> None:
        shapes = list(_shapes(line.partition(" : ")[2]))
        tiles = [s for s in shapes if len(s.sizes) > 1 and not s.is_pointer]
        self._region.counts["dots"] += 1
        if len(tiles) < 2:
            return
        left, right = tiles[0], tiles[1]
        packed = 2 if "= e2m1" in line else 1  # two elements of four bits in a byte
        self._region.counts["dot_flops"] += 2 * left.elements * right.sizes[-1] * packed
        self.dot_bits = max(self.dot_bits, left.bits // packed)
        self.largest_tile = max(self.largest_tile, tiles[-1].registers)


_COUNTED = {
    **dict.fromkeys(WAITS, "async_waits"),
    **dict.fromkeys(ATOMICS, "atomics"),
    **dict.fromkeys(REDUCTIONS, "reductions"),
    "ttg.convert_layout": "convert_layouts",
    "ttg.local_load": "shared_loads",
    "ttg.local_store": "shared_stores",
}


def _shapes(text: str) -> Iterator[Shape]:
    for kind, sizes, element, layout in _SHAPED.findall(text):
        extents = tuple(map(int, sizes.split("x")[:-1]))
        yield Shape(extents, element, layout, in_registers=kind == "tensor")


def _types(line: str) -> str:
    return line.rpartition(" : ")[2]


def _first(line: str) -> Shape:
    """Return the first type after the colon; for a scalar what its pointer points to."""
    return next(_shapes(_types(line)), Shape())


def _last(line: str) -> Shape:
    shape = Shape()
    for shape in _shapes(_types(line)):
        pass
    return shape


def _contiguous(sizes: str, first: str) -> int:
    return int(sizes.split(", ")[int(first)])


def _mma(head: str) -> tuple[int, tuple[int, int, int]]:
    """Return the newest matrix unit in use and the shape of its instruction."""
    found = [(int(version), _sizes(shape)) for version, shape in _MMA.findall(head)]
    tensor = [(5, (int(m), int(n), 0)) for m, n in _TENSOR_MEMORY.findall(head)]
    return max(found + tensor, default=(0, (0, 0, 0)))


def _sizes(shape: str) -> tuple[int, int, int]:
    sizes = [int(s) for s in shape.split(", ")]
    return (sizes[-2], sizes[-1], 0) if len(sizes) < 3 else (sizes[-3], sizes[-2], sizes[-1])


def _first_int(pattern: re.Pattern[str], text: str, default: int) -> int:
    found = pattern.search(text)
    return int(found.group(1)) if found else default


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]
