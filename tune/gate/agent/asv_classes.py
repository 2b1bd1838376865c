"""Benchmarks of airspeed velocity: ``time_*`` functions and methods, with parameters and set-up."""

import inspect
import itertools
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from foretune.tune.gate.agent.functions import Serve
from foretune.tune.gate.agent.timed_call import NO_ARGUMENTS, Arguments, TimedCall

PREFIX = "time_"
OTHER_PREFIXES = ("timeraw_", "mem_", "peakmem_", "track_")
"""Benchmarks of asv that measure something else."""
ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


class Skipped(Exception):
    """A benchmark does not apply to these parameters."""


class Cache:
    """What `setup_cache` returned, and the folder in which it ran."""

    def __init__(self, make_cache: Callable[[], Any]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="foretune-")
        with self.present_folder():
            self.value = make_cache()

    @contextmanager
    def present_folder(self) -> Iterator[None]:
        """Work in the folder."""
        before = os.getcwd()
        os.chdir(self._folder.name)
        try:
            yield
        finally:
            os.chdir(before)


class AsvBenchmark:
    """A ``time_*`` function or method with one combination of its parameters.

    ``source`` is a class, or the module of a function. ``caches`` are those of all benchmarks of
    this process, by source.
    """

    def __init__(
        self, source: Any, name: str, params: tuple[Any, ...], caches: dict[Any, Cache]
    ) -> None:
        self._source = source
        self._name = name
        self._params = params
        self._caches = caches

    def run(self, serve: Serve) -> None:
        """Set up, serve the method, and tear down."""
        owner = self._source() if inspect.isclass(self._source) else self._source
        method = getattr(owner, self._name)
        make_cache = _attribute(owner, method, "setup_cache")
        if make_cache is None:
            self._serve(owner, method, self._params, serve)
            return

        # What `setup_cache` writes into the present folder, `setup` may read there.
        if self._source not in self._caches:
            self._caches[self._source] = Cache(make_cache)
        cache = self._caches[self._source]
        arguments = self._params if cache.value is None else (cache.value, *self._params)
        with cache.present_folder():
            self._serve(owner, method, arguments, serve)

    def _serve(self, owner: Any, method: Any, arguments: tuple[Any, ...], serve: Serve) -> None:
        setup = _attribute(owner, method, "setup")
        teardown = _attribute(owner, method, "teardown")
        number = int(_attribute(owner, method, "number") or 0)

        # As in asv: what a burst of a fixed number of calls changes is set up again.
        is_set_up = False

        def set_up(seed: int) -> Arguments:
            nonlocal is_set_up
            if setup is not None and (number or not is_set_up):
                if is_set_up and teardown is not None:
                    teardown(*arguments)
                try:
                    setup(*arguments)
                except NotImplementedError as e:
                    raise Skipped(f"its setup does not support {arguments}: {e}") from e
                is_set_up = True
            return (arguments, {}) if arguments else NO_ARGUMENTS

        set_up(0)
        try:
            serve(TimedCall(method, set_up, calls=number or None))
        finally:
            if teardown is not None:
                teardown(*arguments)


def find_asv(module: Any) -> Iterator[tuple[str, AsvBenchmark | str]]:
    """Yield names with benchmarks, or with the reason why something is left out."""
    caches: dict[Any, Cache] = {}
    for name, member in list(vars(module).items()):
        if getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(member):
            for method_name in dir(member):
                if not method_name.startswith((PREFIX, *OTHER_PREFIXES)):
                    continue
                method = getattr(member, method_name)
                yield from _of_function(member, f"{name}.{method_name}", method, caches)
        elif inspect.isfunction(member) and name.startswith((PREFIX, *OTHER_PREFIXES)):
            yield from _of_function(module, name, member, caches)


def _of_function(
    source: Any, name: str, function: Any, caches: dict[Any, Cache]
) -> Iterator[tuple[str, AsvBenchmark | str]]:
    last_name = name.rpartition(".")[2]
    if not last_name.startswith(PREFIX):
        yield name, "it measures no time"
        return
    parameters = _attribute(source, function, "params") or []
    if not parameters:
        yield name, AsvBenchmark(source, last_name, (), caches)
        return
    if not isinstance(parameters[0], list | tuple):
        parameters = [parameters]
    used: dict[str, int] = {}
    for combination in itertools.product(*parameters):
        described = f"{name}({', '.join(map(_describe, combination))})"
        used[described] = used.get(described, 0) + 1
        unique = described if used[described] == 1 else f"{described} #{used[described]}"
        yield unique, AsvBenchmark(source, last_name, combination, caches)


def _describe(parameter: Any) -> str:
    name = getattr(parameter, "__name__", None)
    return name if isinstance(name, str) else ADDRESS.sub("", repr(parameter))


def _attribute(owner: Any, function: Any, name: str) -> Any:
    """Return an attribute of a function, of its class or, for a function, of itself only."""
    if hasattr(function, name):
        return getattr(function, name)
    # A module's own `setup` belongs to its functions; its other names are something else.
    if inspect.ismodule(owner) and name not in ("setup", "teardown", "setup_cache"):
        return None
    return getattr(owner, name, None)
