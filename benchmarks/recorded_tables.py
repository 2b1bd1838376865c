"""Recorded tables of real GPUs as calls of kernels, the way their authors launch them.

A row of such a table says sizes, types and strides, a configuration, and its time. Here it becomes
what a decorator sees: arguments, a grid, a list of configurations. Known are the products and the
attention that PyTorch's Inductor makes from Triton templates, products with every tile, and a
softmax of rows; beside them what this folder's commands timed (`recorded_gpu`). Of tables of whole
spaces, lists are cut as authors write them: at a fixed
tile, with one knob of the tile, or some configurations at random.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import triton
import triton.language as tl
from launch_training import MeasuredProblem

from foretune.collect.compiled.arguments import Tensor
from foretune.device import Device, find_device
from foretune.errors import UnknownName
from foretune.features.launches import launch_features
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call, problem_from_arguments, source_hash
from foretune.tune.triton.tiles import ShapeLaw, shape_law, tile_launches

LAWS: dict[Any, ShapeLaw | None] = {}
"""What the code of a kernel showed, by kernel, constants and list."""


@triton.jit
def tiled_product(
    A,
    B,
    C,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
):
    """Multiply; what its parameters mean can only be read from the code."""
    across = tl.cdiv(N, WIDE)
    rows = (tl.program_id(0) // across) * TALL + tl.arange(0, TALL)
    columns = (tl.program_id(0) % across) * WIDE + tl.arange(0, WIDE)
    sums = tl.zeros((TALL, WIDE), dtype=tl.float32)
    for start in range(0, K, DEEP):
        depth = start + tl.arange(0, DEEP)
        a = tl.load(A + rows[:, None] * stride_am + depth[None, :] * stride_ak)
        b = tl.load(B + depth[:, None] * stride_bk + columns[None, :] * stride_bn)
        sums = tl.dot(a, b.to(a.dtype), sums)
    at = C + rows[:, None] * stride_cm + columns[None, :] * stride_cn
    tl.store(at, sums.to(C.dtype.element_ty))


@triton.jit
def mm(
    A,
    B,
    C,
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    stride_cn,
    ALLOW_TF32: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Multiply, with parameters as Inductor names them."""
    tiled_product(
        A,
        B,
        C,
        M,
        N,
        K,
        stride_am,
        stride_ak,
        stride_bk,
        stride_bn,
        stride_cm,
        stride_cn,
        BLOCK_M,
        BLOCK_N,
        BLOCK_K,
    )


@triton.jit
def flex_attention(
    Q,
    K,
    V,
    OUT,
    KV_NUM_BLKS,
    KV_IDX,
    Z,
    H,
    Q_LEN,
    KV_LEN,
    NODES,
    USED,
    QK_HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Stand for attention under a mask of blocks: how many are visited is data, no argument."""


@triton.jit
def softmax_rows(OUT, IN, rows, columns, stride, WIDTH: tl.constexpr):
    """Compute the softmax of a row per block."""
    at = tl.arange(0, WIDTH)
    x = tl.load(IN + tl.program_id(0) * stride + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(x - tl.max(x, axis=0))
    tl.store(OUT + tl.program_id(0) * stride + at, e / tl.sum(e, axis=0), mask=at < columns)


@dataclass(frozen=True)
class Recorded:
    """One problem: a call, and the time of every configuration.

    Attributes:
        kernel: of the table.
        dtype: that tells kinds of problems apart.
        call: as a decorator sees it.
        configs: the list, in the table's order.
        time_ms: of each; infinite where it failed.
    """

    kernel: str
    dtype: str
    call: Call
    configs: tuple[Configuration, ...]
    time_ms: np.ndarray

    def run(self, config: Configuration) -> Measurement:
        """Return the measurement of a configuration."""
        time_ms = self._times[config]
        if np.isinf(time_ms):
            return self.call.failure(config, Status.RUNTIME_ERROR, "does not run")
        return self.call.success(config, time_ms, [time_ms])

    def kept(self, config: Configuration) -> float:
        """Return the share of the best speed that a configuration keeps."""
        return float(self.time_ms.min() / self._times[config])

    @property
    def rows(self) -> int | None:
        """Rows of a product; None for other kernels."""
        return self.call.arguments.get("M")

    @property
    def is_product(self) -> bool:
        """Whether blocks multiply tiles."""
        if self.call.function is softmax_rows:
            return False
        return self.law is None or bool(self.law.shapes.products)

    @cached_property
    def learned(self) -> MeasuredProblem:
        """The same as `launch_training.fit_order` learns from it."""
        launches = tile_launches(self.call, self.configs, self.law)
        assert launches is not None
        columns = launch_features(launches, self.call.device)
        return MeasuredProblem(self.kernel, columns, self.time_ms)

    @property
    def law(self) -> ShapeLaw | None:
        """What the kernel's code shows of its blocks; None without code."""
        constants = tuple(self.call.arguments.get(name) for name in TILE_KNOBS)
        key = self.kernel, constants, self.configs
        if key not in LAWS:
            LAWS[key] = shape_law(self.call, self.configs)
        return LAWS[key]

    @cached_property
    def _times(self) -> dict[Configuration, float]:
        return dict(zip(self.configs, self.time_ms.tolist(), strict=True))


def read(path: Path, problems: int | None = None, seed: int = 0) -> dict[str, list[Recorded]]:
    """Return the problems of a table, or so many of them, drawn at random, by its name.

    A table of whole spaces (column ``problem_id``) gives several: lists of every kind.

    Raises:
        UnknownName: a kernel, or device, of which it is not known how it is called.
    """
    rng = np.random.default_rng(seed)
    if path.suffix == ".jsonl":
        return _drawn(recorded_gpu().read_lists(path), problems, rng)
    rows = pd.read_parquet(path).drop(columns=["time_ms_samples", "source"], errors="ignore")
    if rows["kernel"].str.startswith("triton_").any():
        return _drawn(recorded_gpu().read_table(path), problems, rng)
    if "problem_id" in rows:
        lists = _lists_by_kind(rows)
        return {
            name: [some[i] for i in rng.permutation(len(some))[:problems]]
            for name, some in lists.items()
        }
    names = [n for n in rows if n.startswith("problem.")]
    group = rows.groupby(["kernel", "device", *names], dropna=False, sort=False).ngroup()
    some = rng.permutation(int(group.max()) + 1)[:problems]
    found = []
    for number in some:
        mine = rows[group == number].drop_duplicates(
            subset=[n for n in rows if n.startswith("config.")], keep="last"
        )
        if (mine["status"] == "ok").any():
            found.append(_recorded(mine))
    return {path.stem: found}


def recorded_gpu() -> Any:
    """Return the module that reads what was timed by this folder's commands; it imports this."""
    import recorded_gpu

    return recorded_gpu


def _drawn(
    recorded: Sequence[Recorded], problems: int | None, rng: np.random.Generator
) -> dict[str, list[Recorded]]:
    """Return at most so many problems of each kernel, by its name."""
    found: dict[str, list[Recorded]] = {}
    for i in rng.permutation(len(recorded)):
        found.setdefault(recorded[i].kernel, []).append(recorded[i])
    return {kernel: some[:problems] for kernel, some in found.items()}


def _lists_by_kind(rows: pd.DataFrame) -> dict[str, list[Recorded]]:
    """Return the lists cut from whole spaces; problem and configuration are JSON in each row."""
    found: dict[str, list[Recorded]] = {}
    for problem, mine in rows[rows["kernel"] == "rl_triton_mm"].groupby("problem"):
        sizes = json.loads(str(problem))
        times = {
            tuple(json.loads(c)[n] for n in PRODUCT_KNOBS): t if s == "ok" and t == t else np.inf
            for c, t, s in zip(mine["config"], mine["time_ms"], mine["status"], strict=True)
        }
        for kind, fixed, some in _lists(times):
            found.setdefault(kind, []).append(_tiled_product(sizes, fixed, some))
    softmax = rows[rows["kernel"] == "dtas_softmax"]
    for (count, width), mine in softmax.groupby(["rows", "cols"]):
        warps = [json.loads(c)["threads"] // 32 for c in mine["config"]]
        listed = dict(zip(warps, mine["time_ms"], strict=True))
        one = _softmax(int(count), int(width), listed)
        found.setdefault("rows", []).append(one)
    return found


PRODUCT_KNOBS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages")
TILE_KNOBS = ("TALL", "WIDE", "DEEP")
WARPS, STAGES, EDGES = (2, 4, 8), (2, 3, 4, 5, 6), (32, 64, 128, 256)
LISTED, LISTS = 24, 60
"""Configurations of a random list, and such lists of a problem."""

Times = dict[tuple[int, ...], float]
"""Time by the values of `PRODUCT_KNOBS`; infinite where it failed."""


def _lists(times: Times) -> Iterator[tuple[str, Mapping[str, int], Times]]:
    """Yield the kind of a list, the parameters that it does not vary, and its times."""
    small = sorted(key for key in times if max(key[:3]) <= max(EDGES))
    tiles = sorted({key[:3] for key in small})
    listed = [
        (
            "fixed tile",
            dict(zip(TILE_KNOBS, tile, strict=True)),
            [(*tile, w, s) for w in WARPS for s in STAGES],
        )
        for tile in tiles
    ]
    for i, name in enumerate(TILE_KNOBS):
        for others in sorted({tile[:i] + tile[i + 1 :] for tile in tiles}):
            names = [n for n in TILE_KNOBS if n != name]
            keys = [
                (*others[:i], edge, *others[i:], w, s)
                for edge, w, s in itertools.product(EDGES, WARPS, STAGES[:-1])
            ]
            listed.append(("one tile knob", dict(zip(names, others, strict=True)), keys))
    rng = np.random.default_rng(0)
    listed += [
        ("all knobs", {}, [small[i] for i in rng.choice(len(small), LISTED, replace=False)])
        for _ in range(LISTS)
    ]
    for kind, fixed, keys in listed:
        some = {key: times[key] for key in keys if key in times}
        if sum(np.isfinite(t) for t in some.values()) >= 4:
            yield kind, fixed, some


def _tiled_product(sizes: Mapping[str, Any], fixed: Mapping[str, int], times: Times) -> Recorded:
    m, n, k = (int(sizes[s]) for s in "MNK")
    arguments = {
        "A": Tensor("float16", (m, k)),
        "B": Tensor("float16", (k, n)),
        "C": Tensor("float16", (m, n)),
        "M": m,
        "N": n,
        "K": k,
        "stride_am": k,
        "stride_ak": 1,
        "stride_bk": n,
        "stride_bn": 1,
        "stride_cm": n,
        "stride_cn": 1,
        **fixed,
    }

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(m, meta["TALL"]) * triton.cdiv(n, meta["WIDE"]),)

    names = (*TILE_KNOBS, "num_warps", "num_stages")
    varied = [i for i, name in enumerate(names) if name not in fixed]
    configs = tuple(Configuration({names[i]: key[i] for i in varied}) for key in times)
    device = find_device("NVIDIA A100-SXM4-40GB")
    call = as_call(tiled_product, ["M", "N", "K"], arguments, device, grid, list(configs[0]))
    call = replace(call, function=tiled_product)
    return Recorded("rl_triton_mm", "float16", call, configs, np.array(list(times.values())))


def _softmax(count: int, width: int, times: Mapping[int, float]) -> Recorded:
    arguments = {
        "OUT": Tensor("float16", (count, width)),
        "IN": Tensor("float16", (count, width)),
        "rows": count,
        "columns": width,
        "stride": width,
        "WIDTH": triton.next_power_of_2(width),
    }
    configs = tuple(Configuration(num_warps=warps) for warps in sorted(times))
    device = find_device("NVIDIA GeForce RTX 3090")
    call = as_call(softmax_rows, ["rows", "columns"], arguments, device, (count,), ["num_warps"])
    call = replace(call, function=softmax_rows)
    return Recorded(
        "dtas_softmax", "float16", call, configs, np.array([times[w] for w in sorted(times)])
    )


def _recorded(rows: pd.DataFrame) -> Recorded:
    first = rows.iloc[0]
    kernel, device = str(first["kernel"]), find_device(str(first["device"]))
    if kernel not in CALLS:
        raise UnknownName("kernel that a recorded table may be of", kernel, CALLS)
    problem = {n.removeprefix("problem."): first[n] for n in rows if n.startswith("problem.")}
    knobs = [n for n in rows if n.startswith("config.")]
    configs = tuple(
        Configuration({n.removeprefix("config."): int(row[n]) for n in knobs})
        for row in rows[knobs].to_dict("records")
    )
    times = rows["time_ms"].where(rows["status"] == "ok", np.inf).to_numpy(float)
    dtype = str(problem.get("mat1_dtype", problem.get("dtype")))
    return Recorded(kernel, dtype, CALLS[kernel](problem, device, knobs), configs, times)


def _product(problem: Mapping[str, Any], device: Device, knobs: Sequence[str]) -> Call:
    m, n, k = (int(problem[p]) for p in "MNK")
    one, other = str(problem["mat1_dtype"]), str(problem["mat2_dtype"])
    strides = [[int(problem[f"mat{i}_stride_{j}"]) for j in (0, 1)] for i in (1, 2)]
    arguments = {
        "A": Tensor(one, (m, k), tuple(strides[0])),
        "B": Tensor(other, (k, n), tuple(strides[1])),
        "C": Tensor(one, (m, n), (n, 1)),
        "M": m,
        "N": n,
        "K": k,
        "stride_am": strides[0][0],
        "stride_ak": strides[0][1],
        "stride_bk": strides[1][0],
        "stride_bn": strides[1][1],
        "stride_cm": n,
        "stride_cn": 1,
        "ALLOW_TF32": str(problem.get("using_tf32")) != "False",
    }

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    return as_call(mm, ["M", "N", "K"], arguments, device, grid, knobs)


def _attention(problem: Mapping[str, Any], device: Device, knobs: Sequence[str]) -> Call:
    names = ("batch", "heads", "seq_q", "seq_kv", "head_dim")
    batch, heads, queries, keys, width = (int(problem[name]) for name in names)
    dtype = str(problem["dtype"])
    q, kv = (
        Tensor(
            dtype, (batch, heads, length, width), (heads * length * width, width, heads * width, 1)
        )
        for length in (queries, keys)
    )
    blocks = Tensor("int32", (batch, heads, triton.cdiv(queries, 128)))
    arguments = {
        "Q": q,
        "K": kv,
        "V": kv,
        "OUT": q,
        "KV_NUM_BLKS": blocks,
        "KV_IDX": blocks,
        "Z": batch,
        "H": heads,
        "Q_LEN": queries,
        "KV_LEN": keys,
        "QK_HEAD_DIM": width,
        "NODES": int(problem.get("subgraph_num_nodes", 0)),
        "USED": int(problem.get("subgraph_num_args_used", 0)),
    }

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return triton.cdiv(queries, meta["BLOCK_M"]), batch * heads

    key = ["Z", "H", "Q_LEN", "KV_LEN", "NODES", "USED"]
    return as_call(flex_attention, key, arguments, device, grid, knobs)


def as_call(
    function: Any,
    key: Sequence[str],
    arguments: Mapping[str, Any],
    device: Device,
    grid: Any,
    knobs: Sequence[str],
) -> Call:
    names = tuple(n.removeprefix("config.") for n in knobs)
    problem = problem_from_arguments(function, key, arguments)
    source = source_hash(function)
    return Call(function.__name__, source, problem, arguments, device, grid, names)


CALLS: dict[str, Callable[[Mapping[str, Any], Device, Sequence[str]], Call]] = {
    "inductor_mm": _product,
    "inductor_mixed_mm": _product,
    "inductor_flex_attention": _attention,
}
