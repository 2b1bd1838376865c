"""The keeper of a worker process: the worker's end is its end, and that of all its descendants."""

import os
import subprocess
import sys

import pytest

from foretune.collect import worker_process as keeper
from foretune.collect.worker_process import WorkerProcess

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a keeper exists on Linux only")

START = """
import os, signal, sys, time
from foretune.collect import worker_process as keeper
keeper._POLL_S, keeper.MAX_PROCESSES = 0.05, 5
keeper.fork_worker(os.getppid())
"""


def end(code):
    """Run a worker, and return the exit code of its keeper."""
    return subprocess.run([sys.executable, "-c", START + code], timeout=60, check=False).returncode


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os._exit(0)", 0),
        ("sys.exit(7)", 7),
        ("os.abort()", -6),
        ("os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("os.killpg(0, signal.SIGKILL)", -9),
        ("os.kill(os.getppid(), signal.SIGTERM); time.sleep(60)", -9),
        ("[os.fork() or time.sleep(60) for _ in range(30)]; time.sleep(60)", -9),
    ],
)
def test_keeper_ends_like_its_worker(code, expected):
    assert end(code) == expected


def test_descendants_end_before_it(tmp_path):
    lock = tmp_path / "lock"
    code = f"""
for _ in range(2):
    if os.fork() == 0:
        os.setsid()
        os.fork()
        file = open({str(lock)!r}, "a")
        time.sleep(60)
time.sleep(0.3)
"""
    assert end(code) == 0
    open_files = subprocess.run(["sh", "-c", "ls -l /proc/*/fd 2>/dev/null"], capture_output=True)
    assert str(lock).encode() not in open_files.stdout


def test_keeper_limits_worker():
    class Served:
        def limits(self):
            import resource

            kinds = resource.RLIMIT_DATA, resource.RLIMIT_NPROC
            return [resource.getrlimit(kind)[0] for kind in kinds]

    worker = WorkerProcess(Served, ("it", ""))
    memory, threads = worker.call("limits", limit_s=60)
    worker.close()
    if not any(map(os.path.exists, keeper._GPU_DRIVERS)):
        assert memory == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert threads > keeper.MAX_PROCESSES
