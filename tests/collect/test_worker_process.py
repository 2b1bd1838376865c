"""RPC to a child process: its messages, its time limits, and how it ends."""

import ctypes
import math
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.collect.message_channel import _HEADER, Channel
from foretune.collect.worker_environment import WORKER_VARIABLE
from foretune.collect.worker_process import WorkerProcess
from foretune.errors import MeasurementError, UsageError

ADVICE = ("it", "send something else")


class Slow:
    """Takes a moment to unpickle, as an argument does whose module is large."""

    def __reduce__(self):
        return time.sleep, (1.5,)


class Loud:
    """Prints as it is unpickled, as an argument does whose module prints on import."""

    def __reduce__(self):
        return print, ("imported",)


def make_worker(factory):
    worker = WorkerProcess(factory, ADVICE)
    yield worker
    worker.close()


@pytest.fixture
def worker():
    class Served:  # local, so that it is sent along: the child cannot import tests
        def sleep(self, seconds):
            time.sleep(seconds or 0)
            return "awake"

        def pid(self):
            return os.getpid()

        def variable(self, name):
            return os.environ.get(name)

        def descriptors(self):
            return {os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")[:-1]}

        def die(self):
            os.abort()

        def die_of(self, number):
            os.kill(os.getpid(), number)

        def fail(self):
            raise UsageError("a usage error")

        def divide(self):
            return 1 / 0

    yield from make_worker(Served)


def test_starting_and_importing_do_not_count(worker):
    assert worker.call("sleep", Slow(), limit_s=1.0) == "awake"


def test_worker_hanging_call_times_out_and_next_gets_new_process(worker):
    first = worker.call("pid", limit_s=20)
    assert worker.call("pid", limit_s=20) == first
    assert worker.calls_made == 2
    with pytest.raises(TimeoutError):
        worker.call("sleep", 600, limit_s=0.2)
    assert not psutil.pid_exists(first)
    assert worker.calls_made == 0
    assert worker.call("pid", limit_s=20) != first


def test_death_says_how(worker):
    with pytest.raises(ChildProcessError, match=r"^the process died: SIGABRT$"):
        worker.call("die", limit_s=20)
    assert worker.call("sleep", 0, limit_s=20) == "awake"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has signals without a name")
def test_signals_without_a_name(worker):
    with pytest.raises(ChildProcessError, match=r"^the process died: exit code -40$"):
        worker.call("die_of", 40, limit_s=20)
    assert worker.call("sleep", 0, limit_s=20) == "awake"


def test_worker_call_without_limit(worker):
    assert worker.call("sleep", 0, limit_s=math.inf) == "awake"


def test_errors_of_the_method_are_raised(worker):
    pid = worker.call("pid", limit_s=20)
    with pytest.raises(UsageError, match=r"^a usage error$"):
        worker.call("fail", limit_s=20)
    with pytest.raises(MeasurementError, match=r"^ZeroDivisionError: division by zero$"):
        worker.call("divide", limit_s=20)
    assert worker.call("pid", limit_s=20) == pid


def test_errors_of_the_factory_are_raised_by_every_call():
    def refuse():
        raise UsageError("no such kernel")

    worker = WorkerProcess(refuse, ADVICE)
    for _ in range(2):
        with pytest.raises(UsageError, match="no such kernel"):
            worker.call("measure", limit_s=20)


def test_imports_print_nothing(worker, capfd):
    assert worker.call("sleep", Loud(), limit_s=20) == "awake"
    assert "imported" not in "".join(capfd.readouterr())


def test_worker_unpicklable_argument_is_error_with_advice(worker):
    with pytest.raises(
        MeasurementError, match=r"it cannot be sent to another process: .*; send something else"
    ):
        worker.call("sleep", threading.Lock(), limit_s=20)
    with pytest.raises(MeasurementError, match=r"pointers cannot be pickled; send something else"):
        worker.call("sleep", ctypes.c_void_p(1), limit_s=20)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc: run it on Linux")
def test_worker_gets_variables_but_no_descriptors(worker, tmp_path, monkeypatch):
    monkeypatch.setenv("FROM_THE_PARENT", "1")
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        assert file.name not in worker.call("descriptors", limit_s=20)
    assert worker.call("variable", "FROM_THE_PARENT", limit_s=20) == "1"
    assert worker.call("variable", WORKER_VARIABLE, limit_s=20) == "1"


def test_another_thread_can_end_a_call(worker):
    worker.call("pid", limit_s=20)
    causes = []

    def hang():
        try:
            worker.call("sleep", 600, limit_s=600)
        except ChildProcessError as e:
            causes.append(str(e))

    thread = threading.Thread(target=hang)
    thread.start()
    while thread.is_alive():
        worker.kill()
        thread.join(0.05)
    assert causes == ["the process died: SIGKILL"]


PARENT = """
import os, signal, time
from foretune.collect.worker_process import WorkerProcess

def make():
    class Served:
        def pid(self):
            return os.getpid()

        def hang(self):
            time.sleep(600)
    return Served()

worker = WorkerProcess(make, ("it", ""))
print(worker.call("pid", limit_s=60), flush=True)
worker.call("hang", limit_s=600)
"""


@pytest.mark.skipif(os.name != "posix", reason="sends SIGKILL: run it on Linux or macOS")
def test_worker_ends_with_parent_even_in_call():
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    with parent:
        child = psutil.Process(int(parent.stdout.readline()))
        parent.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs([child], timeout=30)
    assert not alive


CALLER = """
import sys
from foretune.collect.worker_process import WorkerProcess

def make():
    class Served:
        def print(self):
            print("loud", flush=True)
            return 5
    return Served()

worker = WorkerProcess(make, ("it", ""))
code = worker.call("print", limit_s=60)
worker.close()
sys.exit(code)
"""


@pytest.mark.skipif(os.name != "posix", reason="closes descriptors with sh: run it on Linux")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_worker_of_caller_with_closed_streams(closed):
    words = ["sh", "-c", f'exec "$0" -c "$1" {closed}', sys.executable, CALLER]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (5, ""), done.stderr


def test_worker_temporary_folder_with_long_path(worker, tmp_path, monkeypatch):
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    assert worker.call("sleep", 0, limit_s=20) == "awake"


MARK = b"a secret"


@pytest.fixture
def ends():
    one, other = socket.socketpair()
    with one, other:
        yield Channel(one, MARK), Channel(other, MARK), one


def test_messages_keep_numbers_and_contents(ends):
    here, there, _ = ends
    here.send(3, {"x": [1.5, "é"]})
    here.send(2**40, b"\0" * 200)
    assert there.receive(1) == (3, {"x": [1.5, "é"]})
    assert there.receive(1) == (2**40, b"\0" * 200)


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_bytes_outside_messages_are_skipped(before, content, after):
    one, other = socket.socketpair()
    with one, other:
        here = Channel(one, MARK)
        there = Channel(other, MARK)
        one.sendall(before)
        here.send(1, content)
        one.sendall(after)
        here.send(2, "next")
        assert there.receive(1) == (1, content)
        assert there.receive(1) == (2, "next")


def test_channel_skips_truncated_message(ends):
    here, there, sock = ends
    sock.sendall(MARK + _HEADER.pack(1, 500, 0) + b"a part of it")
    sock.sendall(MARK + _HEADER.pack(1, 2**63, 0))
    here.send(2, "whole")
    assert there.receive(1) == (2, "whole")


def test_channel_searches_large_message_once(ends):
    """Not again for each piece that arrives: outputs under judgment have hundreds of megabytes."""

    class Counting(bytearray):
        searched = 0

        def find(self, what, start=0):
            Counting.searched += len(self) - start if start else 0
            return super().find(what, start)

    here, there, _ = ends
    there._buffer = Counting()
    thread = threading.Thread(target=here.send, args=(1, bytes(1 << 22)))
    thread.start()
    assert len(there.receive(20)[1]) == 1 << 22
    thread.join()
    assert Counting.searched < 1 << 23


def test_waits_are_bounded(ends):
    here, there, sock = ends
    with pytest.raises(TimeoutError):
        there.receive(0.01)
    sock.sendall(MARK + struct.pack(">Q", 1))
    with pytest.raises(TimeoutError):
        there.receive(0.01)
    with pytest.raises(TimeoutError):
        here.send(1, b"\0" * 10_000_000, 0.05)  # the other end does not read


def test_channel_notices_closed_connection(ends):
    here, there, _ = ends
    here.close()
    with pytest.raises(EOFError):
        there.receive(1)


def test_channel_ignores_sender_without_mark(ends):
    _, there, sock = ends
    Channel(sock, b"another").send(1, "hello")
    with pytest.raises(TimeoutError):
        there.receive(0.05)
