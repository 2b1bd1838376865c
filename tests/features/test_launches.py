"""Features of tiled launches: `features/launches.py`."""

import dataclasses

import numpy as np
import pytest

from foretune.device import Device, find_device
from foretune.features.launches import TileLaunch, launch_features

A100 = find_device("NVIDIA A100-SXM4-40GB")
H100 = find_device("NVIDIA H100 80GB HBM3")


def product(m, n, k, stages=3, warps=4, size=4096, bits=16, exact=0.0):
    bytes_ = bits / 8
    tiles = float(np.ceil(size / m) * np.ceil(size / n))
    return TileLaunch(
        tiles=tiles,
        tile_m=m,
        tile_n=n,
        tile_k=k,
        size_m=size,
        size_n=size,
        size_k=size,
        steps=size / k,
        flops=2.0 * m * n * k,
        step_bytes=bytes_ * k * (m + n),
        kept_bytes=0.0,
        sums=m * n,
        moved_bytes=3 * bytes_ * size**2,
        warps=warps,
        stages=stages,
        bits_a=bits,
        bits_b=bits,
        exact=exact,
        transposed_a=0.0,
        transposed_b=0.0,
        alignment=4.0,
    )


@pytest.mark.parametrize(
    ("launch", "device", "fits"),
    [
        # one step less than stages is in flight: 4 · 64 · (128 + 128) · 2 bytes are 128 KiB
        (product(128, 128, 64, stages=5), A100, True),
        (product(128, 128, 64, stages=7), A100, False),
        (product(128, 128, 64, stages=5, bits=32), A100, False),
        # asynchronous matrix units need the step that they work on, too
        (product(128, 128, 64, stages=7), H100, True),
        (product(128, 128, 64, stages=8), H100, False),
        (product(32, 224, 64, stages=8), H100, True),
    ],
)
def test_launch_features_fits_shared_memory_and_registers(launch, device, fits):
    assert launch_features([launch, launch], device).fits.tolist() == [fits, fits]


def test_analytic_time_prefers_tiles_with_reuse():
    columns = launch_features([product(16, 16, 32), product(128, 128, 32)], A100)
    assert columns.analytic_log_time[1] == 0 < columns.analytic_log_time[0]


def test_analytic_time_counts_register_spills():
    columns = launch_features([product(256, 256, 32, warps=w) for w in (2, 8)], A100)
    assert columns.analytic_log_time[0] > columns.analytic_log_time[1]


@pytest.mark.parametrize("specs", [{}, {"cores": 80.0}])
def test_launch_features_unknown_device_has_all_columns(specs):
    device = Device("new", "gpu", "sm_999", specs)
    columns = launch_features([product(64, 64, 32), product(128, 32, 64, exact=1.0)], device)
    assert np.isfinite(columns.values).all()
    assert columns.fits.all()
    assert np.isfinite(columns.analytic_log_time).all()


def test_launch_features_are_relative_to_the_device():
    """Twice the device for twice the work: nothing that counts cores or waves changes."""
    small = Device("a", "gpu", "sm_80", {**A100.specs, "cores": 64.0})
    large = Device("b", "gpu", "sm_80", {n: 2 * v for n, v in small.specs.items()})
    one = product(128, 128, 32)
    other = product(64, 64, 32)
    double = [dataclasses.replace(x, tiles=2 * x.tiles) for x in (one, other)]
    a, b = (
        launch_features([one, other], small).analytic_log_time,
        launch_features(double, large).analytic_log_time,
    )
    np.testing.assert_allclose(a, b, atol=0.05)


def log_time_over(one, other, device):
    """Return the log of the analytic time of one launch over that of another."""
    log_time = launch_features([one, other], device).analytic_log_time
    return log_time[0] - log_time[1]


@pytest.mark.parametrize(
    ("device", "bits", "exact", "changes"),
    [
        (H100, 32, 0.0, True),  # TF32 on Hopper
        (H100, 32, 1.0, False),  # not rounded: no matrix units
        (H100, 16, 0.0, False),  # taken in either layout
        (A100, 32, 0.0, False),  # loaded through registers anyway
    ],
)
def test_launch_features_layout_matters_for_tf32_on_hopper(device, bits, exact, changes):
    large = product(128, 128, 32, bits=bits, exact=exact)
    small = product(32, 128, 32, bits=bits, exact=exact)
    rearranged = [dataclasses.replace(launch, k_major=0.0) for launch in (large, small)]

    before = log_time_over(large, small, device)
    after = log_time_over(*rearranged, device)

    assert (after > before + 0.3) == changes
