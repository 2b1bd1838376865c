"""Runners: measure configurations here, or in a process that may hang or die."""

import math
import os
import pickle
import secrets
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any, Self

import numpy as np

from foretune.collect.child import ending
from foretune.collect.nvidia import local_gpus
from foretune.collect.timer import Timing
from foretune.collect.workbench import Workbench, environment
from foretune.device import Device
from foretune.errors import MeasurementError, UsageError
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration

_START_S = 60.0


class Runner(ABC):
    """Measures configurations on one device; a context manager.

    Attributes:
        device: what it measures on.
    """

    device: Device

    @abstractmethod
    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration, in order; a failure is a measurement too."""

    @abstractmethod
    def race(
        self, kernel: Kernel, problem: Problem, configs: Iterable[Configuration], box_s: float = 2.0
    ) -> dict[str, np.ndarray]:
        """Return interleaved times in ms: by configuration id, and ``library:NAME``.

        Configurations whose output is wrong are left out.

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
    fresh process. The kernel must be importable by name there, so not defined in ``__main__``.

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
        self._connection: Connection[Any, Any] | None = None

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
            try:
                yield self._ask(self.limit_s, "measure", kernel, problem, config, incumbent_ms)
            except TimeoutError:
                reason = f"not done after {self.limit_s:g} s"
                yield self._lost(kernel, problem, config, Status.TIMEOUT, reason)
            except ChildProcessError as e:
                yield self._lost(kernel, problem, config, Status.RUNTIME_ERROR, str(e))

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
        """Kill the child process."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def check(self, kernel: Kernel) -> None:
        """Do nothing if ``kernel`` runs on this device and can be imported elsewhere.

        Raises:
            UsageError: it cannot.
        """
        super().check(kernel)
        if type(kernel).__module__ == "__main__":
            raise UsageError(
                f"kernel {kernel.name!r} is defined in the script that runs: another process "
                "cannot import it; put it in a module of its own, or use InProcessRunner"
            )

    def _ask(self, limit_s: float, method: str, *arguments: Any) -> Any:
        connection = self._connection or self._start()
        try:
            connection.send((method, arguments))
            if not connection.poll(limit_s):
                raise TimeoutError
            answer, usable = connection.recv()
        except (pickle.PicklingError, AttributeError, TypeError) as e:
            self.close()
            raise MeasurementError(f"the kernel cannot be sent to another process: {e}") from e
        except (EOFError, BrokenPipeError, ConnectionResetError):
            assert self._process is not None
            died = ending(self._process)
            self.close()
            raise ChildProcessError(f"the process died: {died}") from None
        except BaseException:  # a timeout, Ctrl-C: the child is in the middle of something
            self.close()
            raise
        if not usable:  # a launch took the device's context along: the next needs a new process
            self.close()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def _start(self) -> "Connection[Any, Any]":
        try:
            self._connection = self._connect()
        except OSError as e:
            self.close()
            raise MeasurementError(f"the measuring process cannot be started: {e}") from e
        self._connection.send(self._options)
        return self._connection

    def _connect(self) -> "Connection[Any, Any]":
        with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
            address = str(Path(folder) / "socket") if os.name == "posix" else None
            key = secrets.token_bytes(16)
            with Listener(address, authkey=key) as listener:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        "foretune.collect.worker",
                        str(listener.address),
                        str(os.getpid()),
                    ],
                    stdin=subprocess.PIPE,
                )
                assert self._process.stdin is not None
                self._process.stdin.write(key)
                self._process.stdin.close()
                return self._accept(listener)

    def _accept(self, listener: Listener) -> "Connection[Any, Any]":
        assert self._process is not None
        # Listener.accept waits for ever, also for a process that died; its socket need not.
        sock = listener._listener._socket  # type: ignore[attr-defined]
        sock.settimeout(0.5)
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                return listener.accept()
            except TimeoutError:
                continue
        code = self._process.poll()
        self.close()
        what = f"ended with exit code {code}" if code is not None else "does not answer"
        raise MeasurementError(f"the measuring process {what}: see its message above")

    def _lost(
        self,
        kernel: Kernel,
        problem: Problem,
        config: Configuration,
        status: Status,
        reason: str,
    ) -> Measurement:
        return Measurement(
            kernel=kernel.name,
            problem=problem,
            config=config,
            device=self.device.name,
            status=status,
            error=reason,
            environment=environment(kernel),
        )
