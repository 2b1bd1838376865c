"""The SLURM script of the page about fleets, on a SLURM cluster of three hosts.

The hosts are namespaces of this machine. Each runs SLURM's node daemon, and claims a GPU that it
does not have, so that the script's options about GPUs are those of the page.
"""

import os
import re
import secrets
import shutil
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import hosts
import pytest
from host_fleet import PRIVATE, QUICK_HEALTH, WORKER_MARKS, command_line
from hosts import Network, wait_for
from ledger_kernel import LEDGER_VARIABLE, read_ledger

from foretune.collect import local_device
from foretune.collect.devices import cache_directory
from foretune.datasets import read_runs

PAGE = Path(__file__).parents[3] / "docs" / "fleet.md"
KERNEL = f"{Path(hosts.__file__).with_name('ledger_kernel.py')}:LedgerKernel"
NAMES = ("alpha", "beta", "gamma")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun")
PROBLEMS = 4
CONFIGS = 15
MANY_CONFIGS = 40
"""Enough for the job to outlast SLURM's patience with a silent node."""
START_TIMEOUT_S = 60.0
JOB_MINUTES = 5

SLURM_CONF = f"""
ClusterName=hosts
SlurmctldHost={NAMES[0]}
SlurmUser=root
AuthInfo=socket={PRIVATE}/munge.socket
StateSaveLocation={PRIVATE}/slurmctld
SlurmdSpoolDir={PRIVATE}/slurmd
SlurmctldPidFile={PRIVATE}/slurmctld.pid
SlurmdPidFile={PRIVATE}/slurmd.pid
SlurmctldLogFile={PRIVATE}/slurmctld.log
SlurmdLogFile={PRIVATE}/slurmd.log
SlurmdTimeout=10
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
GresTypes=gpu
NodeName={",".join(NAMES)} CPUs=1 Gres=gpu:1
PartitionName=main Nodes=ALL Default=YES
"""
GRES_CONF = "Name=gpu File=/dev/null\n"

pytestmark = [pytest.mark.ray, pytest.mark.extended, pytest.mark.timeout(600)]


@pytest.fixture
def environment(tmp_path):
    """What the user who submits the job has set; Ray is bounded, and soon misses a lost node."""
    return {
        **QUICK_HEALTH,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "HOME": str(tmp_path),
        "TMPDIR": PRIVATE,
        "RAY_TMPDIR": PRIVATE,
        "RAY_DEFAULT_OBJECT_STORE_MAX_MEMORY_BYTES": "80000000",
        "FORETUNE_CACHE": str(cache_directory()),
        LEDGER_VARIABLE: str(tmp_path / "ledger"),
        "SLURM_CONF": str(tmp_path / "slurm.conf"),
    }


@pytest.fixture
def slurm(tmp_path, environment):
    """Three hosts with SLURM; the first one has the controller."""
    if reason := hosts.missing():
        pytest.skip(reason)
    if absent := [program for program in PROGRAMS if not shutil.which(program)]:
        pytest.skip(f"needs {', '.join(absent)}: apt-get install slurm-wlm munge")
    if not (Path(sys.executable).parent / "ray").exists():
        pytest.skip(f"needs the program ray in {Path(sys.executable).parent}")

    (tmp_path / "slurm.conf").write_text(SLURM_CONF)
    (tmp_path / "gres.conf").write_text(GRES_CONF)
    key = tmp_path / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(64))
    files = [f"--{name}-file={PRIVATE}/munged.{name}" for name in ("pid", "log", "seed")]
    munged = ["munged", "--force", f"--key-file={key}", f"--socket={PRIVATE}/munge.socket", *files]

    with Network(tmp_path, NAMES) as network:
        for name in NAMES:
            host = network.start(name)
            host.run(*munged)
            if name == NAMES[0]:
                host.run("slurmctld", env=environment)
            host.run("slurmd", env=environment)
        yield network


def adapted_script(table, configs):
    """Return the page's script for three hosts without GPUs, writing to ``table``."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", PAGE.read_text(), re.S)
    device = local_device("cpu").name
    collect = (
        f"foretune collect {KERNEL} --problems {PROBLEMS} --configs {configs} --max-seconds 1 "
        f"--out {table} --device '{device}'"
    )
    changes = {
        "--nodes=4": f"--nodes={len(NAMES)}",
        "--gpus-per-node=8": "--gpus-per-node=1",
        "--time=08:00:00": f"--time=00:{JOB_MINUTES:02}:00",
        ".venv/bin/activate": f"{sys.prefix}/bin/activate",
        'foretune campaign triton_gemm --preset full --device "NVIDIA H200"': collect,
    }
    for ours, here in changes.items():
        assert script.count(ours) == 1
        script = script.replace(ours, here)
    return script


@dataclass(frozen=True)
class Job:
    """The page's script, submitted on the first host."""

    network: Network
    folder: Path
    environment: dict[str, str]
    configs: int = CONFIGS

    @property
    def ledger(self):
        path = self.folder / "ledger"
        return read_ledger(path) if path.exists() else []

    @property
    def output(self):
        path = self.folder / "job.log"
        return path.read_text() if path.exists() else "(nothing)"

    def submit(self):
        """Submit the job and return its process, which ends with the job."""
        script = self.folder / "job.sh"
        script.write_text(adapted_script(self.folder / "runs.parquet", self.configs))
        log = self.folder / "job.log"
        controller = self.network.hosts[NAMES[0]]
        submit = ["sbatch", "--wait", f"--output={log}", "--open-mode=append", script]
        return controller.start(*submit, env=self.environment)

    def count_nodes(self, state):
        """Return how many nodes SLURM knows to be in a state."""
        ask = ["sinfo", "--noheader", f"--states={state}", "--format=%D"]
        counts = self.network.hosts[NAMES[0]].run(*ask, env=self.environment)
        return sum(map(int, counts.split()))

    def wait_for_hosts(self, names, submitted):
        """Wait until all these hosts measure; fail if the job ends before."""
        wait_for(
            lambda: {entry.host for entry in self.ledger} >= set(names) or has_ended(submitted),
            f"{', '.join(names)} measure",
            60 * JOB_MINUTES,
        )
        assert not has_ended(submitted), self.output

    def check_complete(self, n_interrupted=0):
        """Check that every planned row is there and was measured once, and nothing is left.

        Up to ``n_interrupted`` measurements were begun twice.
        """
        runs = read_runs(self.folder / "runs.parquet")
        work = set(zip(runs["problem.n"], runs["config.ms"], strict=True))
        assert len(runs) == len(work) == PROBLEMS * self.configs

        begun = [entry.work for entry in self.ledger]
        assert set(begun) == work
        assert len(begun) <= len(work) + n_interrupted

        wait_for(
            lambda: not job_processes(self.network),
            "the job's processes have ended",
            START_TIMEOUT_S,
        )


@pytest.fixture
def job(slurm, tmp_path, environment):
    job = Job(slurm, tmp_path, environment)
    wait_for(lambda: job.count_nodes("idle") == len(NAMES), "all nodes are idle", START_TIMEOUT_S)
    return job


def test_slurm_script_of_page_measures_on_all_nodes(job):
    submitted = job.submit()
    assert submitted.wait(60 * JOB_MINUTES) == 0, job.output

    job.check_complete()
    assert {entry.host for entry in job.ledger} == set(NAMES)


def test_slurm_script_of_page_outlives_lost_node(job):
    job = replace(job, configs=MANY_CONFIGS)
    submitted = job.submit()
    job.wait_for_hosts(NAMES, submitted)
    job.network.cut_power("gamma")
    wait_for(lambda: job.count_nodes("down") == 1, "SLURM gives up the node", START_TIMEOUT_S)
    given_up_s = time.time()
    assert submitted.wait(60 * JOB_MINUTES) == 0, job.output

    assert job.ledger[-1].time_s > given_up_s
    job.check_complete(n_interrupted=1)


def has_ended(process):
    return process.poll() is not None


def job_processes(network):
    """Return the command lines of processes of Ray, and of those that measure."""
    marks = (*WORKER_MARKS, "raylet", "gcs_server")
    lines = [
        command_line(process) for host in network.hosts.values() for process in host.processes()
    ]
    return [line for line in lines if any(mark in line for mark in marks)]
