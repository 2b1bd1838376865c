"""Rates of this machine's disk and of its link to a GPU."""

import os

import pytest

from foretune.collect import link_rates
from foretune.collect.link_rates import LinkRate, measure_disk, measure_host_copy
from foretune.errors import UsageError

needs_fadvise = pytest.mark.skipif(
    not hasattr(os, "posix_fadvise"), reason="this system cannot drop files from memory"
)


@needs_fadvise
def test_disk_is_measured_and_left_as_it_was(tmp_path):
    rate = measure_disk(tmp_path, files=3)
    assert 0 < rate.low <= rate.gbps <= rate.high
    assert list(tmp_path.iterdir()) == []


@needs_fadvise
def test_disk_every_pass_drops_its_files_from_memory(tmp_path, monkeypatch):
    dropped = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda file, start, size, advice: dropped.append((size, advice))
    )
    measure_disk(tmp_path, files=3)
    assert dropped == [(0, os.POSIX_FADV_DONTNEED)] * 3 * link_rates.PASSES


@needs_fadvise
def test_disk_that_is_full_is_refused_by_name(tmp_path, monkeypatch):
    def full(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(link_rates, "_write_through", full)
    with pytest.raises(UsageError, match=r"No space left on device.*give the rate"):
        measure_disk(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_disk_that_stays_in_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    with pytest.raises(UsageError, match="give it in GB/s"):
        measure_disk(tmp_path)


def test_rate_is_the_median_of_passes():
    assert LinkRate.of_passes(2_000_000_000, [1.0, 4.0, 2.0]) == LinkRate(1.0, 0.5, 2.0)


def test_host_copy_needs_a_gpu():
    torch = pytest.importorskip("torch")
    if torch.accelerator.is_available():
        assert measure_host_copy().gbps > 0
    else:
        with pytest.raises(UsageError, match="torch sees no GPU"):
            measure_host_copy()


def test_host_copy_is_timed_between_two_waits(monkeypatch):
    """Rehearsed on the CPU, as no GPU is needed to see what is copied and waited for."""
    torch = pytest.importorskip("torch")
    events = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda: events.append("wait"))
    empty = torch.empty
    monkeypatch.setattr(
        torch, "empty", lambda size, dtype, device="cpu", pin_memory=False: empty(size, dtype=dtype)
    )
    monkeypatch.setattr(link_rates, "COPY_BYTES", 2**20)
    rate = measure_host_copy()
    assert 0 < rate.low <= rate.gbps <= rate.high
    assert events == ["wait", "wait"] * link_rates.PASSES
