"""Reads and writes Kernel Tuner's cache files."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from foretune.collect.benchmark import environment
from foretune.collect.devices import local_device
from foretune.collect.wrapped.wrapped import WrappedKernel
from foretune.datasets.importers.kerneltuner import parse
from foretune.device import Device
from foretune.errors import UsageError
from foretune.files import atomic_write
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.tune.functions.tuning import TuneOptions
from foretune.tune.results import TuneResult
from foretune.tune.store.cache import MeasurementCache
from foretune.values import Value

FAILURE_NAMES = {
    "compile_error": "CompilationFailedConfig", "runtime_error": "RuntimeFailedConfig",
    "timeout": "RuntimeFailedConfig", "invalid": "InvalidConfig", "wrong_result": "ErrorConfig",
}  # fmt: skip
"""Text in the file for each status."""


class KernelTunerCache:
    """One cache file of Kernel Tuner.

    ``.json`` is added to its path if missing.
    """

    def __init__(
        self, path: str | os.PathLike[str], kernel: str, problem_size: Any,
        knobs: Mapping[str, Sequence[Value]], device: str,
    ) -> None:  # fmt: skip
        self.path = Path(path) if str(path).endswith(".json") else Path(f"{path}.json")
        self._header: dict[str, Any] = {
            "device_name": device,
            "kernel_name": kernel,
            "problem_size": "callable" if callable(problem_size) else problem_size,
            "tune_params_keys": list(knobs),
            "tune_params": {name: list(values) for name, values in knobs.items()},
            "objective": ["time"],
        }
        self._entries: dict[str, dict[str, Any]] = {}
        if self.path.exists():
            self._entries = self._read()

    def copy_to_store(
        self, kernel: WrappedKernel, options: TuneOptions, device: Device | None
    ) -> None:
        """Put the file's measurements into the store, so that they are not repeated."""
        device = device or local_device("cpu", measure=False)
        cache = MeasurementCache.for_kernel(kernel, device, options.get("store"))
        space, problem = kernel.space(kernel.problem()), kernel.problem()
        known = {m.config for m in cache.known(problem)}
        for entry in self._entries.values():
            config = Configuration({name: entry[name] for name in kernel.knobs})
            time = entry.get("time")
            if config in known or config not in space or not isinstance(time, int | float):
                continue
            measured = Measurement(
                kernel.name, problem, config, device.name, Status.OK, float(time),
                tuple(map(float, entry.get("times", ()))),
                source=f"kerneltuner {self.path.name}", environment=environment(kernel),
            )  # fmt: skip
            cache.append(measured)

    def write(self, result: TuneResult, rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the file's old entries and the new measurements.

        Raises:
            OutputError: it cannot be written.
        """
        for step, row in zip(result.trace, rows, strict=True):
            key = ",".join(str(step.config[name]) for name in self._header["tune_params_keys"])
            entry = dict(row)
            if step.status in FAILURE_NAMES:
                entry["time"] = FAILURE_NAMES[step.status]
            self._entries.setdefault(key, entry)
        head = json.dumps(self._header, indent=0)[:-2]  # its lines are as Kernel Tuner writes them
        lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in self._entries.items()]
        with atomic_write(self.path) as new:
            new.write_text(head + ',\n"cache": {\n' + ",\n".join(lines) + "}\n}", encoding="utf-8")

    def _read(self) -> dict[str, dict[str, Any]]:
        found = parse(self.path)
        for name in ("device_name", "kernel_name", "problem_size", "tune_params_keys"):
            file_value, own_value = found.get(name), self._header[name]
            same = list(file_value) if isinstance(file_value, list | tuple) else file_value
            if same != (list(own_value) if isinstance(own_value, list | tuple) else own_value):
                raise UsageError(
                    f"{self.path} is of {name} {file_value!r}, not {own_value!r}: name another"
                )
        entries: dict[str, dict[str, Any]] = dict(found["cache"])
        return entries
