"""RPC to an object in a child process that may hang or die.

The child inherits no descriptors. It connects to its parent and exchanges numbered messages over
the connection. A kernel may fork or write to any descriptor, so each message carries a secret mark,
its length and its checksum, and the receiver skips all other bytes. Requests are pickled. Answers
are data: the parent never unpickles what a process sends that runs a user's code.

On Linux, the parent of the child is a keeper, which ends with everything the child started. A
kernel may start processes that leave their session and whose parents end at once. The keeper adopts
them, because it is a "child subreaper". So it finds them even after the worker died.
"""

import contextlib
import ctypes
import os
import pickle
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import cloudpickle

from foretune.collect import answers
from foretune.collect.message_channel import Channel
from foretune.collect.printed_output import PrintedOutput
from foretune.collect.worker_environment import WORKER_VARIABLE, is_worker, keep_freed_memory
from foretune.errors import ForetuneError, MeasurementError, describe_error

START_TIMEOUT_S = 120.0  # of a process and of its imports: importing torch takes several seconds
HELLO_TIMEOUT_S = 5.0
EXIT_TIMEOUT_S = 2.0  # time limit for the exit of a process that closed its connection
KILL_TIMEOUT_S = 10.0  # of a killed process, which may be in an uninterruptible system call
MAX_PATH = 100  # bytes of a Unix socket's path that every system takes
MAX_PROCESSES = 512  # a worker that starts more processes is killed with them
END_TIMEOUT_S = 5.0  # time limit for the end of killed descendants
_POLL_S = 0.5
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SIGNALS = (signal.SIGCHLD, signal.SIGTERM) if sys.platform == "linux" else ()
_GPU_DRIVERS = ("/dev/nvidiactl", "/dev/kfd")


class WorkerProcess:
    """Calls methods of an object that lives in a child process.

    The first call starts the process. A call after `close`, or after an error that ended the
    process, starts a new one. Make one call at a time; only `kill` is safe during a call.

    ``factory`` makes the object in the child; a function of the running script is pickled by value.
    ``pickling_advice`` is (subject, advice) of the error for arguments that cannot be pickled.
    ``variables`` are added to the child's environment.
    ``calls_made`` counts the calls to the present process.
    """

    def __init__(
        self,
        factory: Callable[[], Any],
        pickling_advice: tuple[str, str],
        variables: Mapping[str, str] = {},
    ) -> None:
        self._factory = factory
        self._variables = dict(variables)
        self._stopped: list[int] = []
        self._pickling_advice = pickling_advice
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._printed = PrintedOutput()
        self._last_number = 0
        self.calls_made = 0

    def call(self, method: str, *arguments: Any, limit_s: float) -> Any:
        """Return the result of one method call on the object.

        The time limit starts when the child has imported the modules of factory and arguments.
        Raises TimeoutError if it is exceeded, and the process was killed; ChildProcessError if the
        process died, or its answer cannot be read; ForetuneError if the method or the factory
        raised an error, the process did not start, or an argument cannot be pickled.
        """
        request = self._pickle((method, arguments))
        channel = self._channel or self._start()
        self._last_number += 1
        self.calls_made += 1
        try:
            self._send_and_import(channel, request)
            answer, usable = self._receive(channel, limit_s)
        except (TimeoutError, MeasurementError):
            self.close()
            raise
        except (EOFError, OSError):
            assert self._process is not None
            cause = exit_cause(self._process)
            self.close()
            raise ChildProcessError(f"the process died: {cause}") from None
        except Exception as e:
            self.close()
            raise ChildProcessError(f"its answer cannot be read: {describe_error(e)}") from e
        except BaseException:  # after Ctrl-C the child is still busy with the call
            self.close()
            raise
        if not usable:
            self.close()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def kill(self) -> None:
        """Kill the process and its children; a call in another thread raises ChildProcessError."""
        if (process := self._process) is not None:
            kill_session(process)

    def pause(self) -> None:
        """Stop the process and all that it started, until `resume`."""
        if self._process is not None and sys.platform == "linux":
            self._stopped = _descendants(self._process.pid)
            _signal_all(self._stopped, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        if self._stopped:
            _signal_all(self._stopped, signal.SIGCONT)
        self._stopped = []

    def close(self) -> None:
        """Close the connection, and kill the process and its children."""
        if self._channel is not None:
            self._channel.close()
        self.kill()
        self._channel = self._process = None
        self.calls_made = 0

    def _send_and_import(self, channel: "Channel", request: bytes) -> None:
        try:
            channel.send(self._last_number, request, START_TIMEOUT_S)
            self._receive(channel, START_TIMEOUT_S)
        except TimeoutError as e:
            raise MeasurementError(
                f"a worker process was not ready after {START_TIMEOUT_S:g} s: "
                "check that its imports finish"
            ) from e

    def _receive(self, channel: "Channel", limit_s: float) -> Any:
        """Return the next answer to the last request; drop answers to earlier ones."""
        deadline = time.monotonic() + limit_s
        while True:
            number, answer = channel.receive(max(0.0, deadline - time.monotonic()))
            if number == self._last_number:
                return answer

    def _pickle(self, content: Any) -> bytes:
        try:
            return cloudpickle.dumps(content)
        except Exception as e:  # a user's object may raise anything
            subject, advice = self._pickling_advice
            raise MeasurementError(
                f"{subject} cannot be sent to another process: {e}; {advice}"
            ) from e

    def _start(self) -> "Channel":
        if is_worker():
            raise MeasurementError(
                "a measuring process imports this module, which measures: put the measuring code "
                "under if __name__ == '__main__'"
            )
        factory = self._pickle(self._factory)
        key = secrets.token_bytes(16)
        command = [sys.executable, "-P", "-m", "foretune.collect.worker_process"]
        # Only on stderr: stdout may carry JSON.
        printed = self._printed.file() if sys.__stderr__ else subprocess.DEVNULL
        try:
            with _open_listener() as (listener, address):
                self._process = subprocess.Popen(
                    [*command, address, str(os.getpid())],
                    start_new_session=True,
                    stdin=subprocess.PIPE,
                    stdout=printed,
                    stderr=printed,
                    env={**os.environ, **self._variables},
                )
                assert self._process.stdin is not None
                # A process that exited already is reported by `_accept`.
                with contextlib.suppress(BrokenPipeError), self._process.stdin as pipe:
                    pipe.write(key)
                self._channel = self._accept(self._process, listener, key)
            self._channel.send(0, (sys.path, factory), START_TIMEOUT_S)
        except OSError as e:
            self.close()
            raise MeasurementError(f"a worker process cannot be started: {e}") from e
        except BaseException:
            self.close()
            raise
        return self._channel

    def _accept(
        self, process: "subprocess.Popen[bytes]", listener: socket.socket, key: bytes
    ) -> "Channel":
        listener.settimeout(0.5)
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline and process.poll() is None:
            try:
                channel = Channel(listener.accept()[0], key, loads=answers.decode)
                channel.receive(HELLO_TIMEOUT_S)
            except (TimeoutError, EOFError):  # no connection yet, or not from our child
                continue
            return channel
        code = process.poll()
        reason = "does not connect" if code is None else f"ended with exit code {code}"
        raise MeasurementError(f"a worker process {reason}: see its message above")


@contextmanager
def _open_listener() -> Iterator[tuple[socket.socket, str]]:
    """Listen on a Unix socket in a private folder; where that is not possible, on a local port."""
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        address = str(Path(folder, "socket"))
        if os.name == "posix" and len(os.fsencode(address)) <= MAX_PATH:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
        else:
            listener = socket.create_server(("127.0.0.1", 0))
            address = str(listener.getsockname()[1])
        with listener:
            listener.listen()
            yield listener, address


def become_worker(parent: int) -> None:
    """Make this process a worker of ``parent``: it ignores Ctrl-C, and exits with its parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ[WORKER_VARIABLE] = "1"
    keep_freed_memory()
    threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    if os.name == "posix" and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # includes the children of this process
    os._exit(1)


def exit_cause(process: "subprocess.Popen[bytes]") -> str:
    """Return the signal or exit code of a process that is exiting; do not wait for a live one."""
    try:
        code = process.wait(EXIT_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return "it closed its connection and went on"
    return {-n: n.name for n in signal.Signals}.get(code, f"exit code {code}")


def kill_session(process: "subprocess.Popen[bytes]") -> None:
    """Kill a worker and what it started: on Linux through its keeper, elsewhere its session."""
    if sys.platform == "linux":
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(KILL_TIMEOUT_S)
            return
    if os.name == "posix":
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_S)


def serve(address: str, key: bytes, parent: int) -> None:
    """Answer requests until the connection closes.

    Each request gets two answers with its number: None when its imports are done, then the result
    or error together with whether this process remains usable.
    """
    become_worker(fork_worker(parent))
    with _connect(address) as sock, contextlib.suppress(EOFError, OSError):
        channel = Channel(sock, key, dumps=answers.encode)
        if hasattr(os, "register_at_fork"):  # processes that a kernel forks must not answer
            os.register_at_fork(after_in_child=sock.close)
        channel.send(0, None)
        path, factory = channel.receive()[1]
        sys.path += [p for p in path if p not in sys.path]  # the kernel's module may be anywhere
        served: Any = None
        silence = open(os.devnull, "w")  # noqa: SIM115 - what is imported may keep it
        while True:
            number, request = channel.receive()
            try:
                with contextlib.redirect_stdout(silence):  # modules print when they are imported
                    served = pickle.loads(factory)() if served is None else served
                    method, arguments = pickle.loads(request)
            except Exception as e:
                channel.send(number, None)
                channel.send(number, (_to_foretune_error(e, "cannot load the code: "), False))
                continue
            channel.send(number, None)
            try:
                answer = getattr(served, method)(*arguments)
            except Exception as e:
                answer = _to_foretune_error(e)
            usable = bool(getattr(served, "usable", True))
            try:
                channel.send(number, (answer, usable))
            except answers.UnreadableAnswer as e:
                channel.send(number, (_to_foretune_error(e, "cannot send the answer: "), False))


def _connect(address: str) -> socket.socket:
    if address.isdigit():
        return socket.create_connection(("127.0.0.1", int(address)))
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(address)
    return sock


def _to_foretune_error(error: Exception, prefix: str = "") -> ForetuneError:
    if isinstance(error, ForetuneError):
        return error
    return MeasurementError(f"{prefix}{describe_error(error)}")


def fork_worker(parent: int) -> int:
    """Fork the worker and return in it; return the process that it must not outlive.

    The calling process becomes the keeper. It ends with the worker, on SIGTERM, or when process
    ``parent`` ended or the worker started too many processes; before that, it kills all processes
    that the worker started. On systems other than Linux, the calling process is the worker.
    """
    if sys.platform != "linux":
        return parent
    keeper = os.getpid()
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    worker = os.fork()
    if worker:
        status = _wait_for(worker, parent)
        _end_descendants()
        _end_like(status)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    os.setsid()  # what it sends to its group does not reach the keeper
    _limit_resources()
    return keeper


def _wait_for(worker: int, parent: int) -> int:
    """Return the exit status of the worker; kill it if it must end."""
    threads = _threads()
    while True:
        received = signal.sigtimedwait(_SIGNALS, _POLL_S)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == worker:
                    return ended[1]
        asked = received is not None and received.si_signo == signal.SIGTERM
        must_end = asked or os.getppid() != parent
        if not must_end and _threads() > threads + MAX_PROCESSES:
            threads = _threads()
            must_end = len(_descendants()) > MAX_PROCESSES
        if must_end:
            os.kill(worker, signal.SIGKILL)


def _end_descendants() -> None:
    """Kill all descendants of this process, which adopts those whose parents end."""
    deadline = time.monotonic() + END_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:  # there is none
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):  # first they must not start others
            _signal_all(_descendants(), number)
        time.sleep(0.01)


def _end_like(status: int) -> NoReturn:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _set_limit("RLIMIT_CORE", 0)
        with contextlib.suppress(OSError):  # the action of SIGKILL cannot be set
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status) if os.WIFEXITED(status) else 1)


def _descendants(pid: int | None = None) -> list[int]:
    """Return the processes that a process started; by default, this one."""
    import psutil  # a worker rarely leaves any

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:  # it ended
        return []


def _signal_all(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _threads() -> int:
    """Return the number of threads on this system, which is cheap to read; -1 if unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
    return -1


def _limit_resources() -> None:
    """Limit threads and memory, and make this process the first to be killed when memory is short.

    With a GPU, memory is not limited, because the driver maps more than there is.
    """
    cores = os.cpu_count() or 1
    _set_limit("RLIMIT_NPROC", _threads() + 2 * MAX_PROCESSES + 16 * cores)
    if not any(Path(path).exists() for path in _GPU_DRIVERS):
        _set_limit("RLIMIT_DATA", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _set_limit(name: str, limit: int) -> None:
    import resource

    kind = getattr(resource, name)
    hard = resource.getrlimit(kind)[1]
    soft = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    resource.setrlimit(kind, (soft, hard))


if __name__ == "__main__":
    serve(sys.argv[1], sys.stdin.buffer.read(), int(sys.argv[2]))
