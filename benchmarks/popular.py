"""Builds the shipped table of popular configurations, and counts how often tunings agree with it.

    PYTHONPATH=src python benchmarks/popular.py FOLDER [--write]

FOLDER has ``winners.parquet`` (what tunings of serving engines chose) and ``candidates.parquet``
(LightLLM's lists). Printed is the share of tunings whose tile, and whole configuration, is among
the first 1, 4 and 8 of an order. The layer, or device, that is judged does not vote.
"""

import argparse
import hashlib
import itertools
import json
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import triton

from foretune.collect.compiled.arguments import Tensor
from foretune.device import Device, find_device_or_none
from foretune.errors import ForetuneWarning
from foretune.features.launches import launch_features
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.triton.launch_order import shipped_orders
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.published import POPULAR, Tunings, knob_meaning
from foretune.tune.triton.row_order import ELEMENTS_PER_THREAD
from foretune.tune.triton.tiles import tile_launches

FIRST = (1, 4, 8)
JUDGED = 100
"""Tunings of a family that are judged, at most, drawn at random."""
ARCHITECTURES = {
    "NVIDIA H20": "sm_90",
    "NVIDIA H20-3e": "sm_90",
    "NVIDIA L20Y": "sm_90",
    "AMD Instinct MI308X": "gfx942",
    "AMD Instinct MI325 OAM": "gfx942",
    "AMD Instinct MI350 OAM": "gfx950",
    "AMD Instinct MI355 OAM": "gfx950",
    "AMD Radeon R9700": "gfx1201",
    "Intel(R) Arc(TM) Pro B70 Graphics": "xe2",
}
"""Architectures of devices that the tables lack."""
PRODUCT = (
    "BLOCK_SIZE_M",
    "BLOCK_SIZE_N",
    "BLOCK_SIZE_K",
    "GROUP_SIZE_M",
    "num_warps",
    "num_stages",
)
SPACE = (
    (16, 32, 64, 128, 256),
    (32, 64, 128, 256),
    (64, 128, 256),
    (1, 16, 32, 64),
    (4, 8),
    (2, 3, 4, 5),
)
"""What the engines' tuning scripts try; the winners of other spaces are added."""
DTYPES = {"fp8_w8a8": "fp8", "int8_w8a8": "int8", "int8_w8a16": "int8", "int4_w4a16": "uint8"}
"""Element type of the weights; all others are of 16 bits."""


@dataclass(frozen=True)
class Family:
    """Kernels that are tuned alike.

    Attributes:
        kernels: their names in the table, by engine.
        sizes: columns of the problem that count as M, N and experts.
        tile: number of knobs, of the first, that are the tile.
        listed: name in ``candidates.parquet``; None where the space of products is listed.
        default: the authors' configuration without a file.
    """

    kernels: tuple[str, ...]
    sizes: tuple[str, ...]
    tile: int
    listed: str | None = None
    knobs: tuple[str, ...] = PRODUCT
    default: tuple[int, ...] = ()


FAMILIES = {
    "block_gemm": Family(
        ("sglang/block_gemm", "vllm/block_gemm"), ("M", "N"), 2, default=(64, 128, 128, 32, 4, 2)
    ),
    "fused_moe": Family(
        ("sglang/fused_moe", "vllm/fused_moe"), ("M", "N", "E"), 2, default=(64, 64, 32, 8, 4, 3)
    ),
    "grouped_matmul": Family(("lightllm/grouped_matmul",), ("M", "N", "expert_num"), 2),
    "scaled_mm": Family(
        ("lightllm/scaled_mm_per_token",),
        ("M", "N"),
        2,
        knobs=("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_warps", "num_stages"),
    ),
    "silu_and_mul": Family(
        ("lightllm/silu_and_mul_fwd",),
        ("M", "N"),
        2,
        "silu_and_mul_fwd",
        ("BLOCK_M", "BLOCK_N", "num_warps", "NUM_STAGES"),
    ),
    "gdn_gating": Family(
        ("lightllm/fused_gdn_gating",),
        ("M", "NUM_HEADS"),
        1,
        "fused_gdn_gating",
        ("BLK_HEADS", "num_warps"),
    ),
    "rotary": Family(
        ("lightllm/rotary_emb_fwd",),
        ("M", "Q_HEAD_NUM"),
        2,
        "rotary_emb_fwd",
        ("BLOCK_SEQ", "HEAD_PARALLEL_NUM", "num_warps", "num_stages"),
    ),
    "mrope": Family(
        ("lightllm/mrope_triton_fused",),
        ("M", "Q_HEAD_NUM"),
        1,
        "mrope_triton_fused",
        ("num_warps", "num_stages"),
    ),
}
LEFT_OUT = ("gdn_gating", "mrope")
"""Families that gain too little over the rule for rows."""


@dataclass(frozen=True)
class Winners:
    """The tunings of one family.

    Attributes:
        rows: kernel, device, dtype, layer, and sizes of each.
        values: what each chose, -1 where the file is silent.
        tunings: the same as shipped.
    """

    rows: pd.DataFrame
    values: np.ndarray
    tunings: Tunings


def read(folder: Path, family: Family) -> Winners:
    """Return a family's tunings under Apache-2.0."""
    table = pd.read_parquet(folder / "winners.parquet")
    table = table[table["kernel"].isin(family.kernels) & (table["licence"] == "Apache-2.0")]
    table = table[table["device"] != ""].reset_index(drop=True)
    problems = [json.loads(p) for p in table["problem"]]
    configs = [json.loads(c) for c in table["config"]]
    values = np.array([[int(c.get(k) or -1) for k in family.knobs] for c in configs])
    sizes = np.array([[float(p.get(s) or 1) for s in family.sizes] for p in problems])
    sizes = np.pad(sizes, ((0, 0), (0, 3 - sizes.shape[1])), constant_values=1.0)
    device = [name.removesuffix(" down") for name in table["device"]]
    layer = [str([p.get(k) for k in (*family.sizes[1:], "K")]) for p in problems]
    dtype = [DTYPES.get(str(p.get("dtype")).removesuffix("_down"), "16") for p in problems]
    rows = pd.DataFrame(
        {
            "kernel": table["kernel"],
            "device": device,
            "layer": layer,
            "dtype": dtype,
            "M": sizes[:, 0],
            "N": sizes[:, 1],
            "E": sizes[:, 2],
            "K": [float(p.get("K") or 4096) for p in problems],
            "pid": range(len(table)),
            "file": [f"{d}|{t}|{n}" for d, t, n in zip(device, dtype, layer, strict=True)],
        }
    )
    distinct, winners = np.unique(values, axis=0, return_inverse=True)
    tunings = Tunings(
        np.array(device),
        np.array([device_of(d).architecture for d in device]),
        np.array(dtype),
        np.rint(4 * np.log2(np.maximum(sizes, 1))).astype(np.uint8),
        winners.ravel().astype(np.uint16),
        distinct.astype(np.int16),
        np.array([knob_meaning(k) for k in family.knobs]),
        np.arange(family.tile),
    )
    return Winners(rows, values, tunings)


def device_of(name: str) -> Device:
    """Return a device of the table, with its architecture at least."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForetuneWarning)
        known = find_device_or_none(name)
    if known is None:
        return Device(name, "gpu", ARCHITECTURES.get(name, ""))
    return replace(known, name=name)


def candidates(folder: Path, family: Family, values: np.ndarray) -> tuple[list[Any], np.ndarray]:
    """Return the list of candidates, and elements per thread where the kernel has no product."""
    if family.listed is None:
        seen = {tuple(v) for v in values.tolist() if min(v) >= 0}
        own = [family.default] if family.default else []
        return sorted({*itertools.product(*SPACE), *seen, *own}), np.zeros(0)
    table = pd.read_parquet(folder / "candidates.parquet")
    table = table[table["kernel"] == family.listed]
    configs = [json.loads(c) for c in table["config"]]
    per_thread = (table["elems"] / (32.0 * table["warps"])).to_list()
    found = {
        tuple(int(c[k]) for k in family.knobs): e for c, e in zip(configs, per_thread, strict=True)
    }
    return list(found), np.array(list(found.values()))


def by_launch_order(family: str, row: Mapping[str, Any], configs: list[Configuration]) -> Any:
    """Return log slow-downs by the order for products of tiles."""
    m, n, k, experts = (int(row[c]) for c in "MNKE")
    dtype = {"fp8": "float8_e4m3fn", "int8": "int8", "uint8": "uint8"}.get(row["dtype"], "bfloat16")
    narrow = "bfloat16" if dtype == "uint8" else dtype
    names = list(configs[0])
    if experts > 1:  # the first product: gate and up, eight experts a token
        n = 2 * n if family == "fused_moe" else n
        padded = m * 8 + experts * 15
        arguments = {
            "a_ptr": Tensor(narrow, (m, k)),
            "b_ptr": Tensor(dtype, (experts, n, k)),
            "c_ptr": Tensor("bfloat16", (m, 8, n)),
            "N": n,
            "K": k,
        }
        rows = padded
    else:
        arguments = {
            "A": Tensor(narrow, (m, k)),
            "B": Tensor(dtype, (n, k)),
            "C": Tensor("bfloat16", (m, n)),
            "M": m,
            "N": n,
            "K": k,
        }
        rows = m

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        return (triton.cdiv(rows, meta[names[0]]) * triton.cdiv(n, meta[names[1]]),)

    device = device_of(row["device"])
    call = Call("a product", "", Problem(), arguments, device, grid, tuple(names))
    launches = tile_launches(call, configs)
    assert launches is not None
    columns = launch_features(launches, device)
    by_order = shipped_orders().log_ratios(columns)
    return np.mean(list(by_order.values()), axis=0) + 4.0 * ~columns.fits


def judge(
    folder: Path, name: str, found: Winners, held_out: str, chosen: np.ndarray, voters: np.ndarray
) -> None:
    """Print the shares of one family; ``chosen`` and ``voters`` are masks of its rows."""
    family = FAMILIES[name]
    listed, per_thread = candidates(folder, family, found.values)
    values = np.array(listed)
    rng = np.random.default_rng(0)
    configs = [Configuration(dict(zip(family.knobs, c, strict=True))) for c in listed]
    agreement = found.tunings.agreement(values.astype(float))
    exact = (found.tunings.configs[:, None] == values[None]).all(-1)
    tiles = np.unique(values[:, : family.tile], axis=0, return_inverse=True)[1].ravel()
    judged = rng.permutation(np.flatnonzero(chosen))[:JUDGED]
    hits: dict[str, list[np.ndarray]] = {}
    for i in judged:
        row = found.rows.iloc[i]
        others = 1.0 * (voters & np.asarray(found.rows[held_out] != row[held_out]))
        sizes = [row["M"], row["N"], row["E"]]
        weights = others * found.tunings.weights(device_of(row["device"]), row["dtype"], sizes)
        votes = found.tunings.count(weights, agreement, tiles)
        as_cast = found.tunings.count(weights, agreement, np.arange(len(values)))
        octaves = np.abs(np.log2(row["M"]) - found.tunings.sizes[:, 0] / 4)
        alike = [
            np.bincount(found.tunings.winners, w, len(exact)) @ exact
            for w in (others, others * np.exp(-20 * octaves))
        ]
        if len(per_thread):
            order = np.abs(np.log2(per_thread / ELEMENTS_PER_THREAD))
        else:
            order = by_launch_order(name, row, configs)
        noise = 1e-9 * rng.random(len(values))
        orders = {
            "votes": -votes,
            "votes, not by tile": -as_cast,
            "votes and order": 3 * order - votes,
            "order": order,
            "most frequent winner": -alike[0],
            "nearest M": -alike[1],
            "random": noise,
        }
        if family.default:
            orders["default"] = 1.0 * (values != np.array(family.default)).any(1)
        own = found.values[i]
        same = ((values == own) | (own < 0)).all(1)
        tile = (values[:, : family.tile] == own[: family.tile]).all(1)
        for label, cost in orders.items():
            first = np.argsort(cost + noise)
            reached = [next(iter(np.flatnonzero(hit[first])), 10**6) for hit in (tile, same)]
            hits.setdefault(label, []).append(np.array(reached))
    print(f"\n{name}, {held_out} held out, {len(judged)} tunings, {len(values)} candidates")
    for label, ranks in hits.items():
        shares = [[(np.array(ranks)[:, j] < k).mean() for k in FIRST] for j in (0, 1)]
        print(
            f"  {label:24} tile "
            + " / ".join(f"{s:.2f}" for s in shares[0])
            + "   whole "
            + " / ".join(f"{s:.2f}" for s in shares[1]),
            flush=True,
        )


def write(folder: Path) -> None:
    """Write the table and its card."""
    table = pd.read_parquet(folder / "winners.parquet")
    shipped = {n: read(folder, f) for n, f in FAMILIES.items() if n not in LEFT_OUT}
    arrays = {
        f"{name}.{f.name}": getattr(found.tunings, f.name)
        for name, found in shipped.items()
        for f in fields(found.tunings)
    }
    np.savez_compressed(POPULAR, **arrays)
    kernels = [k for n in shipped for k in FAMILIES[n].kernels]
    sources = table["source"][table["kernel"].isin(kernels)]
    card = {
        "what": "configurations that tunings of serving engines chose, without times",
        "licence": "Apache-2.0",
        "sha256": hashlib.sha256((folder / "winners.parquet").read_bytes()).hexdigest(),
        "tunings": {name: len(found.rows) for name, found in shipped.items()},
        "sources": sorted(set(sources)),
    }
    POPULAR.with_suffix(".json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", action="store_true", help="the shipped table, and its card")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES))
    options = parser.parse_args(argv)
    if options.write:
        write(options.folder)
        return
    for name in options.families:
        found = read(options.folder, FAMILIES[name])
        kernel = found.rows["kernel"]
        file = found.rows["file"]
        everyone = np.ones(len(kernel), bool)
        kernels = FAMILIES[name].kernels
        for one, other in itertools.permutations(kernels, 2):
            mine = np.asarray(kernel == one)
            if one == kernels[0]:
                print(f"\n== {one}, where the settings were chosen: it alone votes")
                judge(options.folder, name, found, "layer", mine, mine)
            only = mine & ~np.asarray(file.isin(file[kernel == other]))
            print(f"\n== {one}, files that {other} lacks: everyone votes")
            judge(options.folder, name, found, "layer", only, everyone)
        if len(kernels) == 1:
            judge(options.folder, name, found, "layer", everyone, everyone)
        if found.rows["device"].nunique() > 1:
            judge(options.folder, name, found, "device", everyone, everyone)


if __name__ == "__main__":
    main(sys.argv[1:])
