"""A Python function with keyword arguments as knobs: NumPy, Numba, torch, anything."""

import inspect
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped import whole_numbers
from foretune.collect.wrapped.call_arguments import (
    Arguments,
    CallResult,
    ExpectedResult,
    FunctionLaunch,
)
from foretune.collect.wrapped.knob_values import KnobValues
from foretune.collect.wrapped.library_settings import apply_settings, present_settings
from foretune.collect.wrapped.new_values import (
    GIVEN_VALUES,
    DrawnKinds,
    NewValues,
    find_new_values,
    time_limit,
)
from foretune.collect.wrapped.output_comparison import (
    ComparisonRules,
    output_error,
    without_values,
)
from foretune.collect.wrapped.problem_of_arguments import ArgumentsProblem, problem_of_arguments
from foretune.collect.wrapped.special_values import SPECIAL_VALUES, SpecialValues
from foretune.collect.wrapped.user_check import require_accepted
from foretune.collect.wrapped.wrapped import CostOf, Restrictions, WrappedKernel, check_mapping
from foretune.errors import MeasurementError, UsageError, describe_error, first_line, warn
from foretune.kernel import Inputs, Launch, SpecialInputs, WrongResult, latin_hypercube_problems
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration
from foretune.support.identity import NOTHING, identify, name_work, unique_digest
from foretune.values import Value

MIN_ACCEPTANCE_S = 1.0
ACCEPTANCE_FACTOR = 20.0
"""The default accepts new values if it ends within so many times its usual seconds."""
MAX_SIGNATURES = 256
"""Signatures that are kept: reading one takes longer than a short call."""
OutputCheck = Callable[[Any, Any], bool]
"""Judges an output: called with the reference and the output."""


class FunctionKernel(WrappedKernel):
    """A function whose knobs are some of its keyword arguments.

    It may return its output, write it into its arguments, or both. Parameters are those of
    `foretune.tune_function`. ``verify`` gets outputs as the function returns them; a list, if it
    also writes into its arguments. ``device_kind`` is ``gpu`` if the function launches work on
    torch's current GPU. Raises UsageError if the function takes no argument of a knob's name, or
    the default is not in the space.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        knobs: Mapping[str, Sequence[Any]],
        args: Sequence[Any] | Callable[..., Sequence[Any]] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        check: Any = None,
        verify: OutputCheck | None = None,
        tolerance: float | None = None,
        restrictions: Restrictions = None,
        default: Mapping[str, Any] | None = None,
        name: str | None = None,
        cost: CostOf | None = None,
        device_kind: Literal["cpu", "gpu"] = "cpu",
        pinned: Sequence[str] = (),
        identity: str | None = None,
        floats_are_data: bool = True,
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        function_name = str(getattr(function, "__name__", type(function).__name__))
        name = name or ("function" if function_name == "<lambda>" else function_name)
        parameters = parameters_of(function)
        _check_knobs(name, knobs, parameters)
        self.knob_values = KnobValues(knobs)
        kwargs = dict(kwargs or {})
        if arrays.is_array(args) or isinstance(args, str):
            raise UsageError(f"the arguments of {name} are not a tuple: write args=(x,)")
        named = _named_arguments(parameters, () if callable(args) else tuple(args), kwargs)
        # What the function reads: its code and captured values here, its arguments in the problem.
        if callable(args):
            problem = ArgumentsProblem({})
            made_by = identify((args, kwargs), owner=f"args or kwargs of {name}")
        else:
            problem = problem_of_arguments(
                *named,
                floats_are_data=floats_are_data,
                is_named=identity is not None,
                ignored=ignored,
            )
            made_by = NOTHING
        works = [
            name_work(function, identity)
            if identity is not None
            else identify(function, owner=name, ignored=ignored),
            made_by,
            identify(verify, owner=f"verify of {name}"),
        ]
        works += [
            identify(value, owner=f"a knob of {name}") for value in self.knob_values.functions
        ]
        if check is None or callable(check):
            works.append(identify(check, owner=f"the check of {name}"))
            right = None
        else:
            right = arrays.content_hash(check)
        # Work that cannot be read completely has a code of its own: nothing is reused for it.
        unreadable = (*problem.unreadable, *(part for work in works for part in work.unreadable))
        self.unreadable = unreadable if identity is None else ()
        only_here = unique_digest() if self.unreadable else ""
        digests = [work.digest for work in works]
        self._settings = present_settings()
        code = repr((digests, only_here, name, right, tolerance, self._settings))
        super().__init__(
            name,
            self.knob_values.listed,
            self.knob_values.decode_rules(restrictions),
            None if default is None else self.knob_values.encode(default),
            problem.values,
            code,
            cost,
        )
        self.function = function
        self.args = args if callable(args) else tuple(args)
        self.kwargs = kwargs
        self.check, self.verify = check, verify
        self.accepted_error = tolerance
        self._has_output = False
        self.device_kind = device_kind
        self.pinned = _check_pinned(name, pinned, {*parameters, *kwargs})
        self._draws: dict[Problem, NewValues] = {}
        self._take_default({k: p.default for k, p in parameters.items() if k in knobs})
        if callable(args):
            self.problem_parameters = _problem_parameters(args)

    def prepare_process(self) -> None:
        """Take over the settings of libraries from the process that made this kernel."""
        apply_settings(self._settings)

    def _take_default(self, defaults: dict[str, Any]) -> None:
        """Take the function's own default, unless one is given; warn if the space lacks it."""
        complete = inspect.Parameter.empty not in defaults.values()
        if self._default is not None or not complete or len(defaults) < len(self.knobs):
            return
        encoded = self.knob_values.encode(defaults)
        if encoded in self._space:
            self._default = Configuration(encoded)
            return
        text = ", ".join(f"{knob}={value}" for knob, value in defaults.items())
        warn(
            f"{self.name}'s own default, {text}, is not among its configurations: add it, or "
            "winners are compared with another configuration",
            stacklevel=4,
        )

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return problems around the default sizes of ``args``, or the only problem."""
        if not callable(self.args):
            return super().training_problems(n, seed)
        sizes = {p.name: p.default for p in self.problem_parameters}
        if missing := [name for name, value in sizes.items() if value is None]:
            raise UsageError(
                f"the inputs of {self.name} have no default {', '.join(missing)} to draw problems "
                "around: give them defaults, or list the problems"
            )
        choices = {
            name: tuple(dict.fromkeys(max(1, round(value * 2 ** (i / 8))) for i in range(-16, 9)))
            if type(value) is int
            else (value,)
            for name, value in sizes.items()
        }
        return latin_hypercube_problems(self, choices, n, seed)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return the initial arguments; with a seed other than 0, similar ones with other values.

        Arrays, tensors and lists are redrawn, unless they are pinned or ``check`` is the output
        itself: see `NewValues`. If the default fails on other values, or gives new NaN, the
        arguments stay as given. A function ``args`` that takes ``seed`` draws the values itself.
        """
        given = self._given(problem, seed)
        if seed == 0 or not (self.check is None or callable(self.check)):
            return given
        return self._redrawn(given, seed, self._draws_of(problem))

    def _draws_of(self, problem: Problem) -> NewValues:
        """Return how arguments are drawn: the first way that the default accepts."""
        if problem not in self._draws:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._draws[problem] = find_new_values(
                    self._drawn_kinds(problem), partial(self._accepts, problem)
                )
        return self._draws[problem]

    def ways_to_draw(self, problem: Problem) -> tuple[str, ...]:
        """Return how arguments get new values, by name; the default runs."""
        if not (self.check is None or callable(self.check)):
            return NewValues().names
        return self._draws_of(problem).names

    def draw_in(self, problem: Problem, ways: Sequence[str]) -> None:
        """Draw new values in the ways that the default accepted in another process."""
        self._draws[problem] = NewValues.from_names(ways)

    def _drawn_kinds(self, problem: Problem) -> DrawnKinds:
        """Return which kinds of numbers the arguments that may be drawn have."""
        given = self._given(problem, 1)
        return DrawnKinds(
            fractions=self._changes(given, NewValues(arrays.blend)),
            whole_numbers=self._changes(given, NewValues(whole=whole_numbers.change)),
        )

    def _changes(self, given: Inputs, draws: NewValues) -> bool:
        pairs = zip(
            arrays.leaves(self._redrawn(given, 1, draws)), arrays.leaves(given), strict=True
        )
        return any(new is not old for new, old in pairs)

    def special_inputs(self, problem: Problem, rng: np.random.Generator) -> Iterator[SpecialInputs]:
        """Yield arguments with zeros, large values, NaN and others, if the default accepts them."""
        if not (self.check is None or callable(self.check)):
            return
        for number in rng.permutation(len(SPECIAL_VALUES)):
            special = SPECIAL_VALUES[number]
            seed = int(rng.integers(1, 2**31))
            with warnings.catch_warnings(), suppress(Exception), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                if inputs := self._special_inputs(problem, special, seed):
                    yield inputs

    def accepts(self, problem: Problem, special: SpecialValues, seed: int) -> bool:
        """Whether the default accepts special values; it runs."""
        if not (self.check is None or callable(self.check)):
            return False
        with warnings.catch_warnings(), suppress(Exception), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return self._special_inputs(problem, special, seed) is not None
        return False

    def inputs_with(self, problem: Problem, special: SpecialValues, seed: int) -> Inputs:
        """Return arguments with special values; the default does not run if it is known how."""
        draws = NewValues(special.draw, self._draws_of(problem).whole)
        given = self._given(problem, seed)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            return self._redrawn(given, seed, draws, also_drawn=True)

    def describe_values(self, problem: Problem) -> str:
        """Return on which values a verification rests."""
        if not (self.check is None or callable(self.check)):
            return f"{GIVEN_VALUES}, because check= is an output"
        takes_seed = callable(self.args) and "seed" in parameters_of(self.args)
        draws = self._draws_of(problem)
        kinds = self._drawn_kinds(problem)
        if takes_seed and not (draws.fractions or draws.whole):
            return "new values in every round"
        return draws.describe(kinds)

    def _given(self, problem: Problem, seed: int) -> Inputs:
        if not callable(self.args):
            return {"args": self.args, "kwargs": self.kwargs}
        taken = parameters_of(self.args)
        values = {n: v for n, v in {**problem, "seed": seed}.items() if n in taken}
        made = self.args(**values)
        return {"args": made if isinstance(made, tuple) else (made,), "kwargs": self.kwargs}

    def _redrawn(
        self, given: Inputs, seed: int, draws: NewValues, *, also_drawn: bool = False
    ) -> Inputs:
        """Return the arguments with new values.

        ``also_drawn`` includes those that a function ``args`` has drawn.
        """
        args, kwargs = given["args"], given["kwargs"]
        names, values = _named_arguments(parameters_of(self.function), args, kwargs)
        takes_seed = callable(self.args) and "seed" in parameters_of(self.args)
        drawn = len(args) if takes_seed and not also_drawn else 0
        free = [i for i, name in enumerate(names) if i >= drawn and name not in self.pinned]
        new_values = arrays.redraw(
            [values[i] for i in free], draws.fractions, seed, whole=draws.whole
        )
        for i, new in zip(free, new_values, strict=True):
            values[i] = new
        return {
            "args": tuple(values[: len(args)]),
            "kwargs": dict(zip(kwargs, values[len(args) :], strict=True)),
        }

    def _accepts(self, problem: Problem, draws: NewValues) -> bool:
        """Whether the default gives correct output on redrawn arguments, without new NaN."""
        given = self._given(problem, 1)
        start = time.perf_counter()
        before = self._bind(self.default(Problem()), given)().copy()
        usual_s = time.perf_counter() - start

        # A loop that follows indices may never end on others.
        inputs = self._redrawn(given, 1, draws)
        with time_limit(max(MIN_ACCEPTANCE_S, ACCEPTANCE_FACTOR * usual_s)):
            output = self._bind(self.default(Problem()), inputs)().copy()
        right = output if self.check is None else self.reference(inputs)
        counts = [arrays.count_nan((o.returned, o.written)) for o in (output, before)]
        self._has_output |= before.returned is not None or bool(before.written)
        return counts[0] <= counts[1] and self.relative_error(output, right) < math.inf

    def _special_inputs(
        self, problem: Problem, special: SpecialValues, seed: int
    ) -> SpecialInputs | None:
        """Return inputs with special values; None if the default does not accept them.

        It must not fail. Finite values must give no new infinities or NaN, others few of them.
        """
        given = self._given(problem, seed)
        if not self._changes(given, NewValues(special.draw)):
            return None  # there are no fractions
        inputs = self.inputs_with(problem, special, seed)
        output, usual = (
            self._bind(self.default(Problem()), values)().copy() for values in (inputs, given)
        )
        new, old = (arrays.count_infinite((o.returned, o.written)) for o in (output, usual))
        if special.finite and new > old:
            return None
        # A sum of infinities may be infinite or NaN, depending on the order: only what stays in a
        # part of the output is checked.
        numbers = arrays.count_numbers(output.returned, output.written)
        if not (special.finite or special.spreads) and new > numbers / 2:
            return None
        says_something = arrays.says_something((output.returned, output.written))
        if not (says_something or special.spreads):
            return None
        expected = self.reference(inputs)
        expected.shift = special.shift
        self.relative_error(output, expected)  # the default agrees with its check
        return SpecialInputs(special.name, inputs, expected)

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Return the call; a function that compiles at its first call compiles during the check."""
        return self._bind(config, inputs)

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return infinity: `relative_error` itself refuses outputs, by type of number."""
        return math.inf

    def reference(self, inputs: Inputs) -> ExpectedResult:
        """Return the output of ``check``, or that of the default.

        Raises MeasurementError if the default fails, has no output, or differs between two calls.
        """
        arguments = Arguments(inputs["args"], inputs["kwargs"])
        if self.check is None:
            right = self._default_output(inputs)
            layout: CallResult | None = right
        else:
            right = self._output_of_check(arguments)
            layout = self._layout(inputs)
        return ExpectedResult(
            right.returned,
            right.written,
            effects=layout.effects if layout else frozenset(),
            layout=layout,
            input_elements=arguments.elements,
        )

    def disagreement(self, inputs: Inputs, output: CallResult, default_output: CallResult) -> str:
        """Return why an output on these arguments is wrong; empty if it is right.

        ``default_output`` is the default's. The default runs again only if they differ, because it
        may differ from itself: then nobody can tell, and the text is empty.
        """
        arguments = Arguments(inputs["args"], inputs["kwargs"])
        right = default_output
        if self.check is not None:
            right = self._output_of_check(arguments)
        expected = ExpectedResult(
            right.returned,
            right.written,
            effects=default_output.effects,
            layout=None if self.verify is not None else default_output,
            input_elements=arguments.elements,
        )
        try:
            error = self.relative_error(output, expected)
        except (WrongResult, MeasurementError) as e:
            return first_line(e) if self._repeats(inputs, default_output) else ""
        limit = self.error_limit(Problem(), self.default(Problem()))
        return "" if error <= limit else f"relative difference {error:.2g}"

    def _repeats(self, inputs: Inputs, default_output: CallResult) -> bool:
        """Whether the default gives this output again."""
        if self.verify is not None:
            return True
        try:
            self._check_repeated(default_output, self._bind(self.default(Problem()), inputs).once())
        except MeasurementError:
            return False
        return True

    def _layout(self, inputs: Inputs) -> CallResult | None:
        """Return the default's output, whose classes count; None if the default fails."""
        if self.verify is not None:
            return None
        try:
            launch = self._bind(self.default(Problem()), inputs)
            _ = launch()
            return launch().copy()
        except Exception:  # it is refused where it is measured
            return None

    def _output_of_check(self, arguments: Arguments) -> CallResult:
        if not callable(self.check):
            return CallResult(self.check, {})
        try:
            returned = self.check(*arguments.args, **arguments.kwargs)
        except Exception as e:
            raise MeasurementError(
                f"the check of {self.name} fails: {describe_error(e)}; it gets the arguments "
                "without knobs"
            ) from e
        written = {} if returned is not None else arguments.written()
        if returned is None and not written:
            raise MeasurementError(
                f"the check of {self.name} returns nothing and writes nothing: return the correct "
                "output"
            )
        return CallResult(returned, written)

    def relative_error(self, output: Any, expected: Any) -> float:
        """Return the difference from the reference; raise WrongResult for an invalid output."""
        if self.verify is None:
            return self._checked_error(output, expected)
        got, right = self._comparable(output, expected)
        if len(got) == len(right) == 1:  # as the function returned it
            (got,), (right,) = got, right
        require_accepted(self.verify, right, got)
        return 0.0

    def _checked_error(self, output: CallResult, expected: CallResult) -> float:
        """Return the relative error; raise WrongResult for any other difference."""
        is_own_output = self.check is None
        layout = getattr(expected, "layout", None)
        rules = ComparisonRules(
            tolerance=self.accepted_error,
            input_elements=getattr(expected, "input_elements", 1),
            shift=getattr(expected, "shift", 1.0),
            exact_types=is_own_output,
        )
        changed = layout if layout is not None else expected if is_own_output else None
        if changed is not None and (added := sorted({*output.written} - {*changed.written})):
            raise WrongResult(
                f"it changes array {added[0]} of its arguments, which the default leaves unchanged"
            )
        error = self._largest_difference(output, expected, rules)
        if layout is None:
            return error

        # What a check returns may be of another class or type; the default's result is not.
        if not is_own_output:
            types = without_values(rules)
            self._difference(output.returned, layout.returned, types, "the output")
        if effects := sorted(output.effects - layout.effects):
            raise WrongResult(f"{effects[0]}, unlike the default")
        return error

    def invalidate_output(self, output: Any) -> None:
        """Overwrite the returned arrays; written arguments are reset before the next call."""
        for leaf in arrays.leaves(output.returned):
            if isinstance(leaf, np.ndarray) and not leaf.flags.writeable:
                continue
            if isinstance(leaf, np.ndarray):
                super().invalidate_output(leaf)
            elif arrays.is_tensor(leaf) and str(leaf.layout) != "torch.strided":
                continue
            elif arrays.is_tensor(leaf) and (leaf.is_floating_point() or leaf.is_complex()):
                leaf.detach().fill_(float("nan"))
            elif arrays.is_tensor(leaf):
                leaf.bitwise_not_()
            elif isinstance(leaf, list):
                leaf[:] = [float("nan")] * len(leaf)

    def _bind(self, config: Configuration, inputs: Inputs) -> FunctionLaunch:
        arguments = Arguments(inputs["args"], inputs["kwargs"])
        return FunctionLaunch(self.function, self.decode(config), arguments)

    def decode(self, config: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values with which the function is called."""
        return self.knob_values.decode(config)

    def _default_output(self, inputs: Inputs) -> CallResult:
        config = self.default(Problem())
        try:
            launch = self._bind(config, inputs)
            first = launch().copy()
            again = launch().copy()
        except Exception as e:
            raise MeasurementError(
                f"{describe_error(e)}; give another default, or fix the arguments"
            ) from e
        self._has_output |= first.returned is not None or bool(first.written)
        if not self._has_output and not self._writes_given_arguments():
            raise MeasurementError(
                f"{self.name} returns nothing and changes none of its arguments: it must do one of "
                "the two, so that its output can be checked"
            )
        if self.verify is None:
            self._check_repeated(first, again)
        return again

    def _writes_given_arguments(self) -> bool:
        """Whether the default changes the given arguments; for other values it may change none."""
        try:
            given = self._given(self.problem(), 0)
            self._has_output = bool(self._bind(self.default(Problem()), given)().written)
        except Exception:  # the arguments depend on a problem without defaults
            return False
        return self._has_output

    def _check_repeated(self, first: CallResult, again: CallResult) -> None:
        """Raise MeasurementError if the default differs between two calls."""
        rules = ComparisonRules(tolerance=self.accepted_error)
        try:
            self._largest_difference(again, first, rules)
        except WrongResult as e:
            raise MeasurementError(
                f"{self.name} gives different outputs for the same arguments ({e}): fix its seed, "
                "or give a function that judges outputs, verify="
            ) from e

    def _largest_difference(
        self, output: CallResult, expected: CallResult, rules: ComparisonRules
    ) -> float:
        """Return the largest relative error of the returned value and of the written arrays."""
        got, right = self._comparable(output, expected)
        if len(got) != len(right):
            raise WrongResult(f"the output has {len(got)} arrays instead of {len(right)}")
        written = [f"array {number} of the arguments" for number in sorted(expected.written)]
        places = written if len(written) == len(right) else ["the output", *written]
        if len(places) != len(right):  # the check returns the arrays that the function writes
            places = [f"array {number} of the arguments" for number in sorted(output.written)]
        parts = zip(got, right, places, strict=True)
        errors = [self._difference(a, b, rules, place) for a, b, place in parts]
        return max(errors, default=0.0)

    def _difference(self, got: Any, right: Any, rules: ComparisonRules, place: str) -> float:
        try:
            return output_error(got, right, rules, place)
        except WrongResult:
            raise
        except Exception as e:  # objects of any class
            raise MeasurementError(
                f"outputs of {self.name} cannot be compared ({first_line(e)}): return arrays, "
                "or give a function that judges outputs, verify="
            ) from e

    def _comparable(self, output: CallResult, expected: CallResult) -> tuple[list[Any], list[Any]]:
        """Return the parts of output and reference that the reference defines."""
        numbers = sorted(expected.written)
        if any(n not in output.written for n in numbers):
            raise WrongResult("it does not write into the arrays that the reference writes")
        got, right = ([r.written[n] for n in numbers] for r in (output, expected))
        if expected.returned is None:
            return got, right
        if (
            output.returned is None and output.written and not numbers
        ):  # the check returns what the function writes
            found = [output.written[n] for n in sorted(output.written)]
            several = isinstance(expected.returned, list | tuple) and len(found) > 1
            return found, list(expected.returned) if several else [expected.returned]
        return [output.returned, *got], [expected.returned, *right]


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return a function's parameters; none if it has no signature."""
    try:
        return _known_parameters(function)
    except TypeError:  # it cannot be hashed
        return _read_parameters(function)


def _read_parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(getattr(function, "py_func", function)).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return {}


_known_parameters = lru_cache(maxsize=MAX_SIGNATURES)(_read_parameters)


def _check_knobs(
    name: str, knobs: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter]
) -> None:
    check_mapping(name, knobs)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    unknown = [knob for knob in knobs if knob not in parameters]
    if parameters and unknown and not takes_any:
        raise UsageError(
            f"{name} takes no argument {unknown[0]!r}: add it to {name}({', '.join(parameters)}), "
            "or drop the knob"
        )


def _check_pinned(name: str, pinned: Sequence[str], known: set[str]) -> frozenset[str]:
    pinned = (pinned,) if isinstance(pinned, str) else pinned
    if unknown := [argument for argument in pinned if argument not in known]:
        raise UsageError(f"{name} has no argument {unknown[0]!r} to pin: it has {sorted(known)}")
    return frozenset(pinned)


def _named_arguments(
    parameters: Mapping[str, inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[str], list[Any]]:
    positional = [
        n for n, p in parameters.items() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    names = [positional[i] if i < len(positional) else f"arg{i}" for i in range(len(args))]
    return [*names, *kwargs], [*args, *kwargs.values()]


def _problem_parameters(args: Callable[..., Any]) -> tuple[ProblemParameter, ...]:
    found = []
    for name, p in parameters_of(args).items():
        default = None if p.default is p.empty else p.default
        if isinstance(default, str | bool):
            found.append(ProblemParameter(name, default, choices=_choices(p, default)))
        elif name != "seed":
            found.append(ProblemParameter(name, default))
    if not found:
        found.append(ProblemParameter("problem", "this one", choices=("this one",)))
    return tuple(found)


def _choices(parameter: inspect.Parameter, default: Value) -> tuple[Value, ...]:
    """Return the values of a literal type, or the default alone."""
    listed = getattr(parameter.annotation, "__args__", ())
    return tuple(listed) or ((True, False) if isinstance(default, bool) else (default,))
