"""Tunes a kernel's source with the interface of Kernel Tuner's ``tune_kernel``.

Users of Kernel Tuner change one import. Arguments that are not supported raise `UnknownName`.
"""

import json
import math
import os
import platform as machine
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack, cast

import numpy as np

from foretune.collect.benchmark import environment
from foretune.collect.devices import local_device
from foretune.collect.power import explain_missing_meter, find_meter
from foretune.collect.timing import Timing
from foretune.collect.wrapped.opencl import find_device
from foretune.collect.wrapped.source import (
    TORCH_LANGUAGES,
    Divisors,
    LaunchShape,
    Size,
    Source,
    read_source,
)
from foretune.collect.wrapped.source_kernel import SourceKernel, Verify
from foretune.collect.wrapped.wrapped import CostOf, Restrictions, WrappedKernel
from foretune.datasets.importers.kerneltuner import parse
from foretune.device import Device
from foretune.errors import MeterUnavailable, UnknownName, UsageError, require_known
from foretune.measurement import Measurement, Status
from foretune.space import Configuration
from foretune.support.expression import Expression
from foretune.support.files import atomic_write
from foretune.tune.functions.result import Best
from foretune.tune.functions.tuning import TuneOptions, WrappedOptions, tune_wrapped
from foretune.tune.job import check_options
from foretune.tune.results import SearchStep
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.store import Store
from foretune.values import Value

STRATEGIES = {
    "brute_force": "exhaustive",
    "random_sample": "random",
    **dict.fromkeys(
        (
            "bayes_opt",
            "diff_evo",
            "genetic_algorithm",
            "pso",
            "dual_annealing",
            "simulated_annealing",
            "adaptive_tabu_greywolf",
            "hybrid_vndx",
        ),
        "surrogate",
    ),
}
"""Kernel Tuner's strategies -> searchers. Foretune's search replaces the adaptive ones."""
UNLIMITED_BUDGET = 10**9
"""More measurements than any space has that is measured completely."""
LANGUAGES = {
    "c": "C",
    "c++": "C",
    "opencl": "OpenCL",
    "cuda": "CUDA",
    "cupy": "CUDA",
    "nvcuda": "CUDA",
    "hip": "HIP",
}
"""Kernel Tuner's names of languages and back ends -> languages."""
OPENCL_CPU = 2
"""Bit of an OpenCL device's type."""
FAILURE_NAMES = {
    "compile_error": "CompilationFailedConfig",
    "runtime_error": "RuntimeFailedConfig",
    "timeout": "RuntimeFailedConfig",
    "invalid": "InvalidConfig",
    "wrong_result": "ErrorConfig",
}
"""Text in Kernel Tuner's file for each status."""
_ENERGY = ("energy", "nvml_energy", "ps_energy", "pmt_energy", "hip_energy")


@dataclass(frozen=True, eq=False, repr=False)
class TunedKernel(Best):
    """The result of `tune_kernel`; unpacks as ``results, env``, like Kernel Tuner's.

    Attributes:
        results: one entry per measured configuration: its knobs, ``time`` in milliseconds or the
            reason of its failure, and metrics.
        env: device, versions and the best configuration.
    """

    results: list[dict[str, Any]]
    env: dict[str, Any]

    def __iter__(self) -> Iterator[Any]:
        return iter((self.results, self.env))


class KernelTunerOptions(WrappedOptions, total=False):
    """The options of `WrappedOptions`, and those of Kernel Tuner.

    Attributes:
        compiler: command that compiles C.
        compiler_options: its options; they may contain ``{knob}``.
        defines: replace the knobs' definitions.
        iterations: fixed number of repeats.
        block_size_names: knobs that are work-group sizes.
        quiet: print nothing.
        strategy: one of Kernel Tuner's (`STRATEGIES`), or a Foretune searcher.
        strategy_options: only ``max_fevals`` and ``time_limit``.
        cache: file in Kernel Tuner's format; its measurements are not repeated.
        metrics: name -> expression or function of a result.
        observers: only for power and energy, which Foretune's own meter measures.
        objective: ``time`` or ``energy``.
        objective_higher_is_better: must be False.
        default: configuration to compare with; by default the first that works.
        cost: operations and bytes of one launch, if known.
    """

    compiler: str | None
    compiler_options: Sequence[str] | None
    defines: Mapping[str, Any] | None
    iterations: int | None
    block_size_names: Sequence[str] | None
    quiet: bool
    strategy: str | None
    strategy_options: Mapping[str, Any] | None
    cache: str | None
    metrics: Mapping[str, str | Callable[[dict[str, Any]], Any]] | None
    observers: Any
    objective: str | Sequence[str] | None
    objective_higher_is_better: bool | Sequence[bool] | None
    default: Mapping[str, Any] | None
    cost: CostOf | None


def tune_kernel(
    kernel_name: str,
    kernel_source: Any,
    problem_size: Size,
    arguments: Sequence[Any],
    tune_params: Mapping[str, Sequence[Value]],
    grid_div_x: Divisors = None,
    grid_div_y: Divisors = None,
    grid_div_z: Divisors = None,
    restrictions: Restrictions = None,
    answer: Sequence[Any] | None = None,
    atol: float = 1e-6,
    verify: Verify | None = None,
    verbose: bool = False,
    lang: str | None = None,
    device: int = 0,
    platform: int = 0,
    smem_args: Any = None,
    cmem_args: Any = None,
    **options: Unpack[KernelTunerOptions],
) -> TunedKernel:
    """Find the fastest knobs of a kernel in C, C++, OpenCL, CUDA or HIP, and verify them.

    Names and meanings are Kernel Tuner's; ``options`` are in `KernelTunerOptions`. The source is
    its text, its file, a list of files, or a function from knobs to it; each knob becomes a
    ``#define``. ``restrictions`` are expressions, or functions of the knobs. ``grid_div_x``
    has the divisors of the problem size, by default ``["block_size_x"]``. Differences:

    - Without ``strategy``, ``budget`` configurations are measured instead of all;
      ``strategy="brute_force"`` measures all. They run in another process, until their medians are
      precise.
    - ``answer`` has each argument's correct content after a launch, None for inputs. Without it,
      outputs must equal the default's; ``verify(answer, contents, atol=None)`` judges them instead,
      both lists with one element per argument.
    - ``lang`` is ``C`` (also C++), ``OpenCL``, ``CUDA`` or ``HIP``. C is compiled with ``-O3`` by
      default, and a function that does not return a float is timed from outside.
    - ``smem_args`` is ``{"size": bytes}`` of dynamic shared memory per block, in CUDA and HIP: a
      number, an expression or a function of knobs. ``cmem_args`` maps a ``__constant__`` variable
      to its array. ``device`` is the number of the OpenCL device, of ``platform``, or of torch's
      GPU. ``verbose`` is ignored.

    Raises:
        UsageError: an argument is not supported or invalid.
        MissingExtra: the compiler of the language is not installed.
        MeterUnavailable: objective, limits or observers need power, and no meter works here.
        MeasurementError: no configuration works; the message has the reason of the first.
    """
    check_options(options, KernelTunerOptions, function=tune_kernel)
    source = _read_source(
        kernel_name,
        kernel_source,
        lang,
        platform=platform,
        device=device,
        smem_args=smem_args,
        cmem_args=cmem_args,
        options=options,
    )
    gpu = _gpu_of_source(source)
    divisors = (grid_div_x, grid_div_y, grid_div_z)
    block_size_names = options.get("block_size_names") or ()
    kernel = SourceKernel(
        source,
        LaunchShape(problem_size, divisors, block_size_names),
        arguments,
        tune_params,
        defines=options.get("defines"),
        restrictions=restrictions,
        answer=answer,
        atol=atol,
        verify=verify,
        default=options.get("default"),
        cost=options.get("cost"),
        device_kind="cpu" if gpu is None else "gpu",
    )
    return _tune(kernel, source, problem_size, gpu, options)


def _read_source(
    name: str,
    given: Any,
    lang: str | None,
    *,
    platform: int,
    device: int,
    smem_args: Any,
    cmem_args: Any,
    options: KernelTunerOptions,
) -> Source:
    """Return the source; ``platform`` and ``device`` are numbers of OpenCL or torch."""
    text, extra_files, path = read_source(given)
    language = _language(lang, text, path)
    flags = options.get("compiler_options")
    if smem_args is not None and (language not in TORCH_LANGUAGES or set(smem_args) != {"size"}):
        raise UsageError("smem_args must be {'size': bytes}, and needs a CUDA or HIP kernel")
    return Source(
        name=name,
        text=text,
        language=language,
        suffix=Path(path).suffix,
        extra_files=extra_files,
        folder=str(Path(path).parent.resolve()),
        compiler=options.get("compiler"),
        options=None if flags is None else tuple(flags),
        platform=platform,
        device=device,
        shared_bytes=0 if smem_args is None else smem_args["size"],
        constants=_constants(cmem_args, language),
    )


def _tune(
    kernel: SourceKernel,
    source: Source,
    problem_size: Size,
    gpu: Device | None,
    options: KernelTunerOptions,
) -> TunedKernel:
    """Tune; read and write Kernel Tuner's cache file if there is one."""
    observed = _observed_quantities(options.get("observers") or ())
    kind, index = ("cpu", 0) if gpu is None else (gpu.kind, gpu.index)
    if observed and find_meter(kind, index) is None:
        raise MeterUnavailable(
            f"observers need a power meter: {explain_missing_meter(kind)}; leave observers out"
        )
    tune_options = _tune_options(options, bool(observed))
    timing = _timing(options.get("iterations"))
    metrics = options.get("metrics")
    cache = options.get("cache")
    if cache is None:
        best = tune_wrapped(kernel, tune_options, timing=timing, device=gpu)
        return _results(best, metrics, observed)
    name = machine.processor()  # as Kernel Tuner calls the device
    if source.language == "OpenCL":
        name = str(find_device(source.platform, source.device).name)
    file = KernelTunerCache(cache, source.name, problem_size, kernel.knobs, name)
    with tempfile.TemporaryDirectory(prefix="foretune-") as folder:
        if tune_options.get("store") is False:  # the file is all there is
            tune_options["store"] = Store(Path(folder, "cache.db"))
        stored = file.copy_to_store(kernel, tune_options, gpu)
        try:
            best = tune_wrapped(kernel, tune_options, timing=timing, device=gpu)
            tuned = _results(best, metrics, observed)
        except BaseException:  # interrupted, for example: what was measured is not lost
            steps = [
                SearchStep(m.config, m.status.value, m.time_ms, m.power_w, m.time_ms)
                for m in stored.known(kernel.problem())
            ]
            file.write(steps, [_row(step, observed) for step in steps])
            raise
    file.write(best.result.trace, tuned.results)
    return tuned


def _timing(iterations: int | None) -> Timing | None:
    """Return a fixed number of repeats; None for as many as are needed."""
    if iterations is None:
        return None
    if iterations < 1:
        raise UsageError(f"{iterations} iterations leave nothing to time: give at least 1")
    return Timing(
        max_seconds=math.inf,
        warmup_s=0.0,
        relative_width=0.0,
        min_repeats=iterations,
        max_repeats=iterations,
    )


def _constants(cmem_args: Mapping[str, Any] | None, language: str) -> Mapping[str, np.ndarray]:
    for name, content in (cmem_args or {}).items():
        if not isinstance(content, np.ndarray | np.generic) or content.dtype.hasobject:
            raise UsageError(f"cmem_args: {name} must be a NumPy array or a NumPy number")
    if cmem_args and language not in TORCH_LANGUAGES:
        raise UsageError("cmem_args are for CUDA and HIP kernels: pass an array instead")
    return {name: np.ascontiguousarray(content) for name, content in (cmem_args or {}).items()}


def _observed_quantities(observers: Sequence[Any]) -> dict[str, str]:
    """Return the results that observers add: name -> ``power`` or ``energy``; no others."""
    found: dict[str, str] = {}
    for observer in observers:
        # NVML's observer keeps its power quantities in a nested observer.
        apart = getattr(observer, "continuous_observer", None)
        names = [*getattr(observer, "observables", ()), *getattr(apart, "observables", ())]
        for name in names or [type(observer).__name__]:
            what = name.rpartition("_")[2]
            if what not in ("power", "energy"):
                raise UsageError(
                    f"tune_kernel does not take an observer of {name}, only of power and energy"
                )
            found[name] = what
    return found


def _language(lang: str | None, text: Any, path: str) -> Any:
    """Return the given language, or the one detected from the source."""
    if lang is not None:
        if lang.lower() not in LANGUAGES:
            raise UnknownName("lang", lang, sorted(set(LANGUAGES.values())))
        return LANGUAGES[lang.lower()]
    if callable(text):
        raise UsageError(
            "the source is a function: give lang='C', lang='OpenCL', lang='CUDA' or lang='HIP'"
        )
    if path.endswith((".py", ".f90", ".F90")):
        raise UsageError(f"{path} is not supported: use C, C++, OpenCL, CUDA or HIP")
    if path.endswith(".hip") or "hip/hip_runtime" in str(text):
        return "HIP"
    if path.endswith(".cu") or "__global__" in str(text):
        return "CUDA"
    return "OpenCL" if path.endswith(".cl") or "__kernel" in str(text) else "C"


def _gpu_of_source(source: Source) -> Device | None:
    """Return the GPU; None for the CPU, including OpenCL CPU devices."""
    if source.language in TORCH_LANGUAGES:
        try:
            return local_device(f"cuda:{source.device}")
        except UnknownName:
            raise UsageError(
                f"{source.name} is {source.language}, and this machine has no GPU "
                f"{source.device} for it: 'foretune doctor' lists those it has"
            ) from None
    if source.language != "OpenCL":
        return None
    device = find_device(source.platform, source.device)
    if "CPU" in type(device).__name__ or device.type & OPENCL_CPU:
        return None
    specs = {
        "cores": float(device.max_compute_units),
        "clock_mhz": float(device.max_clock_frequency),
    }
    return Device(str(device.name).strip(), "gpu", specs=specs, source="OpenCL")


def _tune_options(given: KernelTunerOptions, power: bool) -> TuneOptions:
    shared = {n: v for n, v in given.items() if n in WrappedOptions.__optional_keys__}
    options = cast(TuneOptions, {**shared, "power": power})
    if given.get("quiet"):
        options["progress"] = False
    limits = dict(given.get("strategy_options") or {})
    max_evaluations = limits.pop("max_fevals", None)
    seconds = limits.pop("time_limit", None)
    if limits:
        raise UsageError(f"unknown strategy option {min(limits)!r}: use max_fevals or time_limit")

    strategy = given.get("strategy")
    if strategy is not None:
        options["searcher"] = STRATEGIES.get(strategy.lower(), strategy)
        if options["searcher"] == "exhaustive":
            options.setdefault("budget", UNLIMITED_BUDGET)
    if max_evaluations is not None:
        options["budget"] = int(max_evaluations)
    if seconds is not None:
        options["seconds"] = float(seconds)

    objective = given.get("objective")
    if objective is None:
        return options
    named = [objective] if isinstance(objective, str) else list(objective)
    higher = given.get("objective_higher_is_better")
    if (
        higher not in (None, False, [False])
        or len(named) != 1
        or named[0] not in ("time", *_ENERGY)
    ):
        raise UsageError(
            f"objective {objective!r} is not supported: use time or energy; metrics are in the "
            "results"
        )
    options["objective"] = "time" if named[0] == "time" else "energy"
    return options


def _results(
    best: Best, metrics: Mapping[str, Any] | None, observed: Mapping[str, str]
) -> TunedKernel:
    """Return results in Kernel Tuner's format, a dictionary per configuration."""
    results = [_row(step, observed) for step in best.result.trace]
    for step, row in zip(best.result.trace, results, strict=True):
        if step.status == "ok":
            row |= _metrics(row, metrics or {})
    of_best = (row for row in results if all(row[n] == v for n, v in best.config.items()))
    env = {"device_name": best.result.device, "best_config": next(of_best, dict(best.config))}
    return TunedKernel(best.kernel, best.result, results=results, env=env)


def _row(step: SearchStep, observed: Mapping[str, str]) -> dict[str, Any]:
    row: dict[str, Any] = dict(step.config)
    row["time"] = step.time_ms if step.status == "ok" else step.status
    if not math.isnan(step.power_w):
        row |= {"power": step.power_w, "energy": step.power_w * step.time_ms * 1e-3}
        row |= {name: row[what] for name, what in observed.items()}
    return row


def _metrics(row: Mapping[str, Any], metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a result; each may use earlier ones."""
    computed: dict[str, Any] = {}
    for name, metric in metrics.items():
        known = {**row, **computed}
        if callable(metric):
            computed[name] = metric(known)
            continue
        expression = Expression(metric, "metric")
        require_known(f"value in metric {name}", sorted(expression.names), known)
        columns = {n: np.array([known[n]]) for n in expression.names}
        computed[name] = float(expression.evaluate(columns)[0])
    return computed


class KernelTunerCache:
    """A cache file of Kernel Tuner; ``.json`` is added to its path if missing."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        kernel: str,
        problem_size: Any,
        knobs: Mapping[str, Sequence[Value]],
        device: str,
    ) -> None:
        self.path = Path(path) if str(path).endswith(".json") else Path(f"{path}.json")
        self._header: dict[str, Any] = {
            "device_name": device,
            "kernel_name": kernel,
            "problem_size": "callable" if callable(problem_size) else problem_size,
            "tune_params_keys": list(knobs),
            "tune_params": {name: list(values) for name, values in knobs.items()},
            "objective": ["time"],
        }
        self._entries = self._read() if self.path.exists() else {}

    def copy_to_store(
        self, kernel: WrappedKernel, options: TuneOptions, device: Device | None
    ) -> MeasurementCache:
        """Put the file's measurements into the store, and return it: they are not repeated."""
        device = device or local_device("cpu", measure=False)
        cache = MeasurementCache.for_kernel(kernel, device, options.get("store"))
        problem = kernel.problem()
        space = kernel.space(problem)
        known = {m.config for m in cache.known(problem)}
        for entry in self._entries.values():
            config = Configuration({name: entry[name] for name in kernel.knobs})
            time_ms = entry.get("time")
            if config in known or config not in space or not isinstance(time_ms, int | float):
                continue
            cache.append(
                Measurement(
                    kernel=kernel.name,
                    problem=problem,
                    config=config,
                    device=device.name,
                    status=Status.OK,
                    time_ms=float(time_ms),
                    time_ms_samples=tuple(map(float, entry.get("times", ()))),
                    source=f"kerneltuner {self.path.name}",
                    environment=environment(kernel),
                )
            )
        return cache

    def write(self, trace: Sequence[SearchStep], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write the file's old entries and the new measurements; OutputError if that fails."""
        for step, row in zip(trace, rows, strict=True):
            key = ",".join(str(step.config[name]) for name in self._header["tune_params_keys"])
            entry = {**row, "time": FAILURE_NAMES.get(step.status, step.time_ms)}
            self._entries.setdefault(key, entry)
        head = json.dumps(self._header, indent=0)[:-2]  # its lines are as Kernel Tuner writes them
        lines = [f"{json.dumps(key)}: {json.dumps(entry)}" for key, entry in self._entries.items()]
        with atomic_write(self.path) as new:
            new.write_text(head + ',\n"cache": {\n' + ",\n".join(lines) + "}\n}", encoding="utf-8")

    def _read(self) -> dict[str, dict[str, Any]]:
        content = parse(self.path)
        for name in ("device_name", "kernel_name", "problem_size", "tune_params_keys"):
            of_file = content.get(name)
            expected = self._header[name]
            if _as_list(of_file) != _as_list(expected):
                raise UsageError(
                    f"{self.path} is of {name} {of_file!r}, not {expected!r}: name another"
                )
        return dict(content["cache"])


def _as_list(value: Any) -> Any:
    """Return a tuple as a list, as JSON has it."""
    return list(value) if isinstance(value, tuple) else value
