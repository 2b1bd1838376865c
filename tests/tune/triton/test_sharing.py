"""Processes that tune the same kernel at the same time: they share the work, and agree."""

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="needs torch: pip install '.[gpu]'")
triton = pytest.importorskip("triton", reason="needs triton: pip install '.[gpu]'")

import tuned_kernels

import foretune
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Store, Subject
from foretune.tune.store import store as store_module
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.store import this_process
from foretune.tune.triton import stalled

BLOCKS = [2**i for i in range(4, 14)]
RANK = """
import sys, time
sys.path += [sys.argv[1], sys.argv[1] + "/../replay_gpu"]
import torch, triton, tuned_kernels, foretune
from replay_driver import ReplayDriver

def times(launch):
    time.sleep(float(sys.argv[4]))
    return 1.0 + abs(launch.config["BLOCK"] - 512) / 512

budget = sys.argv[3] if sys.argv[3] == "all" else int(sys.argv[3])
kernel = foretune.autotune(tuned_kernels.configs(*eval(sys.argv[5])), ["n"], budget=budget,
    store=sys.argv[2])(triton.jit(tuned_kernels.copy))
print("ready", flush=True)
sys.stdin.readline()
with ReplayDriver(times).active() as driver:
    kernel[(1,)](torch.ones(64, dtype=torch.float16), torch.zeros(64), 1024)
print(len(driver.launches) - 1, kernel.best_config.kwargs["BLOCK"], flush=True)
"""


@pytest.fixture
def ranks(tmp_path):
    started = []

    def start(count, budget="all", seconds=0.05):
        toys = tuned_kernels.__file__.rpartition("/")[0]
        place = tmp_path / "tuned.db"
        run = [sys.executable, "-P", "-W", "ignore", "-c", RANK, toys, place, budget, str(seconds)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.extend(subprocess.Popen([*run, repr(BLOCKS)], **pipes) for _ in range(count))
        for rank in started:
            assert rank.stdout.readline() == "ready\n"
        for rank in started:
            rank.stdin.write("go\n")
            rank.stdin.flush()
        return started

    yield start
    for rank in started:
        rank.kill()
        rank.communicate()


def said(rank):
    measured, block = map(int, rank.communicate(timeout=120)[0].split())
    return measured, block


def test_ranks_share_the_work_and_agree(ranks):
    found = [said(rank) for rank in ranks(3, seconds=0.2)]
    assert {block for _, block in found} == {512}
    measured = sum(count for count, _ in found)
    assert len(BLOCKS) <= measured <= len(BLOCKS) + 3  # alone, each would have measured all
    assert max(count for count, _ in found) < len(BLOCKS)


def test_a_rank_that_dies_keeps_nobody_waiting(ranks):
    first, other = ranks(2, seconds=0.3)
    first.send_signal(signal.SIGKILL)
    assert said(other)[1] == 512


def test_a_claim_of_another_process_counts_as_long_as_it_may_live(tmp_path, monkeypatch):
    store, problem = Store(tmp_path / "t.db"), Problem(n=1)
    subject, config, me = Subject("k", "s", "d", "v"), Configuration(x=1), this_process()
    assert store.try_claim(subject, problem, config)
    assert store.try_claim(subject, problem, config)  # its own
    far = replace(me, host="elsewhere")
    monkeypatch.setattr(store_module, "this_process", lambda: far)
    assert not store.try_claim(subject, problem, config)
    assert store.try_claim(subject, problem, Configuration(x=2))
    monkeypatch.setattr(store_module, "this_process", lambda: me)
    assert not store.try_claim(subject, problem, Configuration(x=2))
    monkeypatch.setattr(store_module, "MAX_CLAIM_S", 0.0)
    assert store.try_claim(subject, problem, Configuration(x=2))
    dead = replace(me, pid=os.getpid() + 2**22)
    monkeypatch.setattr(store_module, "MAX_CLAIM_S", 1e9)
    monkeypatch.setattr(store_module, "this_process", lambda: dead)
    store.begin_measurement(subject, problem, Configuration(x=3))
    monkeypatch.setattr(store_module, "this_process", lambda: me)
    assert store.try_claim(subject, problem, Configuration(x=3))


@pytest.fixture
def claimed(tmp_path, monkeypatch):
    """Let another live process claim block 128 of a call; return the kernel and the claim."""
    place = tmp_path / "t.db"
    options = {"store": place, "budget": "all"}
    kernel = foretune.autotune(tuned_kernels.configs(64, 128, 256), ["n"], **options)(
        triton.jit(tuned_kernels.copy)
    )
    claims = []

    def claim(self, problem, config, remeasure=False):
        if config["BLOCK"] == 128 and not claims:
            claims.append((self.subject, problem, config))
            with monkeypatch.context() as other:
                far = replace(this_process(), host="elsewhere")
                other.setattr(store_module, "this_process", lambda: far)
                assert Store(place).try_claim(self.subject, problem, config)
        return original(self, problem, config, remeasure)

    original = MeasurementCache.try_claim
    monkeypatch.setattr(MeasurementCache, "try_claim", claim)
    return kernel, claims, Store(place)


def test_who_waits_too_long_measures_by_itself(claimed, driver, tensors, monkeypatch):
    monkeypatch.setattr(stalled, "TIMEOUT_S", 0.03)
    kernel, claims, _ = claimed
    kernel[(1,)](*tensors, 1024)
    assert len(claims) == 1
    assert [launch.config["BLOCK"] for launch in driver.launches] == [64, 256, 128, 256]


def test_a_measurement_of_another_process_is_waited_for(claimed, driver, tensors, monkeypatch):
    kernel, claims, store = claimed

    def report(seconds):
        subject, problem, config = claims[0]
        found = Measurement(subject.kernel, problem, config, subject.device, Status.OK, 0.001)
        store.put(subject, [found])

    monkeypatch.setattr(stalled.time, "sleep", report)
    kernel[(1,)](*tensors, 1024)
    assert [launch.config["BLOCK"] for launch in driver.launches] == [64, 256, 128]
    assert kernel.best_config.kwargs["BLOCK"] == 128


def test_a_claim_without_a_result_is_taken_over(claimed, driver, tensors, monkeypatch):
    kernel, claims, _ = claimed
    monkeypatch.setattr(stalled.time, "sleep", lambda s: monkeypatch.setattr(
        store_module, "MAX_CLAIM_S", 0.0
    ))  # fmt: skip
    kernel[(1,)](*tensors, 1024)
    assert len(claims) == 1
    assert [launch.config["BLOCK"] for launch in driver.launches] == [64, 256, 128, 256]
