"""The runner that measures on all equal devices of a Ray cluster: one actor per device."""

import importlib
import math
import os
import pickle
import queue
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Self

from foretune.collect import answers
from foretune.collect.benchmark import measurement
from foretune.collect.comparison import Rounds
from foretune.collect.devices import local_devices
from foretune.collect.distributed.actor import (
    THREAD_VARIABLES,
    PickledKernel,
    RayActor,
    matching_resources,
    resource_counts,
    resource_of,
)
from foretune.collect.distributed.dispatcher import MAX_ATTEMPTS, Dispatcher, WorkerLost
from foretune.collect.machine_load import LoadMonitor, MachineLoad
from foretune.collect.runner import Runner
from foretune.collect.timing import Timing
from foretune.device import Device
from foretune.errors import ForetuneError, MeasurementError, UsageError, describe_error
from foretune.kernel import Kernel
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.code_hash import uninstalled_sources
from foretune.support.lazy import require

LOCAL = "local"
"""The address that starts a temporary cluster on this machine."""
RAY_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS_SKIP_REGEX": "."}
"""Turns off telemetry and Ray's output, because programs read the results on stdout."""
TOKEN_VARIABLES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
"""Environment variables with the token of a cluster."""
CONNECT_TIMEOUT_S = 5.0
"""Time limit of the connection to a cluster."""
OBJECT_STORE_BYTES = 100 * 2**20
"""Shared memory of a local cluster: measurements are small."""


class RayRunner(Runner):
    """Measures on every device of a Ray cluster that is equal to ``device``.

    Each device has an actor with an `IsolatedRunner`. If an actor or its node is lost, its work is
    repeated on another device; a configuration that loses three actors is a failed row. Devices may
    join at any time. If Ray is already initialized in this process, its cluster is used.

    The source of ``kernel`` is sent to the nodes. ``device`` may be its name in the cluster;
    ``timing``, ``limit_s`` and ``power`` are as in `IsolatedRunner`. ``address`` is the cluster's,
    by default ``$RAY_ADDRESS``, else a cluster is started on this machine.

    Raises MissingExtra if Ray is not installed; MeasurementError if no cluster answers, or all
    devices have other code or versions; UsageError if the cluster has no such device, or other
    machines cannot import the kernel.
    """

    def __init__(
        self,
        kernel: Kernel,
        device: Device | str,
        timing: Timing | None = None,
        limit_s: float = 30.0,
        power: bool = True,
        address: str | None = None,
    ) -> None:
        if isinstance(device, Device):
            self.device = device
            self.check(kernel)
        _check_importable(kernel)
        self._pool = RayWorkerPool(
            kernel, device, address=address, timing=timing, limit_s=limit_s, power=power
        )
        try:
            self._dispatcher = Dispatcher(self._pool, self._set_device)
            self._dispatcher.wait()
        except BaseException:
            self.close()
            raise

    @property
    def devices(self) -> int:
        """Number of equal devices that the cluster has now, ready or not."""
        return self._pool.capacity()

    @property
    def parallelism(self) -> int:  # type: ignore[override]
        """Number of ready devices."""
        return len(self._dispatcher)

    def run(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per configuration; all are from one device unless it is lost."""
        for config in configs:
            yield from self.run_many(kernel, [(problem, config)], incumbent_ms)

    def run_many(
        self,
        kernel: Kernel,
        work: Iterable[tuple[Problem, Configuration]],
        incumbent_ms: float = math.inf,
    ) -> Iterator[Measurement]:
        """Yield one measurement per problem and configuration as each finishes on any device."""
        self.check(kernel)
        pairs = list(work)
        pickled = PickledKernel.from_kernel(kernel)
        # Work is grouped by problem, whose inputs a worker keeps.
        pieces = [
            (problem, ("run", (pickled, problem, [config], incumbent_ms)))
            for problem, config in pairs
        ]
        for number, answer in self._call_many(pieces):
            if not isinstance(answer, WorkerLost):
                yield from answer
                continue
            problem, config = pairs[number]
            yield measurement(
                kernel,
                problem,
                config,
                self.device,
                status=Status.RUNTIME_ERROR,
                error=f"{MAX_ATTEMPTS} workers were lost while they measured it: {answer}",
            )

    def compare_interleaved(
        self,
        kernel: Kernel,
        problem: Problem,
        configs: Iterable[Configuration],
        max_seconds: float = 0.5,
        seed: int = 0,
    ) -> Rounds:
        """Return times in interleaved rounds, from a fresh process of one device."""
        self.check(kernel)
        pickled = PickledKernel.from_kernel(kernel)
        answer = self._call(
            "compare_interleaved", pickled, problem, list(configs), max_seconds, seed
        )
        if isinstance(answer, WorkerLost):
            raise MeasurementError(
                f"the finalists of {kernel.name} on {problem} could not be compared: {answer}"
            )
        assert isinstance(answer, Rounds)
        return answer

    def watch(self) -> LoadMonitor:
        """Return a monitor of the machine that measures next."""
        return _RemoteLoadMonitor(self.device, self._call)

    def check(self, kernel: Kernel) -> None:
        """Raise UsageError unless these devices run ``kernel``, and their nodes can import it."""
        super().check(kernel)
        _check_importable(kernel)

    def close(self) -> None:
        """End the actors, and the cluster if this runner started it."""
        self._pool.close()

    def _set_device(self, device: Device) -> None:
        self.device = getattr(self, "device", device)

    def _call(self, method: str, *arguments: Any) -> Any:
        ((_, answer),) = self._call_many([(None, (method, arguments))])
        return answer

    def _call_many(self, pieces: Iterable[tuple[Any, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the answer of each piece of work: (group, (method, arguments)).

        Raises the ForetuneError of the actor.
        """
        for number, answer in self._dispatcher.results(pieces):
            if isinstance(answer, ForetuneError):
                raise answer
            yield number, answer


def _check_importable(kernel: Kernel) -> None:
    if type(kernel).__module__ == "__main__" or not kernel.is_importable_remotely:
        raise UsageError(
            f"kernel {kernel.name!r} is defined in the running script: another machine cannot "
            "import it; move it to a module, or measure here"
        )


class _RemoteLoadMonitor(LoadMonitor):
    """Observes the load of a remote device; consecutive calls go to the same actor."""

    def __init__(self, device: Device, call: Callable[[str], Any]) -> None:
        super().__init__(device)
        self._call = call

    def __enter__(self) -> Self:
        self._call("watch")
        return self

    def __exit__(self, *error: object) -> None:
        # The load during a failure does not matter.
        failed = error[0] is not None
        if failed:
            return
        load = self._call("observed_load")
        self.load = MachineLoad() if isinstance(load, WorkerLost) else load


class RayWorkerPool:
    """Actors on a Ray cluster, all on equal devices; parameters and errors as in `RayRunner`."""

    def __init__(
        self,
        kernel: Kernel,
        device: Device | str,
        *,
        address: str | None,
        timing: Timing | None,
        limit_s: float,
        power: bool,
    ) -> None:
        for name, value in RAY_ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        self._ray = require("ray", "ray", "measuring on Ray")
        self._pickled_kernel = PickledKernel.from_kernel(kernel)
        self._actors: set[Any] = set()
        self._owns_cluster = not self._ray.is_initialized()
        if self._owns_cluster:
            self._connect(kernel, address or os.environ.get("RAY_ADDRESS") or LOCAL)
        try:
            self._resource = self._find_resource(device)
        except BaseException:
            self.close()
            raise
        threads = {name: os.environ[name] for name in THREAD_VARIABLES if name in os.environ}
        self._actor_class = self._ray.remote(RayActor).options(
            num_cpus=0, num_gpus=int(kernel.device_kind == "gpu"), resources={self._resource: 1}
        )
        self._arguments = (timing, limit_s, power, threads)
        self._done: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()

    def capacity(self) -> int:
        """Return the number of equal devices in the cluster."""
        return int(self._ray.cluster_resources().get(self._resource, 0))

    def start(self) -> Any:
        """Start an actor; Ray places it on a free device."""
        actor = self._actor_class.remote(*self._arguments)
        self._actors.add(actor)
        self._enqueue_answer(actor, actor.begin.remote(self._resource, self._pickled_kernel))
        return actor

    def send(self, worker: Any, work: tuple[str, tuple[Any, ...]]) -> None:
        """Call a method of an actor without waiting."""
        self._enqueue_answer(worker, worker.answer.remote(pickle.dumps(work)))

    def receive(self, timeout_s: float) -> tuple[Any, Any] | None:
        """Return the next answer."""
        try:
            worker, future = self._done.get(timeout=timeout_s)
        except queue.Empty:
            return None
        try:
            return worker, answers.decode(bytes(future.result()))
        except self._ray.exceptions.RayTaskError:
            # A bug in `RayActor`, which returns failures as values.
            raise
        except Exception as e:
            self._kill(worker)
            return worker, WorkerLost(describe_error(e))

    def close(self) -> None:
        """End the actors, and the cluster if this pool started it."""
        for actor in list(self._actors):
            self._kill(actor)
        if self._owns_cluster:
            self._ray.shutdown()
            self._owns_cluster = False

    def _kill(self, worker: Any) -> None:
        self._actors.discard(worker)
        self._ray.kill(worker)

    def _enqueue_answer(self, worker: Any, answer: Any) -> None:
        answer.future().add_done_callback(lambda future: self._done.put((worker, future)))

    def _connect(self, kernel: Kernel, address: str) -> None:
        options: dict[str, Any] = {}
        if address == LOCAL:
            options = {
                "num_cpus": 1,
                "resources": resource_counts(local_devices()),
                "object_store_memory": OBJECT_STORE_BYTES,
                "include_dashboard": False,
            }
        handler = signal.getsignal(signal.SIGTERM)
        try:
            _check_reachable(address)
            private = _private_cluster() if address == LOCAL else nullcontext()
            with _runtime_environment(kernel) as env, private:
                self._ray.init(
                    address, log_to_driver=False, logging_level="ERROR", runtime_env=env, **options
                )
        except Exception as e:
            raise MeasurementError(
                f"no Ray cluster at {address} ({describe_error(e)}): start one with "
                "'ray start --head'; set RAY_AUTH_MODE=token here too if it requires a token; or "
                "omit the address to use this machine"
            ) from e
        # Ray replaces the handler.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)

    def _find_resource(self, device: Device | str) -> str:
        """Return the cluster's resource of a device, which may be given by its name."""
        available = [r for r in self._ray.cluster_resources() if r.startswith("foretune:")]
        if isinstance(device, Device):
            wanted = resource_of(device)
            matching = [wanted] if wanted in available else []
        else:
            wanted = device
            matching = matching_resources(device, available)

        if not matching:
            raise UsageError(
                f"no device {wanted} in the cluster, which has {', '.join(available) or 'none'}: "
                'start nodes that have one with --resources="$(foretune doctor --ray)"'
            )
        if len(matching) > 1:
            raise UsageError(
                f"the cluster has several kinds of {wanted}: {', '.join(matching)}; run this "
                "without --device on a machine with the kind you want"
            )
        return matching[0]


@contextmanager
def _private_cluster() -> Iterator[None]:
    """Let a cluster that starts in this context listen on this machine only, with a token.

    Ray replaces the loopback address by the machine's own, unless clusters of several machines are
    disabled. By default it requires a token, and stores one in the user's home if none is given.
    """
    constants: Any = importlib.import_module("ray._private.ray_constants")
    several_before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    tokens_before = {name: os.environ.pop(name, None) for name in TOKEN_VARIABLES}
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = several_before
        for name, value in tokens_before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _check_reachable(address: str) -> None:
    """Raise OSError if the address refuses connections; Ray would need minutes to fail."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return
    host_without_scheme = host.rpartition("/")[2]
    connection = socket.create_connection((host_without_scheme, int(port)), CONNECT_TIMEOUT_S)
    connection.close()


@contextmanager
def _runtime_environment(kernel: Kernel) -> Iterator[dict[str, str]]:
    """Yield a runtime environment with a copy of the kernel's modules."""
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        code = uninstalled_sources(type(kernel), Kernel)
        for path in code:
            if path.is_dir():
                shutil.copytree(
                    path, Path(folder, path.name), ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(path, folder)
        yield {"working_dir": folder} if code else {}
