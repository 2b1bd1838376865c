"""A decorator that lets a function choose its knobs on the first call of each kind.

A call is identified by what the function works on: its arguments, what the function reads beside
them, and the object of a method. The choice of a kind of call is looked up in this process, then in
the store, else the call is tuned.

A choice from the store was made in another process, on other values. So the first call here that
uses one checks it: the default and the choice both run on copies of the arguments. If they
disagree, the choice depends on something that did not count: floating-point arguments count from
then on; without any, the default runs.

What a call itself changes, such as a counter or a log, is not what it works on. A call with the
default, before the first choice, shows these variables, and they do not count.
"""

import functools
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MethodType
from typing import Any

import numpy as np

from foretune.collect.devices import local_device
from foretune.collect.worker_environment import is_worker
from foretune.collect.wrapped.call_arguments import Arguments, CallResult, FunctionLaunch
from foretune.collect.wrapped.function import FunctionKernel, OutputCheck, parameters_of
from foretune.collect.wrapped.wrapped import CostOf, Restrictions
from foretune.device import Device
from foretune.errors import ForetuneError, UsageError, describe_error, warn
from foretune.objective import ConstrainedObjective, Objective
from foretune.problem import Problem
from foretune.search.stopping import make_stopping
from foretune.support.identity import shape_of
from foretune.support.live_state import (
    LiveState,
    argument_key,
    attribute_keys,
    floats_in,
    value_key,
)
from foretune.tune.functions.result import Best
from foretune.tune.functions.tuning import TuneOptions, tune_wrapped
from foretune.tune.job import check_options
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.subject import Allowance
from foretune.tune.tuner import was_as_thorough

FIRST = "first"
"""Value of ``check``: the first call that uses a stored choice compares it with the default."""
NEVER = "never"
"""Value of ``check``: stored choices are used unchecked."""
CHECKED_FLOATS = 4
"""A choice is checked for so many different floating-point arguments; then they are only data."""
MAX_STATES = 16
"""If what a function reads has so many different values, it changes with the calls: no tuning."""
Choice = dict[str, Any]
IdentityOf = str | Callable[..., str]
"""Names what a call works on: a text, or a function of the arguments that returns one."""


class Tunable:
    """A function that chooses its knobs on the first call of each kind; see `tunable`."""

    def __init__(
        self,
        function: Callable[..., Any],
        knobs: Mapping[str, Sequence[Any]],
        kernel_options: Mapping[str, Any],
        options: TuneOptions,
    ) -> None:
        functools.update_wrapper(self, function)
        check_options(options, TuneOptions)
        self.function = function
        # A generator yields its values once, but each kind of call needs them.
        self.knobs = {
            name: tuple(values) if isinstance(values, Iterator) else values
            for name, values in knobs.items()
        }
        self._options = options
        self._kernel_options = dict(kernel_options)
        self._inputs = self._kernel_options.pop("inputs", None)
        self._identity: IdentityOf | None = self._kernel_options.pop("identity", None)
        check = self._kernel_options["check"]
        self._checks_first = not (isinstance(check, str) and check == NEVER)
        if isinstance(check, str) and check in (FIRST, NEVER):
            self._kernel_options["check"] = None

        self._chosen: dict[Hashable, Choice] = {}
        self._checked: dict[Hashable, set[tuple[float, ...]]] = defaultdict(set)
        """Floating-point arguments for which the choice of a kind of call was checked."""
        self._keys: dict[Hashable, set[Hashable]] = defaultdict(set)
        """Kinds of calls on arguments of one shape."""
        self._ignored: frozenset[str] = frozenset()
        """Variables and attributes that the function changes itself, by place."""
        self._explored: set[tuple[type, ...]] = set()
        """Classes of arguments for which these are known."""
        self._floats_are_data = True
        self._state: LiveState | None = None
        self._lock = threading.RLock()
        self._is_tuning = False

        self._positional = [
            n for n, p in parameters_of(function).items() if p.kind is p.POSITIONAL_OR_KEYWORD
        ]
        places = [i for i, name in enumerate(self._positional) if name in self.knobs]
        self._first_knob = min(places, default=len(self._positional))
        self.kernel()  # a wrong knob is refused here, not at the first call

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with the choice for a call of this kind.

        Knobs among the arguments override it.
        """
        if self._first_knob < len(args) <= len(self._positional):  # a knob without its name
            first = self._first_knob
            kwargs = dict(zip(self._positional[first:], args[first:], strict=False)) | kwargs
            args = args[:first]
        if self.knobs.keys() <= kwargs.keys():
            return self.function(*args, **kwargs)
        key = self._key(args, kwargs)
        chosen = self._chosen.get(key)
        if chosen is not None and not self._must_check(key, args, kwargs):
            return self.function(*args, **{**chosen, **kwargs})

        # The first call of a kind. The default runs at most once, on copies of the arguments: it
        # shows what a call itself changes, and what the choice must compute.
        default_output = None
        if chosen is None:
            if self._identity is None:
                explored = self._find_own_records(args, kwargs)
                default_output = explored.default_output
                if explored.has_new_records:
                    key = self._key(args, kwargs)
            chosen = self._choose(key, args, kwargs)
        if self._must_check(key, args, kwargs):
            chosen = self._check(key, chosen, args, kwargs, default_output)
        return self.function(*args, **{**chosen, **kwargs})

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind to an object, as a method of its class."""
        return self if instance is None else MethodType(self, instance)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as the plain function, because a measuring process must not tune."""
        return _itself, (self.function,)

    def tune(self, *args: Any, **kwargs: Any) -> Best:
        """Tune for these arguments now; stored measurements are reused."""
        return tune_wrapped(self.kernel(args, kwargs), self._options)

    def kernel(
        self, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
    ) -> FunctionKernel:
        """Return the function as a kernel, for these arguments or the problems of ``inputs``."""
        made = self._inputs if args is None else args
        identity = self._identity
        if callable(identity):
            identity = None if args is None else identity(*args, **(kwargs or {}))
        return FunctionKernel(
            self.function,
            self.knobs,
            () if made is None else made,
            kwargs,
            identity=identity,
            floats_are_data=self._floats_are_data,
            ignored=self._ignored,
            **self._kernel_options,
        )

    @property
    def has_inputs(self) -> bool:
        """Whether it can create arguments for a problem."""
        return self._inputs is not None

    def _key(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Hashable:
        """Return the key of a kind of call: of its arguments, and of what else is read."""
        if self._identity is not None:
            named = self._identity
            text = named if isinstance(named, str) else named(*args, **kwargs)
            given = [*args, *(value for _, value in sorted(kwargs.items()))]
            return (tuple(map(_shape_key, given)), text)
        if self._state is None:
            self._state = LiveState(self.function)
        floats_are_data = self._floats_are_data
        ignored = self._ignored
        positional = [argument_key(value, floats_are_data, ignored) for value in args]
        by_name = [
            (name, argument_key(kwargs[name], floats_are_data, ignored)) for name in sorted(kwargs)
        ]
        return (len(args), *positional, *by_name, *self._state.values(ignored))

    def _parts(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[Any, Hashable]:
        """Return the keys of everything that a call works on, by place."""
        if self._state is None:
            self._state = LiveState(self.function)
        parts: dict[Any, Hashable] = {}
        for name, value in (*enumerate(args), *sorted(kwargs.items())):
            attributes = attribute_keys(value)
            if attributes is None:
                parts[name] = value_key(value, self._floats_are_data)
            else:
                parts |= {(name, place): key for place, key in attributes.items()}
        return parts | self._state.keys()

    def _find_own_records(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> "_Explored":
        """Stop counting variables that a call itself changes: a counter, a log, a cache.

        One call with the default, on copies of the arguments, shows them.
        """
        kinds = tuple(map(type, args))
        with self._lock:
            if self._is_tuning or kinds in self._explored or is_worker():
                return _Explored()
            self._explored.add(kinds)
            own = {name: value for name, value in kwargs.items() if name not in self.knobs}
            kernel = self.kernel(args, own)
            default = kernel.decode(kernel.default(kernel.problem()))
            before = self._parts(args, kwargs)
            output = None
            self._is_tuning = True
            try:
                with _same_random_numbers(), suppress(Exception):  # the call itself will fail, too
                    output = FunctionLaunch(self.function, default, Arguments(args, own)).once()
            finally:
                self._is_tuning = False
            after = self._parts(args, kwargs)
            changed = {place for place in before if after.get(place) != before[place]}
            own_records = {place[1] for place in changed if isinstance(place, tuple)}
            self._ignored |= own_records
            return _Explored(has_new_records=bool(own_records), default_output=output)

    def _choose(self, key: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Choice:
        """Return the choice for a kind of call that is new in this process."""
        with self._lock:
            if key in self._chosen:
                return self._chosen[key]
            self._state = None  # it may read other functions now
            kernel = self.kernel(args, {n: v for n, v in kwargs.items() if n not in self.knobs})
            default = kernel.decode(kernel.default(kernel.problem()))
            if self._is_tuning:  # it calls itself while it is measured in this process
                return default
            if self._changes_with_calls(kernel.name, args, key):
                return default
            self._is_tuning = True
            try:
                chosen, is_new = self._stored_or_tuned(kernel, default)
            except UsageError:
                raise
            except ForetuneError as e:
                warn(f"{kernel.name} runs with its default: {e}", stacklevel=4)
                chosen, is_new = default, True
            finally:
                self._is_tuning = False
            if is_new:  # its output was compared with the default's on these arguments
                self._checked[key].add(tuple(floats_in((args, kwargs))))
            self._chosen[key] = chosen
            return chosen

    def _stored_or_tuned(self, kernel: FunctionKernel, default: Choice) -> tuple[Choice, bool]:
        """Return the choice, and whether it was made now."""
        stored = None if kernel.unreadable else self._stored_choice(kernel, kernel.problem())
        if stored is not None:
            return stored, False
        if is_worker():  # within a measurement of another one
            return default, True
        best = tune_wrapped(kernel, self._options)
        if self._options.get("progress", True) is True:  # nobody else will say it
            print(best.headline, file=sys.stderr)
        return best.config, True

    def _stored_choice(self, kernel: FunctionKernel, problem: Problem) -> Choice | None:
        """Return the stored choice, which any process may have made."""
        if self._options.get("limits"):
            return None
        objective = ConstrainedObjective(Objective(self._options.get("objective", "time")), ())
        device = _device(self._options.get("device", "cpu"))
        space = kernel.space(problem)
        cache = MeasurementCache.for_kernel(kernel, device, self._options.get("store"))
        choice = cache.choice(problem, objective, among=space)
        if choice is None:
            return None
        wanted = self._wanted_allowance()
        if wanted is not None and not was_as_thorough(choice, wanted, len(space)):
            return None
        return kernel.decode(choice.config)

    def _wanted_allowance(self) -> Allowance | None:
        """Return what the options allow to spend; None if they do not say."""
        budget = self._options.get("budget")
        seconds = self._options.get("seconds")
        regret = self._options.get("regret")
        if budget is None and seconds is None and regret is None:
            return None
        stopping = make_stopping(budget, regret, seconds)
        return Allowance(stopping.measurements, stopping.seconds, stopping.regret)

    def _changes_with_calls(self, name: str, args: tuple[Any, ...], key: Hashable) -> bool:
        """Whether what the function reads is new in too many calls on arguments of one shape."""
        keys = self._keys[tuple(map(_shape_key, args))]
        keys.add(key)
        if len(keys) <= MAX_STATES:
            return False
        if len(keys) == MAX_STATES + 1:
            warn(
                f"{name} runs with its default for new work: what it reads had {MAX_STATES} "
                "different values, and each counts as other work; name the work with identity=",
                stacklevel=5,
            )
        return True

    def _must_check(self, key: Hashable, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        if not self._checks_first or key not in self._chosen or self._is_tuning:
            return False
        checked = self._checked[key]
        return len(checked) < CHECKED_FLOATS and tuple(floats_in((args, kwargs))) not in checked

    def _check(
        self,
        key: Hashable,
        chosen: Choice,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        default_output: CallResult | None,
    ) -> Choice:
        """Return the choice if it gives the default's output on these arguments; else another."""
        with self._lock:
            floats = tuple(floats_in((args, kwargs)))
            own = {name: value for name, value in kwargs.items() if name not in self.knobs}
            kernel = self.kernel(args, own)
            default = kernel.decode(kernel.default(kernel.problem()))
            self._checked[key].add(floats)
            if chosen == default:
                return chosen
            self._is_tuning = True
            try:
                with _same_random_numbers():
                    reason = _disagreement(kernel, args, own, chosen, default_output)
            finally:
                self._is_tuning = False
            if not reason:
                return chosen

            text = ", ".join(f"{name}={value}" for name, value in chosen.items())
            if floats and self._floats_are_data:
                warn(
                    f"{kernel.name}: {text} was chosen for other values, and is wrong for these "
                    f"({reason}): floating-point arguments count from now on",
                    stacklevel=4,
                )
                self._floats_are_data = False
                self._chosen.clear()
                self._checked.clear()
                return self._choose(self._key(args, kwargs), args, kwargs)
            warn(
                f"{kernel.name} runs with its default here: its stored choice, {text}, is wrong "
                f"for these arguments ({reason})",
                stacklevel=4,
            )
            self._chosen[key] = default
            return default


def tunable(
    more_knobs: Mapping[str, Sequence[Any]] = {},
    /,
    *,
    inputs: Callable[..., Sequence[Any]] | None = None,
    check: Any = FIRST,
    verify: OutputCheck | None = None,
    tolerance: float | None = None,
    restrictions: Restrictions = None,
    default: Mapping[str, Any] | None = None,
    name: str | None = None,
    cost: CostOf | None = None,
    pinned: Sequence[str] = (),
    identity: IdentityOf | None = None,
    options: TuneOptions | None = None,
    **knobs: Sequence[Any],
) -> Callable[[Callable[..., Any]], Tunable]:
    """Let a function choose some of its arguments on the first call of each kind.

    ::

        @foretune.tunable(block=[16, 32, 64], unroll=[1, 2, 4])
        def smooth(image, block=32, unroll=1): ...

    The choice is stored, so the next process measures nothing. Calls are of one kind if they do the
    same work: arrays count by shape, type and layout; everything else by content, also what the
    function reads beside its arguments (globals, closure, the object of a method). Floating-point
    numbers are data and do not count. If tuning fails, the function runs with its defaults, after
    one warning.

    ``check="first"``, the default, checks a stored choice on the first call in a process that uses
    it: default and choice both run on copies of the arguments. If they disagree, floating-point
    arguments count from then on, and a warning says so. ``check="never"`` does not. A function or
    an output is the reference, as in `foretune.tune_function`.

    ``identity`` names what the function works on, instead of all that it reads: a text, or a
    function of the arguments that returns one. Use it if something cannot be read, or changes with
    every call although the work is the same.

    ``more_knobs`` are for knobs with names that this decorator uses. ``inputs`` returns arguments
    for sizes (``inputs(N=4096)``), for ``foretune tune FILE:NAME``. ``options`` are those of
    `TuneOptions`; the others are those of `foretune.tune_function`. ``default`` is used until there
    is a choice. Raises UsageError if the function takes no argument of a knob's name.
    """
    kernel_options = {
        "inputs": inputs,
        "check": check,
        "verify": verify,
        "tolerance": tolerance,
        "restrictions": restrictions,
        "default": default,
        "name": name,
        "cost": cost,
        "pinned": pinned,
        "identity": identity,
    }

    def wrap(function: Callable[..., Any]) -> Tunable:
        if not callable(function):
            raise UsageError("write @foretune.tunable(block=[…]) with the knobs in brackets")
        return Tunable(function, {**more_knobs, **knobs}, kernel_options, options or {})

    return wrap


@dataclass(frozen=True)
class _Explored:
    """What one call with the default showed; its output is None if it did not run, or failed."""

    has_new_records: bool = False
    default_output: CallResult | None = None


def _disagreement(
    kernel: FunctionKernel,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    chosen: Choice,
    default_output: CallResult | None,
) -> str:
    """Return why a choice is wrong on these arguments; empty if it is right, or nobody can tell."""
    if default_output is None:
        default = kernel.decode(kernel.default(kernel.problem()))
        try:
            default_output = FunctionLaunch(
                kernel.function, default, Arguments(args, kwargs)
            ).once()
        except Exception:  # the default fails on these arguments, as the call itself will
            return ""
    try:
        output = FunctionLaunch(kernel.function, chosen, Arguments(args, kwargs)).once()
    except Exception as e:
        return describe_error(e)
    inputs = {"args": args, "kwargs": dict(kwargs)}
    try:
        return kernel.disagreement(inputs, output, default_output)
    except Exception as e:
        return describe_error(e)


@contextmanager
def _same_random_numbers() -> Iterator[None]:
    """Put the global random generators back: a check must not change what the caller draws."""
    # The user's generators, not ours.
    python = random.getstate()
    of_numpy = np.random.get_state()  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def _shape_key(value: Any) -> Hashable:
    """Return what is always known of an argument: a plain value, or shape and type."""
    if isinstance(value, bool | int | str):
        return value
    return (type(value), str(getattr(value, "dtype", "")), shape_of(value))


def _itself(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


@functools.cache
def _device(name: str) -> Device:
    return local_device(name, measure=False)
