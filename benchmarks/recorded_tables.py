"""Recorded tables of real GPUs as calls of kernels, the way their authors launch them.

A row of such a table says sizes, types and strides, a configuration, and its time. Here it becomes
what a decorator sees: arguments, a grid, a list of configurations. Known are the products and the
attention that PyTorch's Inductor makes from Triton templates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import triton
import triton.language as tl

from foretune.collect.compiled.arguments import Tensor
from foretune.device import Device, find_device
from foretune.errors import UnknownName
from foretune.features.launches import launch_features
from foretune.measurement import Measurement, Status
from foretune.models.launch_order import MeasuredProblem
from foretune.space import Configuration
from foretune.tune.triton.kernel_source import source_hash
from foretune.tune.triton.problem_key import Call, problem_from_arguments
from foretune.tune.triton.tiles import tile_launches

BYTES = {"float32": 4}


@triton.jit
def mm(
    A, B, C, M, N, K, stride_am, stride_ak, stride_bk, stride_bn, stride_cm, stride_cn,
    ALLOW_TF32: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Stand for a product; launches are replayed, so this is nothing but its arguments."""


@triton.jit
def flex_attention(
    Q, K, V, OUT, KV_NUM_BLKS, KV_IDX, Z, H, Q_LEN, KV_LEN, NODES, USED,
    QK_HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Stand for attention under a mask of blocks: how many are visited is data, no argument."""


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

    @cached_property
    def learned(self) -> MeasuredProblem:
        """The same as `foretune.models.launch_order` learns from it."""
        launches = tile_launches(self.call, self.configs)
        assert launches is not None
        columns = launch_features(launches, self.call.device)
        return MeasuredProblem(self.kernel, columns, self.time_ms)

    @cached_property
    def _times(self) -> dict[Configuration, float]:
        return dict(zip(self.configs, self.time_ms.tolist(), strict=True))


def read(path: Path, problems: int | None = None, seed: int = 0) -> list[Recorded]:
    """Return the problems of a table, or so many of them, drawn at random.

    Raises:
        UnknownName: a kernel, or device, of which it is not known how it is called.
    """
    rows = pd.read_parquet(path).drop(columns=["time_ms_samples", "source"], errors="ignore")
    names = [n for n in rows if n.startswith("problem.")]
    group = rows.groupby(["kernel", "device", *names], dropna=False, sort=False).ngroup()
    some = np.random.default_rng(seed).permutation(int(group.max()) + 1)[:problems]
    found = []
    for number in some:
        mine = rows[group == number].drop_duplicates(
            subset=[n for n in rows if n.startswith("config.")], keep="last"
        )
        if (mine["status"] == "ok").any():
            found.append(_recorded(mine))
    return found


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
        "A": Tensor(one, (m, k), tuple(strides[0])), "B": Tensor(other, (k, n), tuple(strides[1])),
        "C": Tensor(one, (m, n), (n, 1)), "M": m, "N": n, "K": k,
        "stride_am": strides[0][0], "stride_ak": strides[0][1], "stride_bk": strides[1][0],
        "stride_bn": strides[1][1], "stride_cm": n, "stride_cn": 1,
        "ALLOW_TF32": str(problem.get("using_tf32")) != "False",
    }  # fmt: skip

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(m, meta["BLOCK_M"]) * triton.cdiv(n, meta["BLOCK_N"]),)

    return _call(mm, ["M", "N", "K"], arguments, device, grid, knobs)


def _attention(problem: Mapping[str, Any], device: Device, knobs: Sequence[str]) -> Call:
    names = ("batch", "heads", "seq_q", "seq_kv", "head_dim")
    batch, heads, queries, keys, width = (int(problem[name]) for name in names)
    dtype = str(problem["dtype"])
    q, kv = (
        Tensor(dtype, (batch, heads, length, width),
               (heads * length * width, width, heads * width, 1))
        for length in (queries, keys)
    )  # fmt: skip
    blocks = Tensor("int32", (batch, heads, triton.cdiv(queries, 128)))
    arguments = {
        "Q": q, "K": kv, "V": kv, "OUT": q, "KV_NUM_BLKS": blocks, "KV_IDX": blocks, "Z": batch,
        "H": heads, "Q_LEN": queries, "KV_LEN": keys, "QK_HEAD_DIM": width,
        "NODES": int(problem.get("subgraph_num_nodes", 0)),
        "USED": int(problem.get("subgraph_num_args_used", 0)),
    }  # fmt: skip

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return triton.cdiv(queries, meta["BLOCK_M"]), batch * heads

    key = ["Z", "H", "Q_LEN", "KV_LEN", "NODES", "USED"]
    return _call(flex_attention, key, arguments, device, grid, knobs)


def _call(
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
