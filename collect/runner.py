"""Runners: measure configurations here, or in a process that may hang or die."""

import math
import os
import pickle
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import cloudpickle
import numpy as np

from foretune.collect.channel import Channel
from foretune.collect.child import ending, kill
from foretune.collect.conditions import Watch
from foretune.collect.nvidia import local_gpus
from foretune.collect.timer import Timing
from foretune.collect.workbench import Workbench, environment
from foretune.device import Device
from foretune.errors import MeasurementError, UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration

_START_S, _HELLO_S = 60.0, 5.0


class Runner(ABC):
    """Measures configurations on one device, or on several equal ones; a context manager.

    Attributes:
        device: what it measures on.
        at_once: how many configurations it can measure at the same time: one per device.
    """

    device: Device
    at_once: int = 1

    @abstractmethod
    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration, in order; a failure is a measurement too.

        All are made on one device, one after the other.
        """

    def spread(
        self,
        kernel: Kernel,
        work: Iterable[tuple[Problem, Configuration]],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per problem and configuration, in the order they get done.

        A runner with several devices uses all of them.
        """
        for problem, config in work:
            yield from self.run(kernel, problem, [config], incumbent_ms)

    @abstractmethod
    def race(
        self, kernel: Kernel, problem: Problem, configs: Iterable[Configuration], box_s: float = 2.0
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in ms: by configuration id, and ``library:NAME``.

        Configurations whose output is wrong are left out. Under `workbench.AGAIN` the first one may
        stand a second time.

        Raises:
            MeasurementError: one of them hangs or dies, though it ran before.
        """

    def check(self, kernel: Kernel) -> None:
        """Do nothing if ``kernel`` runs on this device.

        Raises:
            UsageError: it is made for another kind.
        """
        if kernel.device_kind == self.device.kind:
            return
        advice = "choose --device cpu"
        if kernel.device_kind == "gpu":
            advice = "choose --device cuda:0" if local_gpus() else "this machine has no GPU"
        raise UsageError(
            f"{kernel.name} runs on a {kernel.device_kind}, not on {self.device.name}: {advice}"
        )

    def watch(self) -> Watch:
        """Return what sees, while it is entered, what else its machine does."""
        return Watch(self.device)

    def close(self) -> None:
        """Give back what the runner holds."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class InProcessRunner(Runner):
    """Measures in this process: for kernels that are trusted to return."""

    def __init__(self, device: Device, timing: Timing | None = None, power: bool = True) -> None:
        self.device = device
        self._workbench = Workbench(device, timing, power)

    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration."""
        self.check(kernel)
        for config in configs:
            yield self._workbench.measure(kernel, problem, config, incumbent_ms)

    def race(
        self, kernel: Kernel, problem: Problem, configs: Iterable[Configuration], box_s: float = 2.0
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in ms."""
        return self._workbench.race(kernel, problem, configs, box_s)


class IsolatedRunner(Runner):
    """Measures in a child process that is killed when a configuration outlives its time box.

    A hang is recorded as ``timeout``, a crash as ``runtime_error``; the next configuration gets a
    fresh process. What a kernel forks ends with it. A wrong result is believed only of a process
    that ran nothing before: another configuration may have spoilt what it reads. A kernel of an
    importable module is imported there; one of the running script or a notebook is sent along.

    Args:
        device: what is measured on.
        timing: when to stop repeating.
        limit_s: seconds one configuration may take in all: build, check, timing and power.
        power: meter power where a meter works.
    """

    def __init__(
        self,
        device: Device,
        timing: Timing | None = None,
        limit_s: float = 30.0,
        power: bool = True,
    ) -> None:
        self.device = device
        self.limit_s = limit_s
        self._options = (sys.path, device, timing, power)
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._asked = 0
        self._unused = True

    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration."""
        self.check(kernel)
        for config in configs:
            measured = self._measure(kernel, problem, config, incumbent_ms)
            if measured.status is Status.WRONG_RESULT and not self._unused:
                self.close()
                measured = self._measure(kernel, problem, config, incumbent_ms)
            self._unused = False
            yield measured

    def race(
        self, kernel: Kernel, problem: Problem, configs: Iterable[Configuration], box_s: float = 2.0
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in ms."""
        configs = list(configs)
        limit_s = self.limit_s * (len(configs) + 1) + box_s
        try:
            result: dict[str, np.ndarray] = self._ask(
                limit_s, "race", kernel, problem, configs, box_s
            )
            return result
        except (TimeoutError, ChildProcessError) as e:
            raise MeasurementError(
                f"the finalists of {kernel.name} on {problem} could not be compared: "
                f"{e or 'they hang'}"
            ) from e

    def close(self) -> None:
        """Kill the child process, and what it started."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._process is not None:
            kill(self._process)
            self._process = None
        self._unused = True

    def check(self, kernel: Kernel) -> None:
        """Do nothing if ``kernel`` runs on this device.

        Raises:
            UsageError: it is made for another kind.
        """
        super().check(kernel)
        _ = kernel.source_hash  # the other process does not see the script that defines it

    def _measure(
        self, kernel: Kernel, problem: Problem, config: Configuration, incumbent_ms: float
    ) -> Measurement:
        try:
            answer = self._ask(self.limit_s, "measure", kernel, problem, config, incumbent_ms)
        except TimeoutError:
            reason = f"not done after {self.limit_s:g} s"
            return unmeasured(kernel, problem, config, self.device, Status.TIMEOUT, reason)
        except ChildProcessError as e:
            return unmeasured(kernel, problem, config, self.device, Status.RUNTIME_ERROR, str(e))
        if not isinstance(answer, Measurement) or answer.config != config:
            self.close()
            reason = "the process answered something else than it was asked"
            return unmeasured(kernel, problem, config, self.device, Status.RUNTIME_ERROR, reason)
        return answer

    def _ask(self, limit_s: float, method: str, *arguments: Any) -> Any:
        try:
            question = cloudpickle.dumps((method, arguments))
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            raise MeasurementError(
                f"the kernel cannot be sent to another process: {e}; measure with InProcessRunner"
            ) from e
        channel = self._channel or self._start()
        self._asked += 1
        try:
            channel.send(self._asked, question, limit_s)
            answer, usable = self._answer(channel, limit_s)
        except TimeoutError:
            self.close()
            raise
        except (EOFError, OSError):
            assert self._process is not None
            died = ending(self._process)
            self.close()
            raise ChildProcessError(f"the process died: {died}") from None
        except Exception as e:
            self.close()
            raise ChildProcessError(f"its answer cannot be read: {type(e).__name__}: {e}") from e
        except BaseException:  # Ctrl-C: the child is in the middle of something
            self.close()
            raise
        if not usable:  # a launch took the device's context along: the next needs a new process
            self.close()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _answer(self, channel: Channel, limit_s: float) -> Any:
        """Return the answer to the last question; answers to others are dropped."""
        deadline = time.monotonic() + limit_s
        while True:
            number, answer = channel.receive(max(0.0, deadline - time.monotonic()))
            if number == self._asked:
                return answer

    def _start(self) -> Channel:
        try:
            self._channel = self._connect()
            self._channel.send(0, self._options, _START_S)
        except OSError as e:
            self.close()
            raise MeasurementError(f"the measuring process cannot be started: {e}") from e
        self._unused = True
        return self._channel

    def _connect(self) -> Channel:
        with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
            key = secrets.token_bytes(16)
            with _listening(Path(folder)) as (listener, address):
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "foretune.collect.worker",
                        address,
                        str(os.getpid()),
                    ],
                    stdin=subprocess.PIPE,
                    start_new_session=True,
                )
                assert self._process.stdin is not None
                self._process.stdin.write(key)
                self._process.stdin.close()
                return self._accept(listener, key)

    def _accept(self, listener: socket.socket, key: bytes) -> Channel:
        assert self._process is not None
        listener.settimeout(0.5)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                channel = Channel(listener.accept()[0], key)
                channel.receive(_HELLO_S)
            except (TimeoutError, EOFError):  # nobody yet, or somebody else
                continue
            return channel
        code = self._process.poll()
        self.close()
        what = f"ended with exit code {code}" if code is not None else "does not answer"
        raise MeasurementError(f"the measuring process {what}: see its message above")


def check_importable(kernel: Kernel) -> None:
    """Do nothing if another machine can import ``kernel``.

    Raises:
        UsageError: it cannot.
    """
    if type(kernel).__module__ == "__main__" or not kernel.travels:
        raise UsageError(
            f"kernel {kernel.name!r} is defined in the script that runs: another machine cannot "
            "import it; make it a class in a module of its own, or measure here"
        )


def unmeasured(
    kernel: Kernel,
    problem: Problem,
    config: Configuration,
    device: Device,
    status: Status,
    reason: str,
) -> Measurement:
    """Return the row of a configuration whose process did not live to tell."""
    return Measurement(
        kernel=kernel.name,
        problem=problem,
        config=config,
        device=device.name,
        status=status,
        error=reason,
        environment=environment(kernel),
    )


@contextmanager
def _listening(folder: Path) -> Iterator[tuple[socket.socket, str]]:
    """Listen in a folder, or where there are no such sockets on this machine alone."""
    if os.name == "posix":
        listener, address = socket.socket(socket.AF_UNIX), str(folder / "socket")
        listener.bind(address)
    else:
        listener = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    with listener:
        listener.listen()
        yield listener, address
