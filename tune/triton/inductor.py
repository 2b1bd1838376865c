"""`torch.compile(mode="max-autotune")`: Inductor measures few of its choices, and remembers them.

Inductor lists what can compute an operation, routines of libraries and templates with different
tiles, compiles and times all of them, and takes the quickest. Here templates are predicted first,
only the best predicted are kept on the list, and what they took goes to the store. An operation
that was decided before, in any process, is not timed again.
"""

import hashlib
import math
import os
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foretune.errors import ForetuneWarning, UsageError
from foretune.lazy import require
from foretune.values import Value, parse_value

if TYPE_CHECKING:
    from foretune.device import Device
    from foretune.space import Configuration
    from foretune.tune.store import Store
    from foretune.tune.triton.problem_key import Call

COUNTER_SUFFIX = re.compile(r"_\d+$")
"""Numbers at the end of names count what was listed; they say nothing."""
KNOB_PATTERN = re.compile(r"(\w+)=([^,\s]+)")


def patch_inductor(
    budget: int = 4, store: "Store | str | os.PathLike[str] | bool | None" = None
) -> Callable[[], None]:
    """Let Inductor time its libraries' routines and ``budget`` templates per operation.

    Args:
        budget: templates that are timed, of those whose times nobody knows.
        store: path or URL of the store; None is the user's own, False none.

    Returns:
        what undoes it.

    Raises:
        UsageError: ``budget`` is not positive, or this torch cannot be asked.
        MissingExtra: torch or Triton is not installed.
    """
    require("torch", "gpu", "patching Inductor")
    require("triton", "gpu", "patching Inductor")
    from torch._inductor import select_algorithm

    if not hasattr(select_algorithm, "add_preprocessing_fn"):
        import torch

        raise UsageError(
            f"Inductor of torch {torch.__version__} cannot be asked: install a newer one"
        )
    if budget < 1:
        raise UsageError(f"budget is {budget}: at least one template must be timed")
    chooser = InductorChooser(budget, store)
    select_algorithm.add_preprocessing_fn(chooser.shorten)
    select_algorithm.add_feedback_saver(chooser.record_timings)

    def undo() -> None:
        selector: Any = select_algorithm.get_algorithm_selector_cache()
        selector.preprocessing_fns[:] = [
            f for f in selector.preprocessing_fns if f != chooser.shorten
        ]
        selector.feedback_saver_fns[:] = [
            f for f in selector.feedback_saver_fns if f != chooser.record_timings
        ]

    return undo


@dataclass(frozen=True)
class Operation:
    """An operation that Inductor chooses for.

    Attributes:
        call: the operation, as calls of kernels are known.
        configs: its choices, in Inductor's order.
        templates: which of them have knobs.
    """

    call: "Call"
    configs: list["Configuration"]
    templates: list["Configuration"]


class InductorChooser:
    """Shortens lists of choices, and learns from what was timed.

    Args:
        budget: templates that are timed.
        store: where it is remembered.
    """

    def __init__(self, budget: int, store: "Store | str | os.PathLike[str] | bool | None") -> None:
        from foretune.tune.triton.choice import CallTunerFactory
        from foretune.tune.triton.options import Options

        self._budget = budget
        self._tuner_factory = CallTunerFactory(Options(budget=budget, store=store))
        self._candidates_by_problem: dict[Any, list[Configuration]] = {}

    def shorten(self, choices: list[Any]) -> list[Any]:
        """Return those of Inductor's choices that are to be timed; one if that is decided."""
        try:
            return self._shorten(choices)
        except Exception as e:  # Inductor then does what it would have done
            _warn(f"Inductor times all of its choices: {type(e).__name__}: {e}")
            return choices

    def record_timings(
        self, timings: Mapping[Any, float], name: str, inputs: Any, choices: list[Any], *_: Any
    ) -> None:
        """Remember what choices took: milliseconds, infinite where one failed."""
        try:
            self._record_timings(timings)
        except Exception as e:
            _warn(f"times of Inductor's {name} are not kept: {type(e).__name__}: {e}")

    def _shorten(self, choices: list[Any]) -> list[Any]:
        from foretune.tune.triton.call_cache import find_choice

        if len(choices) < 2:
            return choices
        op = make_operation(choices)
        self._candidates_by_problem[op.call.problem] = op.configs
        with self._tuner_factory.lock:
            cache = self._tuner_factory.caches.cache_of(op.call)
            decided = find_choice(cache, op.call, op.configs, self._tuner_factory.options)
            if decided is not None:
                return [choices[op.configs.index(decided.config)]]
            if len(op.templates) <= self._budget:
                return choices
            tuner = self._tuner_factory.make_tuner(op.call, op.templates)
            kept = set(tuner.promising(self._budget)) | {m.config for m in tuner.measured()}
        named = zip(choices, op.configs, strict=True)
        return [c for c, config in named if config in kept or config not in op.templates]

    def _record_timings(self, timings: Mapping[Any, float]) -> None:
        from foretune.measurement import Status
        from foretune.tune.store import Choice
        from foretune.tune.store.subject import ChoiceMethod
        from foretune.tune.triton.call_cache import settle

        op = make_operation(list(timings))
        call, factory = op.call, self._tuner_factory
        cache = factory.caches.cache_of(call)
        rows = [
            call.success(config, time_ms, [time_ms])
            if math.isfinite(time_ms)
            else call.failure(config, Status.RUNTIME_ERROR, "Inductor could not time it")
            for config, time_ms in zip(op.configs, timings.values(), strict=True)
        ]
        with self._tuner_factory.lock:
            cache.append(*rows)
            ran = [m for m in rows if m.ok]
            if not ran:
                return
            best = min(ran, key=lambda m: m.time_ms)
            listed = self._candidates_by_problem.get(call.problem, op.configs)
            left = [c for c in listed if c not in op.configs]
            regret = 0.0
            if left:
                tuner = self._tuner_factory.make_tuner(call, [*op.templates, *left])
                forecast = float(tuner.searcher.search_posterior.expected_regret)
                regret = forecast if math.isfinite(forecast) else math.nan
            how: ChoiceMethod = "measured" if left else "all"
            choice = Choice(best.config, len(rows), regret, how)
            settle(cache, call, listed, factory.options, choice)


def make_operation(choices: Sequence[Any]) -> Operation:
    """Return what Inductor's choices are for."""
    import torch

    from foretune.collect.compiled.arguments import Tensor
    from foretune.problem import Problem
    from foretune.space import Configuration
    from foretune.tune.triton.problem_key import Call

    configs = [Configuration(choice=_name(c), **_knobs(c)) for c in choices]
    library_choices = [c for c, config in zip(choices, configs, strict=True) if len(config) == 1]
    of = (library_choices or list(choices))[0]
    operands = [_tensor(node, Tensor) for node in (*of.input_nodes, of.layout)]
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

    matrices = operands[-3:]  # what is added comes first
    arguments = dict(zip(("A", "B", "C"), matrices, strict=False))
    device = _device(of.layout.device)
    call = Call(name, version, Problem(problem), arguments, device, grid)
    return Operation(call, configs, [c for c in configs if len(c) > 1])


def _name(choice: Any) -> str:
    return COUNTER_SUFFIX.sub("", str(choice.name))


def _knobs(choice: Any) -> dict[str, Value]:
    found = KNOB_PATTERN.findall(choice.description or "")
    return {name: parse_value(text.strip("'\"")) for name, text in found}


def _tensor(node: Any, kind: Any) -> Any:
    """Return an operand as it is described; of sizes that vary, what Inductor takes for typical."""
    layout = node if hasattr(node, "size") and hasattr(node, "stride") else node.get_layout()
    shape, strides = (
        tuple(map(_concrete_size, layout.size)),
        tuple(map(_concrete_size, layout.stride)),
    )
    return kind(str(layout.dtype).removeprefix("torch."), shape, strides)


def _concrete_size(size: Any) -> int:
    try:
        return int(size)
    except TypeError:
        from torch._inductor.virtualized import V

        return int(V.graph.sizevars.optimization_hint(size, fallback=1024))


def _device(device: Any) -> "Device":
    if device.type == "cpu":
        from foretune.collect import local_device

        return local_device("cpu")
    from foretune.tune.triton.runtime import device_at

    return device_at(device.index or 0)


def _warn(text: str) -> None:
    warnings.warn(text, ForetuneWarning, stacklevel=3)
