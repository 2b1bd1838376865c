"""A decorated kernel on a replayed device, whose times follow a law, for tests of tuning it."""

import contextlib
import math

import triton
import tuned_kernels

import foretune

BLOCKS = (16, 32, 64, 128, 256, 512, 1024, 2048)


def by_problem(launch):
    """Larger problems like larger blocks and more warps; a valley in both."""
    size = launch.arguments["n"]
    config = launch.config
    off = math.log2(config["BLOCK"] / size) + 2, math.log2(config["num_warps"] / 4)
    return size / 1000 * (1 + 0.3 * off[0] ** 2 + 0.1 * off[1] ** 2)


def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def all_configs():
    return [triton.Config({"BLOCK": b}, num_warps=w) for b in BLOCKS for w in (1, 2, 4, 8)]


def make(tuned_by=None, **options):
    options = {"store": False, **options}
    return foretune.autotune(tuned_by or all_configs(), ["n"], **options)(
        triton.jit(tuned_kernels.copy)
    )


def call(kernel, device, tensors, n):
    """Call once; return how many launches that took beyond the call itself."""
    before = len(device.launches)
    kernel[grid](*tensors, n)
    return len(device.launches) - before - 1


def metered(monkeypatch, device, watts=None, fails=False):
    """Give the device a meter: as many watts as the block that runs has elements, or as given."""
    from foretune.collect import power
    from foretune.tune.triton import benchmark, call_tuner

    class Meter(power.PowerMeter):
        name = "replayed"
        device_kind = "gpu"

        def unavailable_because(self):
            return None

        def start(self):
            if fails:
                raise RuntimeError("the GPU is lost")

        def stop(self):
            return float("nan")

        @contextlib.contextmanager
        def window(self):
            self.start()
            yield (window := power.Window())
            block = device.launches[-1].config["BLOCK"]
            window.seconds, window.joules = 1.0, block if watts is None else watts

    for module in (call_tuner, benchmark):
        monkeypatch.setattr(module, "find_meter", lambda kind, index=0: Meter())
    monkeypatch.setattr(power, "RAMP_S", 0.0)
    monkeypatch.setattr(power, "WINDOW_S", 0.01)
