"""Processes that tune the same kernel at the same time share the work and its result."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

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
SERVER = """
import json, os, signal, sys, time
sys.path += sys.argv[1:]
import torch, triton, tuned_kernels, foretune
from replay_driver import ReplayDriver

def tune(place, blocks, seconds, end, deadly):
    def times(launch):
        time.sleep(seconds)
        if end and launch.config["BLOCK"] in deadly:
            os.kill(os.getpid(), signal.Signals[end])
        return 1.0 + abs(launch.config["BLOCK"] - 512) / 512

    kernel = foretune.autotune(tuned_kernels.configs(*blocks), ["n"], budget="all", store=place)(
        triton.jit(tuned_kernels.copy)
    )
    with ReplayDriver(times).active() as driver:
        kernel[(1,)](torch.ones(64, dtype=torch.float16), torch.zeros(64), 1024)
    return len(driver.launches) - 1, kernel.best_config.kwargs["BLOCK"]

tune(False, [16, 32], 0.0, None, [])  # what a first call imports
for line in sys.stdin:
    ranks = {}
    for asked in json.loads(line):
        read, write = os.pipe()
        if not (pid := os.fork()):
            os.write(write, json.dumps(tune(*asked)).encode())
            os._exit(0)
        os.close(write)
        ranks[pid] = read
    said = [os.read(read, 100).decode() or "null" for read in ranks.values()]
    ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in ranks]
    print(json.dumps([[json.loads(s), e] for s, e in zip(said, ends)]), flush=True)
"""


@pytest.fixture(scope="module")
def server():
    """A process that has imported what takes seconds, and forks ranks that tune at once."""
    toys = Path(tuned_kernels.__file__).parent
    run = [sys.executable, "-P", "-W", "ignore", "-c", SERVER, toys, toys.parent / "replay_gpu"]
    with subprocess.Popen(run, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        yield server
        server.kill()


@pytest.fixture
def ranks(server, tmp_path):
    def run(ends, blocks=BLOCKS, deadly=BLOCKS, seconds=0.0):
        """Return what each rank measured and chose, and how it ended: some die by a signal."""
        asked = [[str(tmp_path / "tuned.db"), blocks, seconds, end, deadly] for end in ends]
        print(json.dumps(asked), file=server.stdin, flush=True)
        return json.loads(server.stdout.readline())

    return run


def test_sharing_ranks_divide_the_work_and_agree(ranks):
    found, ends = zip(*ranks([None] * 3, seconds=0.2), strict=True)
    assert ends == (0, 0, 0)
    assert {block for _, block in found} == {512}
    measured = sum(count for count, _ in found)
    assert len(BLOCKS) <= measured <= len(BLOCKS) + 3  # alone, each would have measured all
    assert max(count for count, _ in found) < len(BLOCKS)


def test_sharing_killed_rank_does_not_block_others(ranks):
    (nothing, end), (found, _) = ranks(["SIGKILL", None], seconds=0.1)
    assert (nothing, end) == (None, -signal.SIGKILL)
    assert found[1] == 512


@pytest.mark.parametrize("ends", [["SIGKILL"], ["SIGTERM", "SIGKILL"]])
def test_sharing_configuration_that_killed_two_processes_is_skipped(
    ranks, driver, tensors, tmp_path, ends
):
    for end in ends:
        assert ranks([end], [64, 128, 256], [128]) == [[None, -signal.Signals[end]]]
    kernel = foretune.autotune(
        tuned_kernels.configs(64, 128, 256), ["n"], budget="all", store=tmp_path / "tuned.db"
    )(triton.jit(tuned_kernels.copy))
    kernel[(1,)](*tensors, 1024)
    measured = {launch.config["BLOCK"] for launch in driver.launches[:-1]}
    assert (128 in measured) is (len(ends) == 1)


def test_claim_lasts_as_long_as_its_process_may_live(tmp_path, monkeypatch):
    store = Store(tmp_path / "t.db")
    problem = Problem(n=1)
    subject = Subject("k", "s", "d", "v")
    config = Configuration(x=1)
    me = this_process()
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


def test_sharing_late_claim_is_measured_here(claimed, driver, tensors, monkeypatch):
    monkeypatch.setattr(stalled, "TIMEOUT_S", 0.03)
    kernel, claims, _ = claimed
    kernel[(1,)](*tensors, 1024)
    assert len(claims) == 1
    assert [launch.config["BLOCK"] for launch in driver.launches] == [64, 256, 128, 256]


def test_sharing_waits_for_the_result_of_a_claim(claimed, driver, tensors, monkeypatch):
    kernel, claims, store = claimed

    def report(seconds):
        subject, problem, config = claims[0]
        found = Measurement(subject.kernel, problem, config, subject.device, Status.OK, 0.001)
        store.put(subject, [found])

    monkeypatch.setattr(stalled.time, "sleep", report)
    kernel[(1,)](*tensors, 1024)
    assert [launch.config["BLOCK"] for launch in driver.launches] == [64, 256, 128]
    assert kernel.best_config.kwargs["BLOCK"] == 128


def test_sharing_expired_claim_is_measured_here(claimed, driver, tensors, monkeypatch):
    kernel, claims, _ = claimed
    monkeypatch.setattr(
        stalled.time, "sleep", lambda s: monkeypatch.setattr(store_module, "MAX_CLAIM_S", 0.0)
    )
    kernel[(1,)](*tensors, 1024)
    assert len(claims) == 1
    assert [launch.config["BLOCK"] for launch in driver.launches] == [64, 256, 128, 256]
