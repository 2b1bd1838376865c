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
    from foretune.tune.store.cache import StoreLocation
    from foretune.tune.triton.call_tuner import CallTuner
    from foretune.tune.triton.problem_key import Call

COUNTER_SUFFIX = re.compile(r"_\d+$")  # counter at the end of a choice's name; it has no meaning
KNOB_PATTERN = re.compile(r"(\w+)=([^,\s]+)")


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
        for ours, functions in (
            (chooser.shorten, selector.preprocessing_fns),
            (chooser.record_timings, selector.feedback_saver_fns),
        ):
            functions[:] = [f for f in functions if f != ours]

    return undo


@dataclass(frozen=True)
class Operation:
    """An operation, its choices in Inductor's order, and those with parameters."""

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
        op = make_operation(choices)
        stored = self._tuner_factory.make_tuner(op.call, op.configs).rule.stored_choice()
        if stored is not None:
            return [choices[op.configs.index(stored.config)]]
        if len(op.templates) <= self._budget:
            return choices
        tuner = self._tuner_factory.make_tuner(op.call, op.templates)
        loop = tuner.search.start(parallel=self._budget)
        started = next(loop).start
        self._searches[op.call.problem] = OperationSearch(op.configs, tuner, loop, started)
        left_out = {*op.templates} - {*started, *(m.config for m in tuner.history.measured())}
        return [c for c, config in zip(choices, op.configs, strict=True) if config not in left_out]

    def _record_timings(self, timings: Mapping[Any, float]) -> None:
        from foretune.tune.store import Choice

        op = make_operation(list(timings))
        call, cache = op.call, self._tuner_factory.cache_of(op.call)
        rows = [
            call.success(config, time_ms, [time_ms])
            if math.isfinite(time_ms)
            else call.failure(config, Status.RUNTIME_ERROR, "Inductor could not time it")
            for config, time_ms in zip(op.configs, timings.values(), strict=True)
        ]
        search = self._searches.pop(call.problem, None)
        started = () if search is None else search.started
        cache.append(*(m for m in rows if m.config not in started))
        if search is not None:
            with suppress(StopIteration):
                search.loop.send([m for m in rows if m.config in started])
            search.tuner.history.record_pending()
        best = min((m for m in rows if m.ok), key=lambda m: m.time_ms, default=None)
        if best is None:
            return
        listed, choice = op.configs, Choice(best.config, len(rows), 0.0, "all")
        if search is not None and not {*search.listed} <= {*op.configs}:
            listed, regret = search.listed, search.tuner.rule.promised_regret()
            choice = Choice(best.config, len(rows), regret, "measured")
        self._tuner_factory.make_tuner(call, listed).rule.settle(choice)


def make_operation(choices: Sequence[Any]) -> Operation:
    """Return the operation of Inductor's choices."""
    import torch

    from foretune.tune.triton.problem_key import Call

    configs = [Configuration(choice=_name(c), **_knobs(c)) for c in choices]
    library_choices = [c for c, config in zip(choices, configs, strict=True) if len(config) == 1]
    of = (library_choices or list(choices))[0]
    operands = [_tensor(node) for node in (*of.input_nodes, of.layout)]
    problem: dict[str, Value] = {}
    for i, tensor in enumerate(operands):
        which = f"input{i}" if i < len(operands) - 1 else "output"
        problem[f"{which}.dtype"] = tensor.element
        problem[f"{which}.shape"] = "×".join(map(str, tensor.shape))
        problem[f"{which}.strides"] = " ".join(map(str, tensor.strides))
    name = "inductor_" + "|".join(sorted({_name(c) for c in library_choices or choices}))
    version = hashlib.sha256(torch.__version__.encode()).hexdigest()[:16]
    output = operands[-1].shape

    def grid(meta: Mapping[str, Any]) -> tuple[int, ...]:
        m, n = (math.ceil(s / meta[f"BLOCK_{x}"]) for s, x in zip(output[-2:], "MN", strict=True))
        return m * n, math.prod(output[:-2]), 1

    matrices = operands[-3:]  # an addend comes first
    arguments = dict(zip(("A", "B", "C"), matrices, strict=False))
    device = _device(of.layout.device)
    call = Call(name, version, Problem(problem), arguments, device, grid)
    return Operation(call, configs, [c for c in configs if len(c) > 1])


def _name(choice: Any) -> str:
    return COUNTER_SUFFIX.sub("", str(choice.name))


def _knobs(choice: Any) -> dict[str, Value]:
    found = KNOB_PATTERN.findall(choice.description or "")
    return {name: parse_value(text.strip("'\"")) for name, text in found}


def _tensor(node: Any) -> Any:
    """Return an operand's description; dynamic sizes become Inductor's size hints."""
    from foretune.collect.compiled.arguments import Tensor

    layout = node if hasattr(node, "size") and hasattr(node, "stride") else node.get_layout()
    shape, strides = (tuple(map(_concrete_size, x)) for x in (layout.size, layout.stride))
    return Tensor(str(layout.dtype).removeprefix("torch."), shape, strides)


def _concrete_size(size: Any) -> int:
    try:
        return int(size)
    except TypeError:
        from torch._inductor.virtualized import V

        return int(V.graph.sizevars.optimization_hint(size, fallback=1024))


def _device(device: Any) -> "Device":
    if device.type == "cpu":
        from foretune.collect.devices import local_device

        return local_device("cpu")
    from foretune.tune.triton.runtime import device_at

    return device_at(device.index or 0)
