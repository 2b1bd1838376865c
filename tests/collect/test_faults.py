"""What configurations do to the process that measures them costs their own row, and no other."""

import sys
import time

import psutil
import pytest
from faulty_kernel import DAEMON, Faulty
from toy_kernel import DEVICE, config

from foretune.collect import InProcessRunner, Timing
from foretune.measurement import Status

TIMING = Timing(max_seconds=0.02, warmup_s=0.002)
PROBLEM = Faulty().problem(n=100)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc: run it on Linux")


def rows(runner, *behaviours):
    """Measure configurations that differ, one per behaviour."""
    configs = [config(b, work=i + 1) for i, b in enumerate(behaviours)]
    measured = list(runner.run(Faulty(), PROBLEM, configs))
    assert [m.config for m in measured] == configs
    return measured


def test_runner_spoilt_input_is_no_wrong_result(isolated):
    measured = rows(isolated, "ok", "poison", "ok", "ok")
    assert [m.ok for m in measured] == [True, False, True, True]
    assert measured[1].status is Status.WRONG_RESULT  # it runs more than once itself


def test_runner_spoilt_input_costs_one_row():
    runner = InProcessRunner(DEVICE, TIMING)
    after = rows(runner, "ok", "poison", "ok", "ok", "ok")[2:]
    assert [m.status for m in after].count(Status.WRONG_RESULT) <= 1
    assert after[-1].ok


def test_runner_forked_child_does_not_answer(isolated):
    measured = rows(isolated, "ok", "fork", "ok", "ok")
    assert [m.ok for m in measured][2:] == [True, True]


def test_runner_left_processes_end_with_worker(isolated):
    rows(isolated, "leave a child")
    children = psutil.Process(isolated._worker._process.pid).children(recursive=True)
    assert children
    isolated.close()
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive


def daemons():
    lines = (" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"]))
    return sum(DAEMON in line for line in lines)


def test_runner_daemon_ends_with_worker(isolated):
    assert rows(isolated, "leave a daemon")[0].ok
    assert daemons() > 1
    isolated.close()
    assert daemons() == 0


def test_runner_daemon_ends_if_worker_kills_itself(isolated):
    died, after = rows(isolated, "leave a daemon and die", "ok")
    assert died.error == "the process died: SIGKILL"
    assert after.ok
    assert daemons() == 0


def test_stray_bytes_are_skipped(isolated):
    assert all(m.ok for m in rows(isolated, "ok", "write anywhere", "ok"))


def test_texts_that_no_file_could_hold(isolated):
    odd, after = rows(isolated, "odd text", "ok")
    assert odd.status is Status.RUNTIME_ERROR
    assert odd.error == r"ValueError: a name that is no text: \udcff"
    odd.error.encode()
    assert after.ok


def test_runner_does_not_wait_for_endless_process(isolated):
    assert rows(isolated, "ok")[0].ok
    start = time.monotonic()
    stays, after = rows(isolated, "close and stay", "ok")
    assert stays.status is Status.RUNTIME_ERROR
    assert after.ok
    assert time.monotonic() - start < 20  # its limit, and what another process takes
