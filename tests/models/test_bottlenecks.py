"""What limits runs, on cases that were built so that it is known: `models/bottlenecks.py`."""

from itertools import pairwise
from time import perf_counter

import numpy as np
import pandas as pd
import pytest
from threadpoolctl import threadpool_info, threadpool_limits

from foretune.collect import cpu
from foretune.collect.kernels.numba_codegen import compile_function, function_source
from foretune.features.families.user_defined import UserDefinedCost
from foretune.features.roofline import row_limits_ms
from foretune.models import Predictor
from foretune.models.bottlenecks import (
    KINDS,
    bottlenecks,
    counted_shares,
    name_bottlenecks,
)

ELEMENTS = 1 << 23  # 64 MiB of doubles: far more than a core's share of any cache
STEPS = 20_000
ROUNDS = 5
SHARED_BYTES, WARPS = 65536, 32  # of a multiprocessor of the RTX 2080 Ti
BYTES_PER_SECTOR = 32

CHASE = """
def chase(following, steps):
    place = 0
    for _ in range(steps):
        place = following[place]
    return place
"""
DEPENDENT = """
def dependent(x, steps):
    y = x
    for _ in range(steps):
        y = {step}
    return y
"""


def independent_chains(dtype):
    """Eight vectors of 512 bits: more than two pipelines need at four cycles of latency."""
    lanes = 64 // np.dtype(dtype).itemsize
    sums = [f"s{i}" for i in range(8)]
    body = [f"x = splat(factor, {lanes})", f"y = splat(addend, {lanes})"]
    body += [f"{s} = fma({before}, x, y)" for before, s in pairwise(["y", *sums])]
    body += ["for _ in range(steps):", *(f"    {s} = fma({s}, x, y)" for s in sums)]
    body += ["return " + " + ".join(f"total({s})" for s in sums)]
    run = compile_function(function_source("chains", "factor, addend, steps", body), "chains")
    return lambda: run(dtype(0.5), dtype(0.1), STEPS), 2.0 * 8 * lanes * STEPS


def cpu_cases():
    """Yield what each case is limited by, its type, operations, bytes, and the call."""
    a, b, c = (np.full(ELEMENTS, 0.5 + i) for i in range(3))
    triad = compile_function(
        "def triad(a, b, c, s):\n    for i in range(len(a)):\n        a[i] = b[i] + s * c[i]\n",
        "triad",
    )
    n = float(ELEMENTS)
    yield "memory", "fp64", 2 * n, 24 * n, lambda: triad(a, b, c, 3.0)
    yield "memory", "fp64", n, 24 * n, lambda: np.add(a, b, out=c)
    yield "memory", "fp64", n, 8 * n, lambda: b.sum()
    yield "memory", "fp64", n, 16 * n, lambda: np.negative(a, out=a)
    for dtype, name in ((np.float32, "fp32"), (np.float64, "fp64")):
        call, flops = independent_chains(dtype)
        yield "compute", name, flops, 64.0, call
        if not blas_has_widest_vectors():
            continue  # then a product is far from the rate that this core can reach
        m = np.full((384, 384), 0.1, dtype)
        out = m.copy()
        yield (
            "compute",
            name,
            2.0 * 384**3,
            4.0 * m.nbytes,
            lambda m=m, out=out: np.matmul(m, m, out=out),
        )
    order = np.random.default_rng(0).permutation(ELEMENTS)
    following = np.empty_like(order)
    following[order] = np.roll(order, -1)
    chase = compile_function(CHASE, "chase")
    yield "latency", "fp64", 1.0, 64.0 * STEPS, lambda: chase(following, STEPS)  # a line per load
    for step in ("y * x + x", "x / (y + x)"):
        chain = compile_function(DEPENDENT.format(step=step), "dependent")
        yield "latency", "fp64", 2.0 * STEPS, 8.0, lambda chain=chain: chain(0.5, STEPS)
    few = np.ones(8)
    yield "latency", "fp64", 8.0, 192.0, lambda: np.add(few, few, out=few)


def blas_has_widest_vectors():
    """Whether NumPy's BLAS uses vectors of 512 bits, if this CPU has them.

    ``OPENBLAS_CORETYPE=Haswell`` and old versions keep it to 256.
    """
    if cpu.vector_bits(cpu.host_features()) < 512:
        return True
    used = {library.get("architecture") for library in threadpool_info()}
    return bool(used & {"SkylakeX", "Cooperlake", "Sapphirerapids"})


def fastest_ms(call):
    start = perf_counter()
    call()
    return 1e3 * (perf_counter() - start)


def measured(calls):
    """Return the times of calls, and the rates of this core in GB/s and GFLOP/s."""
    time_ms = np.min([[fastest_ms(call) for call in calls] for _ in range(ROUNDS)], axis=0)
    rates = [max(cpu.fma_rates(dtype, 0.02).values()) for dtype in (np.float32, np.float64)]
    return time_ms, np.array([cpu.triad_gbps(ELEMENTS, 0.1), *rates])


def rightly_named(time_ms, rates, expected, dtypes, flops, moved):
    """Return how many cases are named right, and the shares of their limits."""
    runs = pd.DataFrame(
        {
            "kernel": "case",
            "device": "this core",
            "status": "ok",
            "time_ms": time_ms,
            "problem.flops": flops,
            "problem.bytes": moved,
            "problem.dtype": dtypes,
        }
    )
    names = ("memory_gbps", "fp32_gflops", "fp64_gflops")
    runs = runs.assign(**{f"device.{n}": rate for n, rate in zip(names, rates, strict=True)})
    limits = row_limits_ms(UserDefinedCost("case", "flops", "bytes"), runs)
    shares = pd.DataFrame(limits / time_ms[:, None], columns=["compute", "memory"])
    right = name_bottlenecks(shares.assign(occupancy=np.nan)) == np.array(expected)
    return right.sum(), shares.assign(expected=expected)


def test_bottlenecks_of_kernels_on_this_cpu(monkeypatch):
    """All but two, by the best of up to forty attempts: others may use the memory any time."""
    monkeypatch.setattr(cpu, "available_cores", lambda: 1)
    *known, calls = zip(*cpu_cases(), strict=True)
    time_ms = np.inf
    rates = 0.0
    with threadpool_limits(1, user_api="blas"):
        for call in calls:
            call()  # compiles
        for _ in range(40):
            new_ms, new_rates = measured(calls)
            time_ms = np.minimum(time_ms, new_ms)
            rates = np.maximum(rates, new_rates)
            right, shares = rightly_named(time_ms, rates, *known)
            if right >= len(calls) - 2:
                break
    assert right >= len(calls) - 2, shares


@pytest.fixture(scope="module")
def recorded(shared_data):
    """Runs with counters of KTT's spaces on the RTX 2080 Ti, and what follows from raw counts."""
    rows = [
        pd.read_parquet(shared_data / "spaces" / f"{kernel}__RTX_2080_Ti.parquet")
        for kernel in ("convolution_ktt", "pnpoly_ktt")
    ]
    runs = pd.concat(rows, ignore_index=True).query("status == 'ok'").reset_index(drop=True)
    moved = runs["counter.dram__sectors_read.sum"] + runs["counter.dram__sectors_write.sum"]
    threads = runs["config.block_size_x"] * runs["config.block_size_y"].fillna(1)
    blocks = SHARED_BYTES // runs["static.LocalMemorySize"].clip(lower=1)
    return runs.assign(
        bandwidth=moved * BYTES_PER_SECTOR / runs["time_ms"] / 616e6,
        fp32=runs["counter.smsp__sass_thread_inst_executed_op_fp32_pred_on.sum"]
        / runs["time_ms"]
        / (13.4e9 / 2),
        resident=(blocks * np.ceil(threads / 32) / WARPS).clip(upper=1.0),
    )


@pytest.mark.shared_data
@pytest.mark.parametrize("rank", range(8))
def test_bottlenecks_of_recorded_counters(recorded, rank):
    """The class follows from raw counts, time and launch; the rule reads shares of peaks."""
    memory = recorded.query("fp32 < 0.1").nlargest(3, "bandwidth")
    compute = recorded.query("bandwidth < 0.1").nlargest(3, "fp32")
    occupancy = recorded.query("bandwidth < 0.1 and fp32 < 0.2").nsmallest(2, "resident")
    cases = pd.concat([memory, compute, occupancy])
    expected = ["memory"] * 3 + ["compute"] * 3 + ["occupancy"] * 2
    assert memory["bandwidth"].min() > 0.7
    assert compute["fp32"].min() > 0.8
    assert occupancy["resident"].max() < 0.1
    named = name_bottlenecks(counted_shares(cases.iloc[[rank]]))
    assert named.tolist() == [expected[rank]]


def test_bottlenecks_of_candidates_come_from_predicted_time(predictor, runs):
    """Tiny products wait for the launch; measured runs, and counters, go before predictions."""
    ok = runs[runs["status"] == "ok"].head(20).reset_index(drop=True)
    asked = ok.drop(columns="time_ms")
    found = bottlenecks(predictor, asked)
    assert set(found["bottleneck"]) <= set(KINDS)
    slow = bottlenecks(predictor, ok.assign(time_ms=1e6))
    assert set(slow["bottleneck"]) == {"latency"}
    counted = bottlenecks(predictor, asked.assign(**{"counter.DRAM Throughput": [90.0] * 20}))
    assert set(counted["bottleneck"]) == {"memory"}
    assert counted["memory"].tolist() == [0.9] * 20


def test_bottlenecks_without_counters_and_roofline_are_empty(runs):
    names = {f"problem.{size}": f"problem.their_{size}" for size in "MNK"}
    theirs = runs.assign(kernel="theirs").rename(columns=names)
    plain = Predictor(targets=("time_ms",)).fit(theirs)
    assert set(bottlenecks(plain, theirs)["bottleneck"]) == {""}


def test_a_counter_that_is_absent_is_unknown():
    rows = pd.DataFrame({"counter.Compute (SM) Throughput": [20.0, 90.0], "device": "any"})
    assert name_bottlenecks(counted_shares(rows)).tolist() == ["", "compute"]


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ((0.8, 0.6, 1.0), "memory"),
        ((np.nan, 0.6, np.nan), "compute"),
        ((0.1, 0.2, 0.2), "occupancy"),
        ((0.1, 0.2, np.nan), "latency"),
        ((np.nan, np.nan, 0.5), ""),
    ],
)
def test_name_bottlenecks_rule(shares, named):
    table = pd.DataFrame([shares], columns=["memory", "compute", "occupancy"])
    assert name_bottlenecks(table).tolist() == [named]
