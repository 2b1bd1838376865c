"""Sources in C, C++, OpenCL, CUDA or HIP as kernels: compiled per configuration, checked, timed."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np

from foretune.collect.wrapped import cuda, hip, native, opencl
from foretune.collect.wrapped import source as sources
from foretune.collect.wrapped import values as arrays
from foretune.collect.wrapped.call_arguments import CallResult
from foretune.collect.wrapped.included_files import (
    IncludedFiles,
    environment_folders,
    files_in_options,
    find_included,
    option_folders,
)
from foretune.collect.wrapped.new_values import NewValues
from foretune.collect.wrapped.problem_of_arguments import add_sizes, problem_of_arguments
from foretune.collect.wrapped.user_check import require_accepted
from foretune.collect.wrapped.wrapped import CostOf, Restrictions, WrappedKernel
from foretune.errors import MeasurementError, UsageError, first_line, warn
from foretune.kernel import Inputs, Launch, WrongResult
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.support.identity import source_hash_of_function, unique_digest
from foretune.values import Value

BACKENDS: dict[sources.Language, Any] = {"C": native, "OpenCL": opencl, "CUDA": cuda, "HIP": hip}
"""Language -> module with ``toolchain``, the versions of compiler and device (ForetuneError if one
is missing), and ``launch``, which compiles and returns a launch on copies of the arguments
(RuntimeError with the compiler's first error)."""
Verify = Callable[..., Any]
"""Judges an output: called with the reference, the output and, if it takes it, ``atol``."""


class SourceKernel(WrappedKernel):
    """A kernel's source as a kernel.

    ``arguments`` are NumPy arrays and NumPy numbers, in the order of the function's parameters.
    ``defines`` are definitions instead of one per knob: name -> text or function of knobs.
    ``answer`` is the expected content of each argument after a launch, or None if it is not
    checked; by default, it is the content after a launch of the default. A relative difference of
    1e-5 plus an absolute one of ``atol`` is accepted, unless ``verify(answer, contents,
    atol=atol)`` judges, with one element per argument.

    Raises UsageError if a knob is unused, or arguments and answer do not fit; ForetuneError if
    there is no compiler for the language.
    """

    def __init__(
        self,
        source: sources.Source,
        shape: sources.LaunchShape,
        arguments: Sequence[Any],
        knobs: Mapping[str, Sequence[Value]],
        *,
        defines: Mapping[str, Any] | None = None,
        restrictions: Restrictions = None,
        answer: Sequence[Any] | None = None,
        atol: float = 1e-6,
        verify: Verify | None = None,
        default: Mapping[str, Any] | None = None,
        cost: CostOf | None = None,
        device_kind: Literal["cpu", "gpu"] = "cpu",
    ) -> None:
        _check_arguments(source.name, arguments, answer)
        # Launches get copies, which have no gaps: this is the layout that is measured.
        arguments = [
            np.ascontiguousarray(argument) if np.ndim(argument) else argument
            for argument in arguments
        ]
        names = _argument_names(source, len(arguments))
        told = problem_of_arguments(names, arguments)
        problem = dict(told.values)
        add_sizes(problem, shape.problem_sizes())  # an argument may have the name of a size
        shared = [] if source.shared_bytes == 0 else [_code_text(source.shared_bytes)]
        constants = [(name, str(a.dtype), a.tobytes()) for name, a in source.constants.items()]
        definitions = None if defines is None else {k: _code_text(v) for k, v in defines.items()}
        code = repr(
            (
                source.name,
                _code_text(source.text),
                sorted(source.extra_files.items()),
                source.options,
                *shared,
                *constants,
                shape.names,
                shape.expressions(),
                [source_hash_of_function(f) for f in shape.functions()],
                definitions,
                answer is None or arrays.content_hash(answer),
                atol,
                verify and source_hash_of_function(verify),
                BACKENDS[source.language].toolchain(source),
            )
        )
        knobs = _used_knobs(source, shape, knobs, defines)
        super().__init__(source.name, knobs, restrictions, default, problem, code, cost)
        self.source = source
        self.shape = shape
        self.arguments = tuple(arguments)
        self.defines = defines
        self.answer = (
            None if answer is None else (*answer, *[None] * len(arguments))[: len(arguments)]
        )
        self.atol, self.verify = atol, verify
        self.device_kind = device_kind
        self.reports_own_time = source.language not in sources.TORCH_LANGUAGES  # torch times them
        self._read_included_files()

    def _read_included_files(self) -> None:
        """Add the content of included files to the code; name those that are not found."""
        build = self.prepare(self.default(Problem()))
        options = build.options or ()
        folders = [self.source.folder, *option_folders(options), *environment_folders()]
        texts = [build.text, *build.extra_files.values()]
        found = find_included(texts, build.extra_files, folders)
        listed = native.listed_headers(build) if self.source.language == "C" else []
        files = IncludedFiles((*found.paths, *listed, *files_in_options(options)))
        # A C compiler finds all that are there, also by names that macros make.
        missing = () if listed or self.source.language == "C" else found.missing
        self.unreadable = tuple(f"the included file {name}" for name in missing)
        only_here = unique_digest() if missing else ""
        self.code = repr((self.code, files.digest(), only_here))

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return the initial arguments; with a seed other than 0, similar ones with other values.

        They stay as given if the answer is given, if the default fails on others, and for launches
        whose initial arguments are on a GPU.
        """
        fixed = self.answer is not None or self.source.language in sources.TORCH_LANGUAGES
        if seed == 0 or fixed or self._draw is None:
            return {"arguments": self.arguments}
        return {"arguments": tuple(arrays.redraw(self.arguments, self._draw, seed))}

    def ways_to_draw(self, problem: Problem) -> tuple[str, ...]:
        """Return how arguments get new values, by name; the default runs."""
        if self.answer is not None or self.source.language in sources.TORCH_LANGUAGES:
            return NewValues().names
        return NewValues(self._draw).names

    def draw_in(self, problem: Problem, ways: Sequence[str]) -> None:
        """Draw new values in the way that the default accepted in another process."""
        vars(self)["_draw"] = NewValues.from_names(ways).fractions

    @cached_property
    def _draw(self) -> arrays.Draw | None:
        return arrays.find_draw(self._accepts)

    def _accepts(self, draw: arrays.Draw) -> bool:
        """Whether the default works on redrawn arguments, without new NaN."""
        drawn, given = (
            self.reference({"arguments": tuple(arguments)})
            for arguments in (arrays.redraw(self.arguments, draw, 1), self.arguments)
        )
        if drawn is None or given is None:
            return False
        return arrays.count_nan(drawn.written) <= arrays.count_nan(given.written)

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Compile a configuration and return its launch on copies of the arguments."""
        launch = BACKENDS[self.source.language].launch
        return launch(self.prepare(config), inputs["arguments"])

    def prepare(self, config: Mapping[str, Any]) -> sources.Build:
        """Return sources, options and launch shape of a configuration."""
        values = dict(config)
        threads, grid = self.shape.threads(values), self.shape.grid(values)
        definitions = self._definitions(values, threads, grid)
        prefix = "".join(f"#define {name} {text}\n" for name, text in definitions.items())
        text = self.source.text
        text = text if isinstance(text, str) else text(values)
        options = self.source.options
        options = options and tuple(sources.substitute(option, values) for option in options)
        return sources.Build(
            self.source,
            text=f"{prefix}#line 1\n{text}",
            extra_files={name: prefix + other for name, other in self.source.extra_files.items()},
            options=options,
            threads=threads,
            grid=grid,
            shared_bytes=int(sources.evaluate_amount(self.source.shared_bytes, values)),
        )

    def reference(self, inputs: Inputs) -> CallResult | None:
        """Return the expected result: ``answer``, or the result of the default configuration.

        Raises MeasurementError if the default does not run.
        """
        if self.answer is not None:
            if not arrays.says_something(self.answer):
                raise MeasurementError(f"the answer of {self.name} is empty or all NaN")
            return None
        config = self.default(Problem())
        try:
            launch = self.build(Problem(), config, inputs)
            outcome: CallResult = launch().copy()
        except Exception as e:
            raise MeasurementError(first_line(e)) from e
        if not outcome.written:
            raise MeasurementError(
                f"{self.name} changes none of its arguments: also give those that it writes into, "
                "or in Python answer="
            )
        return outcome

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return the tolerance; an answer is checked with ``atol`` or ``verify`` instead."""
        return self.tolerance if self.answer is None else math.inf

    def relative_error(self, output: CallResult, expected: CallResult | None) -> float:
        """Return the difference of the written arguments; raise WrongResult if it is too large."""
        right = self._contents(expected) if self.answer is None else list(self.answer)
        got = [
            content if wanted is not None else None
            for content, wanted in zip(self._contents(output), right, strict=True)
        ]
        if self.verify is not None:
            require_accepted(self.verify, right, got, atol=self.atol)
            return 0.0
        if self.answer is not None:
            for i, (content, wanted) in enumerate(zip(got, right, strict=True)):
                if wanted is not None:
                    self._compare(i, arrays.as_numpy(content), arrays.as_numpy(wanted))
        return arrays.relative_difference(got, right)

    def _contents(self, outcome: CallResult | None) -> list[Any]:
        """Return the content of every argument; None for numbers and without a result."""
        written = {} if outcome is None else outcome.written
        contents: list[Any] = []
        number = 0
        for argument in self.arguments:
            is_array = isinstance(argument, np.ndarray)
            contents.append(written.get(number, argument) if is_array else None)
            number += is_array
        return contents

    def invalidate_output(self, output: Any) -> None:
        """Do nothing: arguments are reset before every checked launch."""

    def _compare(self, i: int, got: np.ndarray, right: np.ndarray) -> None:
        if got.shape != right.shape:
            raise WrongResult(f"argument {i} has shape {got.shape}, its answer {right.shape}")
        if np.allclose(right, got, atol=self.atol):
            return
        off = np.abs(got.astype(np.float64) - right.astype(np.float64))
        at = int(np.nanargmax(off)) if np.isfinite(off).any() else 0
        raise WrongResult(
            f"argument {i} differs from its answer: element {at} is {got.flat[at]}, not "
            f"{right.flat[at]} (atol {self.atol:g})"
        )

    def _definitions(
        self, values: dict[str, Any], threads: Sequence[int], grid: Sequence[int]
    ) -> dict[str, str]:
        if self.defines is not None:
            return {
                name: str(text(values)) if callable(text) else _replace_names(str(text), values)
                for name, text in self.defines.items()
            }
        # A knob used only in compiler options may not be a number, and C does not need it.
        in_options = [n for n in values if any(f"{{{n}}}" in o for o in self.source.options or ())]
        named = dict(zip((*sources.GRID, *self.shape.names), (*grid, *threads), strict=True))
        knobs = {n: _c_text(v) for n, v in values.items() if n not in in_options}
        return {**{n: str(v) for n, v in named.items()}, **knobs, "kernel_tuner": "1"}


def _check_arguments(name: str, arguments: Sequence[Any], answer: Sequence[Any] | None) -> None:
    for i, argument in enumerate(arguments):
        if not isinstance(argument, np.ndarray | np.generic):
            raise UsageError(
                f"argument {i} of {name} is of type {type(argument).__name__}: give a NumPy array, "
                "or a number with its type, like numpy.int32(5)"
            )
    if answer is None:
        return
    if len(answer) > len(arguments):
        raise UsageError(
            f"{name} takes {len(arguments)} arguments, answer has {len(answer)}: give one each, "
            "None where an argument is only read"
        )
    if all(right is None for right in answer):
        raise UsageError(f"the answer of {name} has only None: give the expected content of one")
    for i, (argument, right) in enumerate(zip(arguments, answer, strict=False)):
        if right is not None and not isinstance(argument, np.ndarray):
            raise UsageError(
                f"argument {i} of {name} is a number, which is never written: answer None for it"
            )


def _used_knobs(
    source: sources.Source,
    shape: sources.LaunchShape,
    knobs: Mapping[str, Sequence[Value]],
    defines: Mapping[str, Any] | None,
) -> Mapping[str, Sequence[Value]]:
    """Return the knobs; those that the source does not use keep one value, with a warning.

    Raises UsageError if it uses none.
    """
    definitions = [*(defines or {}).values(), source.shared_bytes]
    if callable(source.text) or shape.functions() or any(map(callable, definitions)):
        return knobs
    options = source.options or ()
    texts = [source.text, *source.extra_files.values(), *shape.expressions(), *options]
    used = {
        w for text in (*texts, *map(str, definitions)) for w in re.findall(r"[A-Za-z_]\w*", text)
    }
    if source.language != "C":
        used |= set(shape.names)
    unused = [knob for knob in knobs if knob not in used]
    if not unused:
        return knobs
    what = f"the source of {source.name} does not use the knob {unused[0]!r}"
    how = f"use it there, or in a compiler option as {{{unused[0]}}}, or drop it"
    if len(unused) == len(knobs):
        raise UsageError(f"{what}: {how}")
    warn(f"{what}: only its first value counts; {how}")
    return {k: tuple(values)[:1] if k in unused else values for k, values in knobs.items()}


def _argument_names(source: sources.Source, count: int) -> list[str]:
    """Return the parameter names in the source, or numbered names if they cannot be found."""
    text = source.text if isinstance(source.text, str) else ""
    found = re.search(rf"\b{re.escape(source.name)}\s*\(([^()]*)\)\s*\{{", text)
    if found:
        names = re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:,|$)", found[1].strip())
        if len(names) == count == len(set(names)):
            return names
    return [f"arg{i}" for i in range(count)]


def _replace_names(text: str, values: Mapping[str, Any]) -> str:
    """Return ``text`` with knobs replaced by their values, as whole words."""
    return re.sub(
        r"[A-Za-z_]\w*", lambda m: _c_text(values[m[0]]) if m[0] in values else m[0], text
    )


def _c_text(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool | np.bool_) else str(value)


def _code_text(value: Any) -> str:
    return source_hash_of_function(value) if callable(value) else str(value)
