"""Recorded tables of real GPUs as calls of kernels, the way their authors launch them.

A row of such a table has sizes, types and strides, a configuration, and its time. Here it becomes
what a decorator sees: arguments, a grid, a list of configurations. Known are the products and the
attention that PyTorch's Inductor makes from Triton templates, products with every tile, and a
softmax of rows. `recorded_gpu` reads what this folder's commands timed.

Tables of whole spaces are cut into lists as authors write them: at a fixed tile, with one parameter
of the tile, or some configurations at random.
"""

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import triton
from recorded_calls import TILE_KNOBS, Recorded, as_call
from recorded_kernels import flex_attention, mm, softmax_rows, tiled_product

from foretune.collect.compiled.arguments import Tensor
from foretune.device import Device, find_device
from foretune.errors import UnknownName
from foretune.space import Configuration
from foretune.tune.triton.problem_key import Call

PRODUCT_KNOBS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "num_warps", "num_stages")
"""Parameters of the table of products with every tile."""
EDGES = (32, 64, 128, 256)
WARPS = (2, 4, 8)
STAGES = (2, 3, 4, 5, 6)
"""Values in the lists that are cut from it."""
MAX_WARPS = 16
"""Maximum number of warps in whole spaces: no block of 32 warps was fast."""
RANDOM_LIST_LENGTH = 24
RANDOM_LISTS = 60
"""Configurations of a random list, and random lists of a problem."""
MIN_RUNNING = 4
"""Smallest number of configurations in a list that must run."""

Times = dict[tuple[int, ...], float]
"""Time by the values of `PRODUCT_KNOBS`; infinite where it failed."""


def read(path: Path, problems: int | None = None, seed: int = 0) -> dict[str, list[Recorded]]:
    """Return the problems of a table by its name, at most ``problems`` of them, drawn at random.

    A table of whole spaces (column ``problem_id``) gives several: lists of every kind.

    Raises:
        UnknownName: The table has a kernel or a device that this module cannot call.
    """
    rng = np.random.default_rng(seed)
    if path.suffix == ".jsonl":
        from recorded_gpu import read_lists  # needs the replayed GPU

        return _draw(read_lists(path), problems, rng)

    rows = pd.read_parquet(path).drop(columns=["time_ms_samples", "source"], errors="ignore")
    if rows["kernel"].str.startswith("triton_").any():
        from recorded_gpu import read_table

        return _draw(read_table(path), problems, rng)

    if "problem_id" in rows:
        lists = _lists_by_kind(rows)
        return {
            kind: [of_kind[i] for i in rng.permutation(len(of_kind))[:problems]]
            for kind, of_kind in lists.items()
        }

    return {path.stem: _problems(rows, problems, rng)}


def _draw(
    recorded: Sequence[Recorded], problems: int | None, rng: np.random.Generator
) -> dict[str, list[Recorded]]:
    """Return at most ``problems`` of each kernel, by its name."""
    by_kernel: dict[str, list[Recorded]] = {}
    for i in rng.permutation(len(recorded)):
        by_kernel.setdefault(recorded[i].kernel, []).append(recorded[i])
    return {kernel: of_kernel[:problems] for kernel, of_kernel in by_kernel.items()}


def _problems(rows: pd.DataFrame, problems: int | None, rng: np.random.Generator) -> list[Recorded]:
    """Return the problems of a table with a list each, without those where nothing ran."""
    sizes = [name for name in rows if name.startswith("problem.")]
    knobs = [name for name in rows if name.startswith("config.")]
    number = rows.groupby(["kernel", "device", *sizes], dropna=False, sort=False).ngroup()
    drawn = rng.permutation(int(number.max()) + 1)[:problems]

    recorded = []
    for problem in drawn:
        # A configuration that was measured again counts with its newest time.
        of_problem = rows[number == problem].drop_duplicates(subset=knobs, keep="last")
        if (of_problem["status"] == "ok").any():
            recorded.append(_recorded(of_problem))
    return recorded


def _recorded(rows: pd.DataFrame) -> Recorded:
    first = rows.iloc[0]
    kernel = str(first["kernel"])
    device = find_device(str(first["device"]))
    if kernel not in CALLS:
        raise UnknownName("kernel that a recorded table may be of", kernel, CALLS)
    problem = {n.removeprefix("problem."): first[n] for n in rows if n.startswith("problem.")}

    knobs = [name for name in rows if name.startswith("config.")]
    configs = tuple(
        Configuration({name.removeprefix("config."): int(row[name]) for name in knobs})
        for row in rows[knobs].to_dict("records")
    )
    time_ms = rows["time_ms"].where(rows["status"] == "ok", np.inf).to_numpy(float)
    dtype = str(problem.get("mat1_dtype", problem.get("dtype")))
    return Recorded(
        kernel=kernel,
        dtype=dtype,
        call=CALLS[kernel](problem, device),
        configs=configs,
        time_ms=time_ms,
    )


def _product(problem: Mapping[str, Any], device: Device) -> Call:
    m, n, k = (int(problem[size]) for size in "MNK")
    dtype_a = str(problem["mat1_dtype"])
    dtype_b = str(problem["mat2_dtype"])
    strides_a = tuple(int(problem[f"mat1_stride_{axis}"]) for axis in (0, 1))
    strides_b = tuple(int(problem[f"mat2_stride_{axis}"]) for axis in (0, 1))
    arguments = {
        "A": Tensor(dtype_a, (m, k), strides_a),
        "B": Tensor(dtype_b, (k, n), strides_b),
        "C": Tensor(dtype_a, (m, n), (n, 1)),
        "M": m,
        "N": n,
        "K": k,
        "stride_am": strides_a[0],
        "stride_ak": strides_a[1],
        "stride_bk": strides_b[0],
        "stride_bn": strides_b[1],
        "stride_cm": n,
        "stride_cn": 1,
        "ALLOW_TF32": str(problem.get("using_tf32")) != "False",
    }

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    return as_call(mm, ["M", "N", "K"], arguments, device=device, grid=grid)


def _attention(problem: Mapping[str, Any], device: Device) -> Call:
    names = ("batch", "heads", "seq_q", "seq_kv", "head_dim")
    batch, heads, queries, keys, width = (int(problem[name]) for name in names)
    dtype = str(problem["dtype"])

    def heads_of(length: int) -> Tensor:
        """Return a tensor in the order batch, token, head, width."""
        strides = (heads * length * width, width, heads * width, 1)
        return Tensor(dtype, (batch, heads, length, width), strides)

    blocks = Tensor("int32", (batch, heads, triton.cdiv(queries, 128)))
    arguments = {
        "Q": heads_of(queries),
        "K": heads_of(keys),
        "V": heads_of(keys),
        "OUT": heads_of(queries),
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
    return as_call(flex_attention, key, arguments, device=device, grid=grid)


CALLS: dict[str, Callable[[Mapping[str, Any], Device], Call]] = {
    "inductor_mm": _product,
    "inductor_mixed_mm": _product,
    "inductor_flex_attention": _attention,
}


def _lists_by_kind(rows: pd.DataFrame) -> dict[str, list[Recorded]]:
    """Return the lists cut from whole spaces; problem and configuration are JSON in each row."""
    by_kind: dict[str, list[Recorded]] = {}

    products = rows[rows["kernel"] == "rl_triton_mm"]
    for problem, of_problem in products.groupby("problem"):
        sizes = json.loads(str(problem))
        for kind, fixed, times in _lists(_times(of_problem)):
            by_kind.setdefault(kind, []).append(_tiled_product(sizes, fixed, times))

    softmax = rows[rows["kernel"] == "dtas_softmax"]
    for (count, width), of_problem in softmax.groupby(["rows", "cols"]):
        warps = [json.loads(config)["threads"] // 32 for config in of_problem["config"]]
        times_by_warps = dict(zip(warps, of_problem["time_ms"], strict=True))
        recorded = _softmax(count=int(count), width=int(width), times=times_by_warps)
        by_kind.setdefault("rows", []).append(recorded)
    return by_kind


def whole_spaces(path: Path) -> list[Recorded]:
    """Return the problems of a table of products with every tile, each with its whole space."""
    rows = pd.read_parquet(path)
    products = rows[rows["kernel"] == "rl_triton_mm"]
    recorded = []
    for problem, of_problem in products.groupby("problem"):
        times = _times(of_problem)
        usual = {
            key: times[key]
            for key in sorted(times)
            if max(key[:3]) <= max(EDGES) and key[3] <= MAX_WARPS
        }
        recorded.append(_tiled_product(json.loads(str(problem)), {}, usual))
    return recorded


def _times(rows: pd.DataFrame) -> Times:
    times: Times = {}
    for text, time_ms, status in zip(rows["config"], rows["time_ms"], rows["status"], strict=True):
        config = json.loads(text)
        ran = status == "ok" and not np.isnan(time_ms)
        times[tuple(config[name] for name in PRODUCT_KNOBS)] = time_ms if ran else np.inf
    return times


def _lists(times: Times) -> Iterator[tuple[str, Mapping[str, int], Times]]:
    """Yield the kind of a list, the parameters that it does not vary, and its times."""
    small = sorted(key for key in times if max(key[:3]) <= max(EDGES))
    tiles = sorted({key[:3] for key in small})
    lists: list[tuple[str, Mapping[str, int], list[tuple[int, ...]]]] = []

    # Warps and stages at a fixed tile.
    for tile in tiles:
        keys: list[tuple[int, ...]] = [(*tile, w, s) for w in WARPS for s in STAGES]
        lists.append(("fixed tile", dict(zip(TILE_KNOBS, tile, strict=True)), keys))

    # One edge of the tile, warps and stages, at fixed other edges.
    for i, name in enumerate(TILE_KNOBS):
        fixed_names = [other for other in TILE_KNOBS if other != name]
        for others in sorted({tile[:i] + tile[i + 1 :] for tile in tiles}):
            keys = [
                (*others[:i], edge, *others[i:], w, s)
                for edge, w, s in itertools.product(EDGES, WARPS, STAGES[:-1])
            ]
            lists.append(("one tile knob", dict(zip(fixed_names, others, strict=True)), keys))

    # Any configurations.
    rng = np.random.default_rng(0)
    for _ in range(RANDOM_LISTS):
        drawn = rng.choice(len(small), RANDOM_LIST_LENGTH, replace=False)
        lists.append(("all knobs", {}, [small[i] for i in drawn]))

    for kind, fixed, keys in lists:
        times_of_list = {key: times[key] for key in keys if key in times}
        if sum(np.isfinite(time_ms) for time_ms in times_of_list.values()) >= MIN_RUNNING:
            yield kind, fixed, times_of_list


def _tiled_product(sizes: Mapping[str, Any], fixed: Mapping[str, int], times: Times) -> Recorded:
    m, n, k = (int(sizes[size]) for size in "MNK")
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
    call = as_call(tiled_product, ["M", "N", "K"], arguments, device=device, grid=grid)
    return Recorded(
        kernel="rl_triton_mm",
        dtype="float16",
        call=replace(call, function=tiled_product),
        configs=configs,
        time_ms=np.array(list(times.values())),
    )


def _softmax(count: int, width: int, times: Mapping[int, float]) -> Recorded:
    """Return a softmax of ``count`` rows; ``times`` are by number of warps."""
    arguments = {
        "OUT": Tensor("float16", (count, width)),
        "IN": Tensor("float16", (count, width)),
        "rows": count,
        "columns": width,
        "stride": width,
        "WIDTH": triton.next_power_of_2(width),
    }
    device = find_device("NVIDIA GeForce RTX 3090")
    call = as_call(softmax_rows, ["rows", "columns"], arguments, device=device, grid=(count,))
    return Recorded(
        kernel="dtas_softmax",
        dtype="float16",
        call=replace(call, function=softmax_rows),
        configs=tuple(Configuration(num_warps=warps) for warps in sorted(times)),
        time_ms=np.array([times[warps] for warps in sorted(times)]),
    )
