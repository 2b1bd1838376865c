"""Measuring on three hosts with addresses of their own, while faults hit them.

The hosts, their faults and what is counted are those of `benchmarks/fleet_faults.py`.
"""

import math
import re
import subprocess
import sys

import host_fleet
import hosts
import psutil
import pytest
from fleet_faults import FAULTS, killed_command, lost_head, nothing, outcome, prepare
from host_fleet import DATABASE, HEAD, PLANNED, QUICK_HEALTH, Collection, running_fleet
from hosts import Network, wait_for

END_TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    """A cluster of two hosts, a third one that may join, and one with the shared store."""
    if reason := host_fleet.missing():
        pytest.skip(reason)
    with running_fleet(tmp_path_factory.mktemp("fleet"), QUICK_HEALTH) as fleet:
        yield fleet


@pytest.mark.ray
@pytest.mark.extended
@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", FAULTS)
def test_fleet_fault_costs_no_row_and_no_repetition(fleet, fault):
    result = outcome(fleet, FAULTS[fault])

    assert result.rows == PLANNED
    assert (result.lost, result.twice, result.left) == (0, 0, 0)
    assert math.isfinite(result.seconds)
    if FAULTS[fault] is nothing:
        assert result.begun_again == 0

    # A command that dies between its two writes has a row in the table only.
    command_dies = FAULTS[fault] in (killed_command, lost_head)
    assert result.not_stored <= command_dies


@pytest.mark.ray
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_fleet_store_spares_another_command_all_measurements(fleet):
    prepare(fleet)
    collection = Collection(fleet, "first")
    assert collection.wait() == 0, collection.output()
    n_begun = len(collection.ledger())

    collection.table = fleet.folder / "second.parquet"
    collection.start("beta", runner="local")
    assert collection.wait() == 0, collection.output()

    assert re.search(rf"0 new rows .* {PLANNED} reused", collection.output())
    assert len(collection.ledger()) == n_begun == PLANNED


SILENT_DATABASE = """
import sys
from foretune.errors import StoreError
from foretune.tune.store import Store

store = Store(sys.argv[1], patience_s=2)
try:
    with store._database.transaction(write=True) as table:
        print("begun", flush=True)
        sys.stdin.readline()
        table.version()
except StoreError as error:
    print(error)
"""


@pytest.mark.ray
@pytest.mark.extended
def test_store_database_lost_in_transaction_is_given_up(fleet):
    """Without limits, TCP repeats what was sent for a quarter of an hour."""
    url = fleet.create_store("silent")
    client = fleet.host(HEAD).start(
        *(sys.executable, "-c", SILENT_DATABASE, url),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=fleet.environment,
    )
    with client:
        assert client.stdout.readline() == "begun\n"
        fleet.network.unplug(DATABASE)
        try:
            said, _ = client.communicate("go on\n", timeout=60)
        finally:
            client.kill()
            fleet.network.plug(DATABASE)

    assert "cannot be used" in said
    assert "see whether it runs and accepts connections" in said


@pytest.fixture
def possible_hosts():
    """Skips a test where there can be no hosts."""
    if reason := hosts.missing():
        pytest.skip(reason)


def test_hosts_reach_each_other_and_nothing_else(possible_hosts, tmp_path):
    with Network(tmp_path, ("alpha", "beta")) as network:
        alpha = network.start("alpha")
        beta = network.start("beta")
        connect = "exec 3<>/dev/tcp/"
        listener = beta.start(sys.executable, "-c", LISTENER, stdout=subprocess.PIPE)
        listener.stdout.readline()

        alpha.run("bash", "-c", f"{connect}beta/5000")
        with pytest.raises(RuntimeError, match="Network is unreachable"):
            alpha.run("bash", "-c", f"{connect}192.0.2.1/5000")
        assert "default" not in alpha.run("ip", "route")
    listener.stdout.close()
    listener.wait()


LISTENER = """
import socket, time
listener = socket.create_server(("beta", 5000))
print("ready", flush=True)
time.sleep(60)
"""


def test_hosts_end_with_killed_process(possible_hosts, tmp_path):
    """Not even `__exit__` runs; the kernel ends the hosts."""
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(host_fleet.__file__).rpartition("/")[0], "PATH": "/usr/bin:/sbin"},
    )
    with owner:
        pids = [int(pid) for pid in owner.stdout.readline().split()]
        assert len(pids) == 3
        assert all(psutil.pid_exists(pid) for pid in pids)
        owner.kill()

    wait_for(
        lambda: not any(psutil.pid_exists(pid) for pid in pids), "the hosts end", END_TIMEOUT_S
    )


OWNER = """
import sys, time
from pathlib import Path
from hosts import Network
with Network(Path(sys.argv[1]), ("alpha",)) as network:
    alpha = network.start("alpha")
    sleeping = alpha.start("sleep", "60")
    while not alpha.processes():
        time.sleep(0.01)
    first = [alpha.first_process, network._switch.first_process]
    print(*first, alpha.processes()[0].pid, flush=True)
    time.sleep(60)
"""
