"""Items of `smoke.py`: the descriptor of the device is correct."""

import json
import os
import statistics
import subprocess
import sys
import time
from functools import partial

import torch
from smoke_rows import Run, warm_gpu_timer

import foretune


def power(run: Run) -> None:
    """Meter a GPU that was selected by its UUID, idle and busy."""
    import pynvml

    from foretune.collect.gpu_handles import visible_gpus
    from foretune.collect.power import find_meter, measure_power

    pynvml.nvmlInit()
    handle = visible_gpus(pynvml)[0]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    same = pynvml.nvmlDeviceGetUUID(handle) == f"GPU-{torch.cuda.get_device_properties(0).uuid}"
    meter = find_meter("gpu", 0)
    assert meter is not None, "no meter"
    torch.cuda.synchronize()
    time.sleep(1.0)
    with meter.window() as idle:
        time.sleep(1.5)
    a, b = torch.randn(2, 4096, 4096, device="cuda").half()
    launch = partial(torch.matmul, a, b, out=torch.empty_like(a))
    timer = warm_gpu_timer()
    launch()
    time_ms = statistics.median(timer.sample_ms(launch, 1) for _ in range(10))
    watts, millijoules = measure_power(meter, launch, time_ms, timer.wait, torch.cuda)
    limit = pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1000
    run.check(
        "power",
        same and visible.startswith("GPU-") and idle.power_w + 30 < watts < 1.1 * limit,
        f"{meter.name}: idle {idle.power_w:.0f} W, busy {watts:.0f} W (limit {limit:.0f}), "
        f"{millijoules:.1f} mJ a product of {time_ms:.3f} ms; "
        f"{'the same' if same else 'ANOTHER'} GPU as torch's",
    )


def described(run: Run) -> None:
    """Compare the device's descriptor with torch's properties; run ``foretune doctor``."""
    from foretune.device import find_device_or_none

    with run.checking("descriptor"):
        device = foretune.local_device("gpu")
        has = torch.cuda.get_device_properties(0)
        pairs = {
            "cores": (device.specs.get("cores", 0), has.multi_processor_count),
            "l2_kib": (device.specs.get("l2_kib", 0), has.L2_cache_size / 1024),
            "memory_gib": (device.specs.get("memory_gib", 0), has.total_memory / 2**30),
        }
        ok = device.name == has.name and device.architecture == f"sm_{has.major}{has.minor}"
        ok = ok and all(abs(ours / theirs - 1) < 0.04 for ours, theirs in pairs.values())
        known = find_device_or_none(has.name)
        differences = ", ".join(f"{n} {a:g} (torch {b:g})" for n, (a, b) in pairs.items())
        run.check(
            "descriptor",
            ok and known is not None,
            f"{device.name}, {device.architecture}; {differences}; "
            f"{'known' if known else 'UNKNOWN'} to the table",
        )
    with run.checking("doctor"):
        command = [sys.executable, "-m", "foretune", "--json", "doctor"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=True)
        names = [d["name"] for d in json.loads(done.stdout)["devices"]]
        run.check("doctor", torch.cuda.get_device_name() in names, f"lists {', '.join(names)}")
