"""Measuring on a Ray cluster of this machine: two nodes that each claim to have the CPU."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading

import psutil
import pytest
from pandas.testing import assert_frame_equal
from toy_kernel import Toy, config

from foretune.collect import IsolatedRunner, RayRunner, Timing, collect_runs, local_device
from foretune.collect.distributed.actor import resource_counts
from foretune.datasets import RunLog, read_runs
from foretune.errors import ForetuneWarning, MeasurementError, UsageError
from foretune.support.progress import SILENT
from foretune.testing import check_runner

pytestmark = [
    pytest.mark.ray,
    # A killed worker's successor may be sent to the node that is just going.
    pytest.mark.filterwarnings("ignore:a worker was lost during its start"),
]

TIMING = Timing(max_seconds=0.03, warmup_s=0.002)
LIMIT_S = 5.0
HEALTH = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 500,
    "health_check_failure_threshold": 4,
}


@pytest.fixture(scope="module")
def cpu():
    return local_device("cpu")


@pytest.fixture(scope="module")
def cluster(cpu):
    """A head, and two nodes with one device each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_DEDUP_LOGS_SKIP_REGEX", ".")
        Cluster = pytest.importorskip("ray.cluster_utils").Cluster

        node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
        cluster = Cluster()
        cluster.add_node(**node, _system_config=HEALTH)
        cluster.with_devices = [
            cluster.add_node(**node, resources=resource_counts([cpu])) for _ in range(2)
        ]
        yield cluster
        cluster.shutdown()


@pytest.fixture
def runner(cluster, cpu):
    """Each test has its own: some close it, or lose a node whose end is seen later."""
    with RayRunner(Toy(), cpu.name.lower(), TIMING, LIMIT_S, address=cluster.address) as runner:
        yield runner


def test_ray_runner_unknown_device_is_refused(cluster, cpu):
    with pytest.raises(UsageError, match="no device NVIDIA H200 in the cluster, which has f"):
        RayRunner(Toy(), "NVIDIA H200", address=cluster.address)
    other = dataclasses.replace(cpu, specs={**cpu.specs, "cores": 1000.0})
    with pytest.raises(UsageError, match=r"no device foretune:.*:1000-cores in the cluster"):
        RayRunner(Toy(), other, address=cluster.address)


def test_ray_runner_by_name_watches_and_refuses_other_code(runner, cluster, cpu, monkeypatch):
    assert runner.device == cpu
    assert runner.devices == len(cluster.with_devices)
    with runner.watch() as watch:
        assert next(runner.run(Toy(), Toy().problem(n=20), [config()])).ok
    assert 0 <= watch.load.other_load <= 1
    monkeypatch.setattr(Toy, "source_hash", "0123456789abcdef")
    with pytest.raises(MeasurementError, match=r"other code of kernel 'toy'.*0123456789abcdef"):
        next(runner.run(Toy(), Toy().problem(n=20), [config()]))


def test_ray_runner_lost_actors_change_no_row(runner, cluster, cpu, tmp_path):
    """A worker is killed while it works, and then a whole node."""
    import ray

    kernel = Toy()
    configs = [config(work=work, skew=skew) for work in (1, 2, 4) for skew in (1, 2)]
    plan = {kernel.problem(n=n): list(configs) for n in (20, 40)}
    plan[kernel.problem(n=20)] += [config("wrong"), config("die"), config("no build")]
    with IsolatedRunner(cpu, TIMING, LIMIT_S) as here:
        alone = table(kernel, plan, here, tmp_path / "alone.parquet")
    mine = ray._private.worker.global_worker.node.raylet_socket_name  # of this process: it stays
    other = next(n for n in cluster.with_devices if n.raylet_socket_name != mine)
    kills = {2: kill_a_worker_soon, 7: lambda: cluster.remove_node(other, False)}
    with pytest.warns(ForetuneWarning, match="lost a worker, its work goes to another"):
        shared = table(kernel, plan, runner, tmp_path / "shared.parquet", Killing(kills))
    assert_frame_equal(alone, shared)


def test_check_runner_ray(runner):
    check_runner(runner)


LOCAL = """
import json, os, subprocess, sys
import psutil, ray
from toy_kernel import Toy, config
from foretune.collect import RayRunner, Timing, local_device

os.environ["RAY_AUTH_MODE"] = "disabled"
with RayRunner(Toy(), local_device("cpu"), Timing(max_seconds=0.03), 5.0) as runner:
    (measured,) = runner.run(Toy(), Toy().problem(n=20), [config()])
    ours = [psutil.Process(), *psutil.Process().children(recursive=True)]
    ears = {c.laddr.ip for p in ours for c in p.net_connections("inet") if c.status == "LISTEN"}
    gcs = ray.get_runtime_context().gcs_address
    stranger = subprocess.run(
        [sys.executable, "-c", f"from ray._raylet import GcsClient; GcsClient(address={gcs!r})"],
        capture_output=True, text=True,
    )
print(json.dumps([measured.ok, sorted(ears), stranger.stderr[-900:], os.environ["RAY_AUTH_MODE"]]))
"""


def test_local_cluster_is_closed_to_others(tmp_path):
    """It listens on the loopback interface, and refuses those who do not know its token."""
    run = subprocess.run(
        [sys.executable, "-c", LOCAL],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert run.returncode == 0, run.stderr
    ok, listening, refused, mode = json.loads(run.stdout.splitlines()[-1])
    assert ok
    assert set(listening) <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert "InvalidAuthToken" in refused
    assert mode == "disabled"
    assert not (tmp_path / ".ray").exists()


class Killing(type(SILENT)):
    """Progress that does something after so many measurements."""

    def __init__(self, kills):
        self.done = 0
        self.kills = kills

    def advance(self, note=""):
        self.done += 1
        self.kills.get(self.done, int)()


def table(kernel, plan, runner, path, progress=SILENT):
    """Return what is measured, without times, in one order."""
    with RunLog(path, runner.device) as log:
        collect_runs(kernel, plan, log, runner, progress)
    runs = read_runs(path)
    runs = runs.drop(columns=["time_ms", "time_ms_samples", "compile_s", "recorded_at"])
    columns = [c for c in runs if c.startswith(("problem.", "config."))]
    return runs.sort_values(columns, ignore_index=True)[sorted(runs)]


def kill_a_worker_soon():
    threading.Timer(0.02, kill_a_worker).start()  # it has something to do by then


def kill_a_worker():
    """Kill an actor of this test's cluster that has measured."""
    ours = psutil.Process().children(recursive=True)
    members = [p for p in ours if "ray::RayActor" in " ".join(p.cmdline()) and p.children()]
    os.kill(members[0].pid, signal.SIGKILL)
