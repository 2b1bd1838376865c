"""Calls of a decorated kernel, its configurations (Triton's and ours), and compiling ahead."""

import copy
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import triton

from foretune.collect.compiled.arguments import describe
from foretune.errors import UsageError, require_known
from foretune.space import Configuration, SearchSpace
from foretune.tune.triton.options import Options
from foretune.tune.triton.parameters import is_descriptor
from foretune.tune.triton.problem_key import Call, make_call, plain_value
from foretune.tune.triton.runtime import active_driver, current_device_index
from foretune.tune.triton.source_hash import callable_digest

LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "maxnreg")
"""Parameters that every Triton kernel has; the others are constants of the kernel."""
MAX_COMPILE_THREADS = min(8, os.cpu_count() or 1)
"""Maximum number of parallel compilations."""


@dataclass(frozen=True)
class KernelCall:
    """The arguments of a call, with Triton's ``tuner`` and Foretune's options."""

    tuner: Any
    options: Options
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def named(self) -> dict[str, Any]:
        """All arguments by name, and ``grid``."""
        return {**dict(zip(self.tuner.arg_names, self.args, strict=False)), **self.kwargs}

    def to_call(self) -> Call:
        """Return the call as a problem."""
        call = make_call(
            self.tuner.fn,
            self.tuner.keys,
            self.named,
            self.options.bucket,
            user_hook(self.tuner),
            **self.options.problem_tags,
        )
        return replace(call, function=self.tuner.fn)

    def bench(self, config: triton.Config) -> Any:
        """Return the benchmarker's result for a configuration."""
        return self.tuner._bench(*self.args, config=config, **self.kwargs)

    def launch(self, config: triton.Config) -> None:
        """Run a configuration once, with hooks, and leave what it wrote into `restore_value`."""
        with self.with_hooks(config) as run:
            run()
            self.tuner.restore_copies = {}  # else Triton's hook would put the old values back

    @contextmanager
    def with_hooks(self, config: triton.Config) -> Iterator[Callable[[], Any]]:
        """Yield a function that launches a configuration; run the hooks around it."""
        knobs = config.all_kwargs()
        full = {**self.named, **knobs}
        if config.pre_hook:
            config.pre_hook(full)
        self.tuner.pre_hook(full)
        try:
            yield partial(self.tuner.fn.run, *self.args, **self.kwargs, **knobs)
        except Exception as e:
            self.tuner.post_hook(full, exception=e)
            raise
        self.tuner.post_hook(full, exception=None)


def to_triton_configs(
    configs: "Sequence[triton.Config] | SearchSpace", arg_names: Sequence[str]
) -> "list[triton.Config] | Any":
    """Return a list of Triton's configurations; a list is returned as the same object.

    Raises UsageError for another item, UnknownName for a parameter that is not an argument.
    """
    if isinstance(configs, SearchSpace):
        require_known("parameter of the space", configs.names, (*arg_names, *LAUNCH_OPTIONS))
        return [
            triton.Config(
                {n: v for n, v in config.items() if n not in LAUNCH_OPTIONS},
                **{n: v for n, v in config.items() if n in LAUNCH_OPTIONS},
            )
            for config in configs
        ]

    wrong = [config for config in configs or () if not isinstance(config, triton.Config)]
    if wrong or isinstance(configs, Mapping):
        shown = wrong[0] if wrong else configs
        raise UsageError(
            f"configs holds {shown!r}: give a list of triton.Config, or a foretune.SearchSpace"
        )
    return configs


def to_configuration(config: triton.Config) -> Configuration:
    """Return ``config`` as a `Configuration`; values become numbers, text or their `repr`."""
    values = {n: plain_value(v) for n, v in config.all_kwargs().items() if v is not None}
    if config.pre_hook is not None:
        # The hook can change the launch. Hooks of one factory differ by what they captured.
        name = getattr(config.pre_hook, "__qualname__", type(config.pre_hook).__qualname__)
        values["pre_hook"] = f"{name} {callable_digest(config.pre_hook)}"
    return Configuration(values)


def arguments_after_hook(
    config: triton.Config, arg_names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments after the hook of ``config`` ran on copies of the descriptors.

    A hook sets the block shapes of tensor descriptors (TMA), for which Triton compiles, in the
    caller's descriptors. It sees tensors without memory and may raise any error. Without
    descriptors or a hook, the arguments are returned unchanged.
    """
    given = {**dict(zip(arg_names, args, strict=False)), **kwargs}
    copies = {name: copy.copy(v) for name, v in given.items() if is_descriptor(v)}
    if config.pre_hook is None or not copies:
        return tuple(args), dict(kwargs)

    described = {name: v if name == "grid" else describe(v) for name, v in given.items()}
    config.pre_hook({**described, **copies, **config.all_kwargs()})
    changed = {**given, **copies}
    changed_args = tuple(changed[name] for name in arg_names[: len(args)])
    changed_kwargs = {name: changed[name] for name in kwargs}
    return changed_args, changed_kwargs


class CompileAhead:
    """Compiles the configurations of one call in advance."""

    def __init__(self, kernel: KernelCall) -> None:
        self._fn = kernel.tuner.fn
        self._args = kernel.args
        self._kwargs = {name: v for name, v in kernel.kwargs.items() if name != "warmup"}
        self._futures: dict[triton.Config, Future[None]] = {}
        """Compilations that were started; running ones hold a slot."""
        self._timed_out: set[triton.Config] = set()
        self._slots = threading.Semaphore(MAX_COMPILE_THREADS)
        self._device_index = current_device_index()
        self._enabled = active_driver() is not None and "grid" in self._kwargs

    def compile(self, configs: Sequence[triton.Config], limit_s: float) -> None:
        """Compile ``configs``; give up those that take longer than ``limit_s`` seconds."""
        if not self._enabled:
            return
        for config in configs:
            if config not in self._futures:
                future = Future[None]()
                self._futures[config] = future
                work = partial(self._compile_one, config, future)
                threading.Thread(target=work, daemon=True).start()

        pending = {self._futures[c] for c in configs if c not in self._timed_out}
        while pending:
            finished, pending = wait(pending, limit_s, FIRST_COMPLETED)
            if finished:
                continue
            # No compilation ended within the limit. A thread cannot be stopped: leave those that
            # run alone, and let others have their slots.
            stuck = {future for future in pending if future.running()}
            late = [config for config, future in self._futures.items() if future in stuck]
            self._timed_out.update(late)
            for _ in late:
                self._slots.release()
            pending = {future for future in pending if not future.running()}

    def is_ready(self, config: triton.Config) -> bool:
        """Whether ``config`` did not time out; a compile error shows at its launch."""
        return config not in self._timed_out

    def _compile_one(self, config: triton.Config, future: "Future[None]") -> None:
        with self._slots:
            future.set_running_or_notify_cancel()
            with suppress(Exception):  # the launch reports the same error
                triton.runtime.driver.active.set_current_device(self._device_index)
                args, kwargs = arguments_after_hook(
                    config, self._fn.arg_names, self._args, self._kwargs
                )
                self._fn.warmup(*args, **kwargs, **config.all_kwargs())
            future.set_result(None)


def user_hook(tuner: Any) -> Any:
    """Return the hook that a user gave to a tuner; None if it is Triton's own."""
    return tuner.pre_hook if getattr(tuner, "user_defined_pre_hook", False) else None
