"""Driver for `torch.compile(mode="max-autotune")`: shortens the list that Inductor measures.

For each operation, Inductor lists library routines and templates with different tiles, times all
of them and takes the fastest. Here only the most promising templates stay on the list. Timings and
choices go to the store, and an operation with a stored choice is not timed again.
"""

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foretune.errors import UsageError, warn
from foretune.measurement import Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.lazy import require
from foretune.values import Value, parse_value

if TYPE_CHECKING:
    from foretune.device import Device
    from foretune.search.loop import SearchLoop
    from foretune.tune.store.fallible import StoreLocation
    from foretune.tune.triton.call_tuner import CallTuner
    from foretune.tune.triton.problem_key import Call

COUNTER_SUFFIX = re.compile(r"_\d+$")
"""Counter at the end of a choice's name; it has no meaning."""
KNOB_PATTERN = re.compile(r"(\w+)=([^,\s]+)")
"""A parameter of a template in a choice's description."""
DYNAMIC_SIZE = 1024
"""A dynamic size without a hint."""


def patch_inductor(budget: int = 4, store: "StoreLocation" = None) -> Callable[[], None]:
    """Let Inductor time its library routines and ``budget`` templates per operation.

    ``budget`` is the number of unmeasured templates to time, ``store`` a path or URL; None is the
    user's own, False is none. Returns a function that undoes it. Raises UsageError if ``budget`` is
    not positive, or torch is too old; MissingExtra if torch or Triton is missing.
    """
    require("torch", "gpu", "patching Inductor")
    require("triton", "gpu", "patching Inductor")
    from torch._inductor import select_algorithm

    if not hasattr(select_algorithm, "add_preprocessing_fn"):
        import torch

        raise UsageError(
            f"Inductor of torch {torch.__version__} has no such interface: install a newer one"
        )
    if budget < 1:
        raise UsageError(f"budget is {budget}: at least one template must be timed")
    chooser = InductorChooser(budget, store)
    select_algorithm.add_preprocessing_fn(chooser.shorten)
    select_algorithm.add_feedback_saver(chooser.record_timings)

    def undo() -> None:
        selector: Any = select_algorithm.get_algorithm_selector_cache()
        _remove(chooser.shorten, selector.preprocessing_fns)
        _remove(chooser.record_timings, selector.feedback_saver_fns)

    return undo


def _remove(function: Callable[..., Any], functions: list[Any]) -> None:
    functions[:] = [f for f in functions if f != function]


@dataclass(frozen=True)
class Operation:
    """An operation, its choices in Inductor's order, and those with parameters (templates)."""

    call: "Call"
    configs: list[Configuration]
    templates: list[Configuration]


@dataclass(frozen=True)
class OperationSearch:
    """The search over an operation's templates; Inductor measures its first batch, `started`."""

    listed: list[Configuration]
    tuner: "CallTuner"
    loop: "SearchLoop[Configuration]"
    started: tuple[Configuration, ...]


class InductorChooser:
    """Shortens lists of choices, and learns from their timings."""

    def __init__(self, budget: int, store: "StoreLocation") -> None:
        from foretune.tune.triton.call_tuner import CallTunerFactory
        from foretune.tune.triton.options import Options

        self._budget = budget
        self._tuner_factory = CallTunerFactory(Options(budget=budget, store=store))
        self._searches: dict[Problem, OperationSearch] = {}

    def shorten(self, choices: list[Any]) -> list[Any]:
        """Return the choices that Inductor must time; a single one if a choice is stored."""
        try:
            with self._tuner_factory.lock:
                return self._shorten(choices)
        except Exception as e:  # Inductor works without us
            warn(f"Inductor times all of its choices: {type(e).__name__}: {e}")
            return choices

    def record_timings(
        self, timings: Mapping[Any, float], name: str, inputs: Any, choices: list[Any], *_: Any
    ) -> None:
        """Store timings (ms, infinite for failures) and the choice of the fastest."""
        try:
            with self._tuner_factory.lock:
                self._record_timings(timings)
        except Exception as e:
            warn(f"times of Inductor's {name} are not stored: {type(e).__name__}: {e}")

    def _shorten(self, choices: list[Any]) -> list[Any]:
        if len(choices) < 2:
            return choices

        # A stored choice is not timed again.
        operation = make_operation(choices)
        all_choices = self._tuner_factory.make_tuner(operation.call, operation.configs)
        stored = all_choices.rule.stored_choice()
        if stored is not None:
            return [choices[operation.configs.index(stored.config)]]
        if len(operation.templates) <= self._budget:
            return choices

        # Keep the routines, the first batch of a search, and templates that were timed before.
        tuner = self._tuner_factory.make_tuner(operation.call, operation.templates)
        loop = tuner.search.start(parallel=self._budget)
        started = next(loop).start
        self._searches[operation.call.problem] = OperationSearch(
            listed=operation.configs, tuner=tuner, loop=loop, started=started
        )
        kept_templates = {*started, *(m.config for m in tuner.history.measured())}
        left_out = {*operation.templates} - kept_templates
        return [
            choice
            for choice, config in zip(choices, operation.configs, strict=True)
            if config not in left_out
        ]

    def _record_timings(self, timings: Mapping[Any, float]) -> None:
        from foretune.tune.store import Choice

        operation = make_operation(list(timings))
        call = operation.call
        measurements = []
        for config, time_ms in zip(operation.configs, timings.values(), strict=True):
            if math.isfinite(time_ms):
                measurements.append(call.success(config, time_ms, [time_ms]))
            else:
                reason = "Inductor could not time it"
                measurements.append(call.failure(config, Status.RUNTIME_ERROR, reason))

        # The search gets the times of what it proposed, the cache all others.
        search = self._searches.pop(call.problem, None)
        started = () if search is None else search.started
        cache = self._tuner_factory.cache_of(call)
        cache.append(*(m for m in measurements if m.config not in started))
        if search is not None:
            with suppress(StopIteration):
                search.loop.send([m for m in measurements if m.config in started])
            search.tuner.history.record_pending()

        ran = [m for m in measurements if m.ok]
        if not ran:
            return
        best = min(ran, key=lambda m: m.time_ms)
        if search is None or {*search.listed} <= {*operation.configs}:
            listed = operation.configs
            choice = Choice(best.config, measured=len(measurements), regret=0.0, how="all")
        else:
            listed = search.listed
            regret = search.tuner.rule.promised_regret()
            choice = Choice(best.config, measured=len(measurements), regret=regret, how="measured")
        self._tuner_factory.make_tuner(call, listed).rule.store_choice(choice, replacing=None)


def make_operation(choices: Sequence[Any]) -> Operation:
    """Return the operation of Inductor's choices."""
    import torch

    from foretune.tune.triton.problem_key import Call

    configs = [Configuration(choice=_name(c), **_knobs(c)) for c in choices]
    templates = [config for config in configs if len(config) > 1]
    routines = [c for c, config in zip(choices, configs, strict=True) if len(config) == 1]

    # Library routines name the operation; without any, the templates do.
    naming_choices = routines or list(choices)
    name = "inductor_" + "|".join(sorted({_name(choice) for choice in naming_choices}))
    version = hashlib.sha256(torch.__version__.encode()).hexdigest()[:16]

    example = naming_choices[0]
    inputs = [_tensor(node) for node in example.input_nodes]
    output = _tensor(example.layout)
    operands = {f"input{i}": tensor for i, tensor in enumerate(inputs)}
    operands["output"] = output
    problem: dict[str, Value] = {}
    for role, tensor in operands.items():
        problem[f"{role}.dtype"] = tensor.element
        problem[f"{role}.shape"] = "×".join(map(str, tensor.shape))
        problem[f"{role}.strides"] = " ".join(map(str, tensor.strides))

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        *batch, rows, columns = output.shape
        tiles_m = math.ceil(rows / meta["BLOCK_M"])
        tiles_n = math.ceil(columns / meta["BLOCK_N"])
        return tiles_m * tiles_n, math.prod(batch), 1

    matrices = [*inputs, output][-3:]  # an addend comes first
    call = Call(
        kernel=name,
        source=version,
        problem=Problem(problem),
        arguments=dict(zip(("A", "B", "C"), matrices, strict=False)),
        device=_device(example.layout.device),
        grid=grid,
    )
    return Operation(call, configs, templates)


def _name(choice: Any) -> str:
    return COUNTER_SUFFIX.sub("", str(choice.name))


def _knobs(choice: Any) -> dict[str, Value]:
    knobs = KNOB_PATTERN.findall(choice.description or "")
    return {name: parse_value(text.strip("'\"")) for name, text in knobs}


def _tensor(node: Any) -> Any:
    """Return an operand's description; dynamic sizes become Inductor's size hints."""
    from foretune.collect.compiled.arguments import Tensor

    is_layout = hasattr(node, "size") and hasattr(node, "stride")
    layout = node if is_layout else node.get_layout()
    shape = tuple(map(_concrete_size, layout.size))
    strides = tuple(map(_concrete_size, layout.stride))
    return Tensor(str(layout.dtype).removeprefix("torch."), shape, strides)


def _concrete_size(size: Any) -> int:
    try:
        return int(size)
    except TypeError:
        from torch._inductor.virtualized import V

        return int(V.graph.sizevars.optimization_hint(size, fallback=DYNAMIC_SIZE))


def _device(device: Any) -> "Device":
    if device.type == "cpu":
        from foretune.collect.devices import local_device

        return local_device("cpu")
    from foretune.tune.triton.runtime import device_at

    return device_at(device.index or 0)
