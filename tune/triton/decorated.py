"""A decorated kernel, as it is when a call of it comes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import triton

from foretune.tune.triton.call import Call, call_of, plain_function
from foretune.tune.triton.options import Options


@dataclass(frozen=True)
class Decorated:
    """What tuning takes of a kernel and its decorator.

    Attributes:
        fn: the kernel below the tuner; there may be other decorators in between.
        arg_names: of the kernel, in order.
        keys: the arguments whose values make a problem.
        bench: measures a configuration of a call: Triton's, with the user's hooks and benchmarker.
        pre_hook: called before every measured launch.
        post_hook: called after it.
        options: how to decide.
    """

    fn: Any
    arg_names: Sequence[str]
    keys: Sequence[str]
    bench: Callable[..., Any]
    pre_hook: Callable[..., Any]
    post_hook: Callable[..., Any]
    options: Options

    @cached_property
    def function(self) -> Any:
        """The kernel below all decorators."""
        return plain_function(self.fn)

    def named(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return positional arguments by name."""
        return dict(zip(self.arg_names, args, strict=False))

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Return a call as what is tuned for."""
        options = self.options
        named = self.named(args)
        return call_of(self.function, self.keys, named, kwargs, options.mode, options.bucket)

    def launch(self, config: triton.Config, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run a configuration once, with the hooks of a measured launch."""
        with self.hooked(config, args, kwargs) as run:
            run()

    @contextmanager
    def hooked(
        self, config: triton.Config, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[Callable[[], Any]]:
        """Yield what launches a configuration, between the hooks of a measured launch."""
        knobs = config.all_kwargs()
        full = {**self.named(args), **kwargs, **knobs}
        if config.pre_hook:
            config.pre_hook(full)
        self.pre_hook(full)
        try:
            yield partial(self.fn.run, *args, **kwargs, **knobs)
        except Exception as e:
            self.post_hook(full, exception=e)
            raise
        self.post_hook(full, exception=None)
