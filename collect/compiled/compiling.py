"""Compilation of a Triton kernel for a target without a driver.

Arguments go through Triton's own binder and specialization, and options through its own backend. So
the hash of the compiled kernel is the one that a launch looks up in Triton's cache.
"""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from triton import knobs
from triton._C.libtriton import ir, passes
from triton.compiler import ASTSource, CompiledKernel, make_backend
from triton.compiler import compile as triton_compile
from triton.runtime import jit as triton_jit

from foretune.collect.compiled.arguments import describe
from foretune.collect.compiled.gpu_targets import Target
from foretune.errors import UnknownName, UsageError

_LAUNCH_OPTIONS = ("instrumentation_mode", "fpsan_homomorphic_casts")
"""Options that a launch takes from Triton's knobs in releases that have them; they are hashed."""
_LAUNCH_PARAMETERS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Launch options suggested for a mistyped name; backends know many more."""


@dataclass(frozen=True)
class SpecializedKernel:
    """A kernel specialized to argument types and properties and to one configuration."""

    source: ASTSource
    options: Any
    target: Target


def specialize(
    kernel: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    config: Mapping[str, Any],
    target: Target,
) -> SpecializedKernel:
    """Specialize a kernel as a launch with these arguments and this configuration does.

    A kernel is a ``@triton.jit`` function, with or without decorators that keep it as ``.fn``;
    heuristics are evaluated. Arguments are tensors, torch dtypes (a pointer aligned to 16 bytes),
    numbers or None; a configuration has compile-time parameters and options of the target, such as
    ``num_warps``. Raises UsageError if an argument is missing, unknown, or of a type that Triton
    does not take, or the kernel is not a Triton kernel.
    """
    described = list(map(describe, args))
    named = {name: describe(value) for name, value in kwargs.items()}
    function, values = _unwrap(kernel, described, named, dict(config))
    backend = make_backend(target.triton_target)
    options = _launch_options(function, values)
    _check_arguments(function, args, options, backend)
    binder = triton_jit.create_function_from_signature(function.signature, function.params, backend)
    try:
        bound = binder(*described, **options)
    except TypeError as e:
        raise UsageError(f"{function.__name__} does not take these arguments: {e}") from e
    parsed, signature, constants, attributes = function._pack_args(backend, options, *bound)
    source = ASTSource(function, signature, constants, attributes)
    return SpecializedKernel(source, parsed, target)


def foreign_options(
    kernel: Any, config: Mapping[str, Any], target: Target, targets: Iterable[Target]
) -> list[str]:
    """Return the names in a configuration that only others of the targets take as options."""
    parameters = _layers(kernel)[-1].signature.parameters
    unknown = [name for name in config if name not in parameters]
    unknown = [name for name in unknown if name not in _target_options(target)]
    return [name for name in unknown if any(name in _target_options(other) for other in targets)]


def compile_full(specialized: SpecializedKernel) -> CompiledKernel:
    """Compile the kernel to machine code, or load it from Triton's cache; raise Triton's errors."""
    return triton_compile(
        specialized.source,
        target=specialized.target.triton_target,
        options=vars(specialized.options),
    )


def first_code(specialized: SpecializedKernel, *, inline: bool = False) -> str:
    """Return the unoptimized code (TTIR) in Triton's textual form; this takes some 20 ms.

    With ``inline``, the code of called functions stands where they are called.
    """
    backend = make_backend(specialized.target.triton_target)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    module = specialized.source.make_ir(
        specialized.target.triton_target,
        specialized.options,
        backend.get_codegen_implementation(specialized.options),
        backend.get_module_map(),
        context,
    )
    if inline:
        manager = ir.pass_manager(context)
        passes.common.add_inliner(manager)
        manager.run(module, "inline")
    return str(module)


@cache
def _target_options(target: Target) -> frozenset[str]:
    """Return the names of the options that a launch on a target takes."""
    return frozenset(vars(make_backend(target.triton_target).parse_options({})))


def _unwrap(
    kernel: Any, args: list[Any], kwargs: dict[str, Any], config: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return the innermost function and its keyword arguments.

    As in a launch, an autotuner adds the configuration at its level, and heuristics see the
    arguments added above them. Without an autotuner, the caller passed the configuration.
    """
    layers = _layers(kernel)
    # Triton's autotuner refuses them: one of the two values would be dropped.
    clashing = [name for name in config if name in kwargs]
    if clashing:
        raise UsageError(
            f"{layers[-1].__name__} is given {', '.join(clashing)} as an argument and by the "
            "configuration: drop one"
        )
    has_tuner = any(hasattr(layer, "configs") for layer in layers)
    values = dict(kwargs) if has_tuner else {**kwargs, **config}
    for layer in layers[:-1]:
        if hasattr(layer, "configs"):
            values.update(config)
        for name, rule in getattr(layer, "values", {}).items():
            named = dict(zip(layer.arg_names, args, strict=False))
            values[name] = _heuristic(layer, name, rule, {**named, **values})
    return layers[-1], values


def _heuristic(layer: Any, name: str, rule: Any, known: dict[str, Any]) -> Any:
    """Return a heuristic's value; raise UsageError if it fails on the known arguments."""
    try:
        return rule(known)
    except Exception as e:
        advice = "give it the tensors' shapes, or real tensors"
        if isinstance(e, KeyError) and e.args[0] in layer.arg_names:
            advice = f"give --arg {e.args[0]}=VALUE"
        fails = f"fails on these arguments ({type(e).__name__}: {e})"
        raise UsageError(f"the heuristic of {name!r} {fails}: {advice}") from e


def _layers(kernel: Any) -> list[Any]:
    """Return the decorators around a kernel from the outside in, and its function last."""
    layers = [kernel]
    while not isinstance(layers[-1], triton_jit.JITFunction):
        inner = getattr(layers[-1], "fn", None)
        if type(layers[-1]).__name__ == "InterpretedFunction":
            raise UsageError(
                f"module {layers[-1].fn.__module__!r} was imported with TRITON_INTERPRET set: "
                "unset it, because the interpreter does not compile"
            )
        if inner is None:
            name = getattr(kernel, "__name__", type(kernel).__name__)
            raise UsageError(f"{name} is not a Triton kernel: decorate it with @triton.jit")
        layers.append(inner)
    return layers


def _launch_options(function: Any, values: dict[str, Any]) -> dict[str, Any]:
    """Add the options that a launch takes from Triton's knobs."""
    options = dict(values)
    options["debug"] = options.get("debug", function.debug) or knobs.runtime.debug
    for name in _LAUNCH_OPTIONS:
        if hasattr(knobs.compilation, name):
            options[name] = getattr(knobs.compilation, name)
    return options


def _check_arguments(
    function: Any, args: Sequence[Any], options: Mapping[str, Any], backend: Any
) -> None:
    parameters = function.signature.parameters
    if len(args) > len(parameters):
        raise UsageError(
            f"{function.__name__} takes {len(parameters)} arguments, {len(args)} were given"
        )
    positional = list(parameters)[: len(args)]
    passed = {*positional, *options}
    missing = [
        name
        for name, parameter in parameters.items()
        if name not in passed and parameter.default is inspect.Parameter.empty
    ]
    if missing:
        raise UsageError(
            f"{function.__name__} lacks {', '.join(missing)}: give arguments by --arg, "
            "compile-time parameters by --config, each NAME=VALUE"
        )
    duplicates = [name for name in positional if name in options]
    if duplicates:
        raise UsageError(f"{function.__name__} is given {', '.join(duplicates)} twice")
    backend_options = vars(backend.parse_options({}))
    typed = [name for name in _LAUNCH_PARAMETERS if name in backend_options]
    for name in options:
        if name not in {*parameters, *backend_options}:
            raise UnknownName(f"parameter of {function.__name__}", name, [*parameters, *typed])
