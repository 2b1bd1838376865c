"""What faults cost a fleet: rows lost, rows measured twice, workers left, seconds to recover.

python benchmarks/fleet_faults.py [--only 'a host'] [--quick-health]

Three hosts make one Ray cluster with a token, a fourth has a PostgreSQL as the shared store; all
are namespaces of this machine with addresses of their own (`hosts.py`; needs root, the Debian
package postgresql, and `pip install '.[ray,postgres]'`). `foretune collect --runner ray` measures
a kernel that only sleeps, and writes down on which host each measurement begins. A fault hits it.

"Lost" counts planned rows that the run table lacks in the end, "not stored" rows of the table that
the store lacks: it gets a row after the table, and a command that dies in between leaves one.
"Begun again" counts measurements that the fault ended in their midst. "Twice" counts all other
repetitions, and doubled rows. "Left" counts processes that measure after the command has ended. The
seconds are from the fault until the first interrupted measurement begins again; for a host that
joins, from the end of its `ray start`, or if it was lost from that moment, to its first
measurement; for the database, the longest pause between beginnings.
"""

import argparse
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from host_fleet import (
    DATABASE,
    HEAD,
    PLANNED,
    QUICK_HEALTH,
    Collection,
    Fleet,
    missing,
    running_fleet,
)
from hosts import wait_for
from ledger_kernel import Entry
from machine import heading, markdown

from foretune.collect.devices import local_device
from foretune.datasets import read_runs

COLUMNS = ("fault", "rows", "lost", "not stored", "twice", "begun again", "left", "seconds")
LONG_MS = 40
"""Sleeps of a measurement that is surely under way shortly after it begins."""
AWAY_S = 15.0
"""Seconds without a database."""
END_TIMEOUT_S = 30.0
"""Seconds in which workers must end after the command."""


@dataclass(frozen=True)
class Fault:
    """When a fault hit, in seconds since the epoch; whose measurements it ended, and who joined."""

    time_s: float
    interrupted_hosts: tuple[str, ...] = ()
    newcomer: str = ""

    def interrupted(self, ledger: Sequence[Entry]) -> set[tuple[int, int]]:
        """Return the work that the fault may have ended: the last one of each host."""
        before = [entry for entry in ledger if entry.time_s <= self.time_s]
        last_of_host = {entry.host: entry.work for entry in before}
        return {last_of_host[host] for host in self.interrupted_hosts if host in last_of_host}

    def recovery_s(self, ledger: Sequence[Entry]) -> float:
        """Return the seconds that the module's description defines; NaN if nothing recovered."""
        after = [entry for entry in ledger if entry.time_s > self.time_s]
        if self.newcomer:
            resumed = [entry for entry in after if entry.host == self.newcomer]
        elif self.interrupted_hosts:
            resumed = [entry for entry in after if entry.work in self.interrupted(ledger)]
        else:
            times = [self.time_s, *(entry.time_s for entry in after)]
            return max((later - time_s for time_s, later in pairwise(times)), default=math.nan)
        return resumed[0].time_s - self.time_s if resumed else math.nan


@dataclass(frozen=True)
class Outcome:
    """What became of the planned rows."""

    rows: int
    lost: int
    not_stored: int
    twice: int
    begun_again: int
    left: int
    seconds: float

    def cells(self) -> list[str]:
        """Return the cells of the table."""
        counts = (
            self.rows,
            self.lost,
            self.not_stored,
            self.twice,
            self.begun_again,
            self.left,
        )
        return [*map(str, counts), f"{self.seconds:.1f}"]

    @property
    def is_complete(self) -> bool:
        """Whether every planned row is there, was measured once, and nothing is left."""
        return not (self.lost or self.twice or self.left)


# Each fault hits a collection that has begun, and repairs the fleet as its owner would.


def nothing(fleet: Fleet, collection: Collection) -> Fault:
    """No fault."""
    wait_for_long_measurement(collection, "beta")
    return Fault(time.time())


def killed_worker(fleet: Fleet, collection: Collection) -> Fault:
    """The process that measures on a host is killed."""
    wait_for_long_measurement(collection, "beta")
    on_beta = fleet.host("beta").processes()
    for process in fleet.workers():
        if process in on_beta:
            process.kill()
    return Fault(time.time(), interrupted_hosts=("beta",))


def power_cut(fleet: Fleet, collection: Collection) -> Fault:
    """A host is silent from one moment to the next."""
    wait_for_long_measurement(collection, "beta")
    fleet.network.cut_power("beta")
    return Fault(time.time(), interrupted_hosts=("beta",))


def power_cut_and_newcomer(fleet: Fleet, collection: Collection) -> Fault:
    """A host is silent from one moment to the next, and another one joins late."""
    wait_for_long_measurement(collection, "beta")
    fleet.network.cut_power("beta")
    cut_s = time.time()
    fleet.join("gamma")
    return Fault(cut_s, interrupted_hosts=("beta",))


def reboot(fleet: Fleet, collection: Collection) -> Fault:
    """A host is silent from one moment to the next, and starts at once."""
    wait_for_long_measurement(collection, "beta")
    fleet.network.cut_power("beta")
    cut_s = time.time()
    fleet.join("beta")
    return Fault(cut_s, interrupted_hosts=("beta",), newcomer="beta")


def newcomer(fleet: Fleet, collection: Collection) -> Fault:
    """A host joins while others measure."""
    wait_for_long_measurement(collection, "beta")
    fleet.join("gamma")
    return Fault(time.time(), newcomer="gamma")


def unplugged_host(fleet: Fleet, collection: Collection) -> Fault:
    """A host works on but nothing of it arrives, until it is given up; then it is back."""
    wait_for_long_measurement(collection, "beta")
    fleet.network.unplug("beta")
    fault = Fault(time.time(), interrupted_hosts=("beta",))
    collection.wait_until(
        lambda ledger: fault.recovery_s(ledger) > 0, "the host's work is begun again"
    )
    fleet.network.plug("beta")
    return fault


def crashed_database(fleet: Fleet, collection: Collection) -> Fault:
    """The shared store refuses connections for a while."""
    wait_for_long_measurement(collection, "beta")
    fleet.crash_database()
    crash_s = time.time()
    time.sleep(AWAY_S)
    fleet.resume_database()
    return Fault(crash_s)


def unplugged_database(fleet: Fleet, collection: Collection) -> Fault:
    """The shared store does not answer for a while."""
    wait_for_long_measurement(collection, "beta")
    fleet.network.unplug(DATABASE)
    unplugged_s = time.time()
    time.sleep(AWAY_S)
    fleet.network.plug(DATABASE)
    return Fault(unplugged_s)


def killed_command(fleet: Fleet, collection: Collection) -> Fault:
    """The command is killed, and started again."""
    wait_for_long_measurement(collection, "beta")
    collection.kill()
    killed_s = time.time()
    collection.start()
    return Fault(killed_s, interrupted_hosts=(HEAD, "beta"))


def lost_head(fleet: Fleet, collection: Collection) -> Fault:
    """The head, with the command, loses power; all hosts are started again."""
    wait_for_long_measurement(collection, "beta")
    fleet.network.cut_power(HEAD)
    cut_s = time.time()
    collection.wait()  # it has ended with its host
    fleet.restart(HEAD, "beta")
    collection.start()
    return Fault(cut_s, interrupted_hosts=(HEAD, "beta"))


FAULTS: dict[str, Callable[[Fleet, Collection], Fault]] = {
    "none": nothing,
    "a worker is killed": killed_worker,
    "a host loses power": power_cut,
    "a host loses power, another joins late": power_cut_and_newcomer,
    "a host loses power, and is back": reboot,
    "a host joins late": newcomer,
    "a host is unplugged, given up, and back": unplugged_host,
    "the database crashes, for 15 s": crashed_database,
    "the database is unplugged, for 15 s": unplugged_database,
    "the command is killed, and started again": killed_command,
    "the head loses power, all is started again": lost_head,
}


def wait_for_long_measurement(collection: Collection, host: str) -> None:
    """Wait until a host measures for the third time, and something that takes a while."""

    def is_under_way(ledger: list[Entry]) -> bool:
        of_host = [entry for entry in ledger if entry.host == host]
        return len(of_host) >= 3 and of_host[-1].work[1] >= LONG_MS

    collection.wait_until(is_under_way, f"{host} measures for the third time")


def outcome(fleet: Fleet, inject: Callable[[Fleet, Collection], Fault]) -> Outcome:
    """Return what a fault does to a collection on the head and one host more."""
    prepare(fleet)
    collection = Collection(fleet, inject.__name__)
    fault = inject(fleet, collection)
    exit_code = collection.wait()
    if exit_code:
        raise RuntimeError(f"the command ended with {exit_code}:\n{collection.output()}")
    left = workers_left(fleet)

    runs = read_runs(collection.table)
    measured = runs[["problem.n", "config.ms"]].drop_duplicates()

    # What began more than once, though no fault ended it.
    ledger = collection.ledger()
    begun = Counter(entry.work for entry in ledger)
    interrupted = fault.interrupted(ledger)
    begun_again = sum(begun[work] > 1 for work in interrupted)
    n_repeated = len(ledger) - len(begun) - begun_again
    return Outcome(
        rows=len(runs),
        lost=PLANNED - len(measured),
        not_stored=len(measured) - fleet.stored_rows(collection.name),
        twice=n_repeated + len(runs) - len(measured),
        begun_again=begun_again,
        left=left,
        seconds=fault.recovery_s(ledger),
    )


def prepare(fleet: Fleet) -> None:
    """Make the cluster one of the head and one host more, however the last fault left it."""
    if "gamma" in fleet.network.hosts:
        fleet.network.cut_power("gamma")
    # A host that was given up has ended its part of Ray.
    if "beta" not in fleet.network.hosts or not fleet.is_member("beta"):
        fleet.restart("beta")


def workers_left(fleet: Fleet) -> int:
    """Return how many processes still measure; Ray ends them soon after the command."""
    try:
        wait_for(lambda: not fleet.workers(), "all workers have ended", END_TIMEOUT_S)
    except TimeoutError:
        return len(fleet.workers())
    return 0


def main(arguments: Iterable[str] | None = None) -> None:
    """Inject the faults and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="faults with this text in their names")
    parser.add_argument(
        "--quick-health", action="store_true", help="Ray gives up a silent host after 6 s, not 65"
    )
    given = parser.parse_args(None if arguments is None else list(arguments))
    if reason := missing():
        parser.error(reason)

    chosen = {words: inject for words, inject in FAULTS.items() if given.only in words}
    rows = []
    all_complete = True
    health = QUICK_HEALTH if given.quick_health else {}
    with tempfile.TemporaryDirectory() as folder, running_fleet(Path(folder), health) as fleet:
        for words, inject in chosen.items():
            result = outcome(fleet, inject)
            all_complete = all_complete and result.is_complete
            rows.append([words, *result.cells()])
            print(" | ".join(rows[-1]), file=sys.stderr)
    print(heading("Faults of a fleet", local_device("cpu")))
    print(markdown(COLUMNS, rows))
    sys.exit(not all_complete)


if __name__ == "__main__":
    main()
