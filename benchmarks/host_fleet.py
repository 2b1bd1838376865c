"""A Ray cluster and a PostgreSQL on hosts of their own, and a command that measures on them.

The hosts are namespaces of this machine (`hosts.py`), so there is no other machine and no GPU: the
figures say what a fault costs in rows and in seconds, not how fast a network is.
"""

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import hosts
import psutil
from hosts import SUBNET, Host, Network, wait_for
from ledger_kernel import LEDGER_VARIABLE, Entry, read_ledger

from foretune.collect.devices import cache_directory

HEAD = "alpha"
DATABASE = "delta"
NAMES = (HEAD, "beta", "gamma", DATABASE)
PRIVATE = "/dev/shm"
"""Every host has a file system of its own there, which ends with the host."""
PORT = 6379
PROBLEMS = 4
CONFIGS = 30
PLANNED = PROBLEMS * CONFIGS
DATA = f"--pgdata={PRIVATE}/data"
CONNECT = (f"--host={PRIVATE}", "--username=foretune")
"""How PostgreSQL's programs reach the database on its own host."""
MEASURE_S = 1.0
"""Maximum seconds of timing per configuration: faults must find measurements that are under way."""
KERNEL = f"{Path(__file__).with_name('ledger_kernel.py')}:LedgerKernel"
WORKER_MARKS = ("ray::RayActor", "foretune.collect.worker_process")
"""Parts of the command lines of processes that measure."""
COMMAND_TIMEOUT_S = 240.0
QUICK_HEALTH = {
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "4",
}
"""Lets Ray give up a silent host after 6 s; by default that takes 65 s."""


def postgres_programs() -> Path | None:
    """Return the folder with the programs of the newest PostgreSQL; None without one."""
    folders = Path("/usr/lib/postgresql").glob("*/bin")
    return max(folders, key=lambda folder: int(folder.parent.name), default=None)


def missing() -> str | None:
    """Return why there can be no such fleet here; None if there can."""
    if reason := hosts.missing():
        return reason
    if postgres_programs() is None:
        return "needs PostgreSQL: apt-get install postgresql"
    absent = [name for name in ("ray", "psycopg") if find_spec(name) is None]
    return f"needs {', '.join(absent)}: pip install '.[ray,postgres]'" if absent else None


class Fleet:
    """Hosts that make one Ray cluster with a token, and one with the shared store.

    ``health`` are environment variables of Ray's head that set when a silent host counts as lost.
    """

    def __init__(self, network: Network, folder: Path, health: Mapping[str, str] = {}) -> None:
        self.network = network
        self.folder = folder
        self.ledger = folder / "ledger"
        self.ledger.touch()
        self._password = secrets.token_hex(16)
        self.environment = {
            **health,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "HOME": str(folder),
            "TMPDIR": PRIVATE,
            "RAY_TMPDIR": PRIVATE,
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "FORETUNE_CACHE": str(cache_directory()),
            LEDGER_VARIABLE: str(self.ledger),
            "OMP_NUM_THREADS": "1",
        }

    def host(self, name: str) -> Host:
        """Return a host that is on."""
        return self.network.hosts[name]

    def start_database(self) -> None:
        """Start PostgreSQL on its host; others need the password."""
        host = self.network.start(DATABASE)
        password_file = self.folder / "password"
        password_file.write_text(self._password)
        owned = f"{PRIVATE}/password"
        host.run("install", "--owner=postgres", "--mode=600", password_file, owned)
        access = ["--auth-local=trust", "--auth-host=scram-sha-256", f"--pwfile={owned}"]
        self._postgres("initdb", DATA, "--username=foretune", *access)
        rule = f"host all all {SUBNET}.0/24 scram-sha-256"
        host.run("bash", "-c", f"echo '{rule}' >> {PRIVATE}/data/pg_hba.conf")
        self.resume_database()

    def create_store(self, name: str) -> str:
        """Create an empty database and return its URL."""
        self._postgres("createdb", *CONNECT, name)
        return f"postgresql+psycopg://foretune:{self._password}@{DATABASE}/{name}"

    def stored_rows(self, name: str) -> int:
        """Return the number of measurements in a store."""
        count = "select count(*) from foretune_measurements"
        return int(self._postgres("psql", *CONNECT, "--tuples-only", "--command", count, name))

    def resume_database(self) -> None:
        """Start PostgreSQL with the data that it has."""
        options = f"-k {PRIVATE} -c listen_addresses={DATABASE} -c shared_buffers=16MB"
        self._postgres("pg_ctl", DATA, "--wait", f"--log={PRIVATE}/log", f"-o {options}", "start")

    def crash_database(self) -> None:
        """Stop PostgreSQL in the midst of what it does."""
        self._postgres("pg_ctl", DATA, "--mode=immediate", "stop")

    def join(self, name: str) -> None:
        """Switch a host on and make it a part of the cluster, the head as the first one."""
        host = self.network.start(name)
        resources = host.run("foretune", "doctor", "--ray", env=self.environment).strip()
        place = [f"--address={HEAD}:{PORT}"]
        if name == HEAD:
            place = ["--head", f"--port={PORT}", "--include-dashboard=false"]
        bounds = ["--num-cpus=1", "--memory=500000000", "--object-store-memory=80000000"]
        host.run("ray", "start", *place, *bounds, f"--resources={resources}", env=self.environment)

    def is_member(self, name: str) -> bool:
        """Return whether Ray runs on a host."""
        return any("raylet" in process.name() for process in self.host(name).processes())

    def restart(self, *names: str) -> None:
        """Switch hosts off, if they are on, and on again; they join the cluster."""
        for name in names:
            if name in self.network.hosts:
                self.network.cut_power(name)
        for name in names:
            self.join(name)

    def workers(self) -> list[psutil.Process]:
        """Return the processes that measure, on all hosts."""
        return [
            process
            for host in self.network.hosts.values()
            for process in host.processes()
            if any(mark in command_line(process) for mark in WORKER_MARKS)
        ]

    def _postgres(self, program: str, *arguments: str) -> str:
        """Run a program of PostgreSQL, as the user that it asks for, and return its output."""
        folder = postgres_programs()
        assert folder is not None
        as_user = ["runuser", "-u", "postgres", "--"]
        return self.host(DATABASE).run(*as_user, folder / program, *arguments)


class Collection:
    """A ``foretune collect`` on a fleet, started on a host; ``name`` is that of its files."""

    def __init__(self, fleet: Fleet, name: str, host: str = HEAD) -> None:
        self.name = name
        self.table = fleet.folder / f"{name}.parquet"
        self._fleet = fleet
        self._store = fleet.create_store(name)
        self._n_earlier_entries = len(read_ledger(fleet.ledger))
        self._output = fleet.folder / f"{name}.log"
        self.start(host)

    def start(self, host: str = HEAD, runner: str = "ray") -> None:
        """Start the command, or the same command again, also with another runner."""
        of_runner = ["--ray-address", f"{HEAD}:{PORT}"] if runner == "ray" else []
        with self._output.open("a") as output:
            self._process = self._fleet.host(host).start(
                *("foretune", "collect", KERNEL, "--device", "cpu", "--out", self.table),
                *("--problems", f"{PROBLEMS}", "--configs", f"{CONFIGS}"),
                *("--max-seconds", f"{MEASURE_S}"),
                *("--runner", runner, *of_runner),
                env={**self._fleet.environment, "FORETUNE_STORE": self._store},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """Kill the command (SIGKILL)."""
        # The command is the child of the process that entered the host.
        for process in psutil.Process(self._process.pid).children():
            process.send_signal(signal.SIGKILL)
        self._process.wait()

    def wait(self) -> int:
        """Return the command's exit code."""
        return self._process.wait(COMMAND_TIMEOUT_S)

    def output(self) -> str:
        """Return what the command printed."""
        return self._output.read_text()

    def ledger(self) -> list[Entry]:
        """Return the measurements that began, the oldest first."""
        return read_ledger(self._fleet.ledger)[self._n_earlier_entries :]

    def wait_until(self, condition: Callable[[list[Entry]], bool], what: str) -> None:
        """Wait until the ledger fulfils a condition, which ``what`` says in words."""
        try:
            wait_for(lambda: condition(self.ledger()), what, COMMAND_TIMEOUT_S)
        except TimeoutError as e:
            raise TimeoutError(f"{e}; the command says:\n{self.output()}") from e


@contextmanager
def running_fleet(folder: Path, health: Mapping[str, str] = {}) -> Iterator[Fleet]:
    """Give a fleet whose database and cluster are ready; afterwards, nothing is left of it."""
    with Network(folder, NAMES) as network:
        fleet = Fleet(network, folder, health)
        fleet.start_database()
        for name in (HEAD, "beta"):
            fleet.join(name)
        yield fleet


def command_line(process: psutil.Process) -> str:
    """Return a process's command line; nothing if it has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""
