"""What a GPU can do at most: bandwidths, matrix products per format, what a launch costs.

    PYTHONPATH=src python benchmarks/gpu/probe.py --out runs
    PYTHONPATH=src python benchmarks/gpu/probe.py --out runs --replay

Prints and writes ``probe.json``: the device's descriptor, and each measured number as it is made.
"""

import datetime
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from running import Stage, bench_of
from stage import Deadline, markdown, rounded, write_json

from foretune.collect.versions import versions
from foretune.kernel import Launch

SIDE = 8192
COPIED_BYTES = 2**31
L2_BYTES = 2**24
"""Copied within the cache: with what is written it is a part of any large GPU's."""
SMALL_LAUNCHES = 200
SAMPLES = 15
WARM = 5


@dataclass(frozen=True)
class Probe:
    """One number to measure.

    Attributes:
        name: Name in a device's descriptor, if it has one.
        unit: Unit of the number.
        amount: Work of one call in ``unit`` times milliseconds; 0: the number is the time.
        call: Makes the call that is timed.
        replayed_ms: Time of a replayed call.
        calls: Number of calls in one sample.
    """

    name: str
    unit: str
    amount: float
    call: Callable[[], Launch]
    replayed_ms: float
    calls: int = 1


def main(argv: list[str] | None = None) -> None:
    options = Stage(__doc__).parse_args(argv)
    bench = bench_of(options)
    deadline = Deadline(options.minutes)
    path = options.out / "probe.json"
    found = _known(path)
    with bench.active():
        for probe in probes(bench):
            if deadline.over or probe.name in found["measured"]:
                continue
            try:
                value = measured(probe, bench)
            except RuntimeError as e:  # this device or this torch has no such product
                found["measured"][probe.name] = None
                found["missing"][probe.name] = str(e).splitlines()[0][:200]
            else:
                found["measured"][probe.name] = rounded(value)
            write_json(path, found | _about(bench))
        write_json(path, found | _about(bench))
    units = {probe.name: probe.unit for probe in probes(bench)}
    rows = [
        [name, "–" if value is None else f"{value:,.4g}", _expected(bench, name), units[name]]
        for name, value in found["measured"].items()
    ]
    print(f"{bench.device.name}; {bench.source}; {versions()}\n")
    print(markdown(["probe", "measured", "data sheet", "unit"], rows))


def probes(bench: Any) -> Iterator[Probe]:
    """Yield the numbers to measure."""
    rates = bench.device.specs
    bandwidth = rates.get("memory_gbps", 1000.0)
    moved = 2 * COPIED_BYTES / 1e6
    yield Probe("memory_gbps", "GB/s", moved, lambda: _copy(COPIED_BYTES), moved / bandwidth)
    cached = 2 * L2_BYTES / 1e6
    yield Probe("l2_gbps", "GB/s", cached, lambda: _copy(L2_BYTES), cached / (2 * bandwidth), 50)
    work = 2 * SIDE**3 / 1e6
    for dtype in ("fp32", "fp16", "bf16", "fp8", "int8"):
        rate = rates.get(f"{dtype}_gflops", 1e5)
        yield Probe(f"{dtype}_gflops", "GFLOP/s", work, partial(_product, dtype), work / rate)
    yield Probe("launch_gap_us", "µs", 0.0, _small, 0.002, SMALL_LAUNCHES)
    yield Probe("graph_gap_us", "µs", 0.0, lambda: _small_graph(bench), 0.001 * SMALL_LAUNCHES)
    yield Probe("launch_latency_us", "µs", 0.0, _small, 0.006)


def measured(probe: Probe, bench: Any) -> float:
    """Return the median of some samples: a rate, or microseconds."""
    call = probe.call if not bench.replayed else (lambda: lambda: None)
    launch = bench.call(call(), probe.replayed_ms)
    sample = _round_trip_ms if probe.name == "launch_latency_us" else _queued_ms
    samples = [sample(launch, bench, probe.calls) for _ in range(WARM + SAMPLES)][WARM:]
    time_ms = float(np.median(samples))
    if probe.amount:
        return probe.amount / time_ms
    return 1000 * time_ms / (SMALL_LAUNCHES if probe.name == "graph_gap_us" else 1)


def _queued_ms(launch: Launch, bench: Any, calls: int) -> float:
    """Return milliseconds per call between two events."""
    start = bench.event()
    end = bench.event()
    start.record()
    for _ in range(calls):
        launch()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / calls


def _round_trip_ms(launch: Launch, bench: Any, calls: int) -> float:
    """Return milliseconds from a launch until the host knows that it is done."""
    bench.synchronize()
    start = bench.now()
    launch()
    bench.synchronize()
    return 1000 * (bench.now() - start)


def _copy(size: int) -> Launch:
    import torch

    source = torch.randint(0, 127, (size,), dtype=torch.int8, device="cuda")
    target = torch.empty_like(source)
    return lambda: target.copy_(source)


def _product(dtype: str) -> Launch:
    """Return a product of square matrices of random numbers, through torch."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (torch.randn(SIDE, SIDE, device="cuda") for _ in range(2))
    if dtype == "int8":
        x, y = (m.mul_(16).round_().clamp_(-127, 127).to(torch.int8) for m in (a, b))
        return lambda: torch._int_mm(x, y.t())
    if dtype == "fp8":
        x, y = (m.to(torch.float8_e4m3fn) for m in (a, b))
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(
            x, y.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True
        )
    kind = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[dtype]
    x = a.to(kind)
    y = b.to(kind)
    out = torch.empty_like(x)
    return lambda: torch.matmul(x, y.t(), out=out)


def _small() -> Launch:
    import torch

    x = torch.zeros(32, device="cuda")
    return lambda: x.add_(1)


def _small_graph(bench: Any) -> Launch:
    return bench.rotated([_small()], SMALL_LAUNCHES)[0]


def _known(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {"measured": {}, "missing": {}} | found


def _expected(bench: Any, name: str) -> str:
    value = bench.device.specs.get(name)
    return "" if value is None else f"{value:,.4g}"


def _about(bench: Any) -> dict[str, Any]:
    nvml = bench.nvml
    driver = nvml.nvmlSystemGetDriverVersion()
    return {
        "device": bench.device.name,
        "architecture": bench.device.architecture,
        "driver": driver.decode() if isinstance(driver, bytes) else driver,
        "specs": dict(bench.device.specs),
        "specs_source": bench.device.source,
        "source": bench.source,
        "environment": versions(),
        "recorded_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    main(sys.argv[1:])
