"""A decorated kernel, as it is when a call of it comes."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import triton

from foretune.tune.triton.call import Call, make_call, undecorated_kernel
from foretune.tune.triton.options import Options


@dataclass(frozen=True)
class DecoratedKernel:
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
        return undecorated_kernel(self.fn)

    def arguments_by_name(self, args: Sequence[Any]) -> dict[str, Any]:
        """Return positional arguments by name."""
        return dict(zip(self.arg_names, args, strict=False))

    def call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
        """Return a call as what is tuned for."""
        options = self.options
        positional = self.arguments_by_name(args)
        return make_call(self.function, self.keys, positional, kwargs, options.mode, options.bucket)

    def launch(self, config: triton.Config, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run a configuration once, with the hooks of a measured launch."""
        with self.with_hooks(config, args, kwargs) as run:
            run()

    @contextmanager
    def with_hooks(
        self, config: triton.Config, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[Callable[[], Any]]:
        """Yield what launches a configuration, between the hooks of a measured launch."""
        knobs = config.all_kwargs()
        full = {**self.arguments_by_name(args), **kwargs, **knobs}
        if config.pre_hook:
            config.pre_hook(full)
        self.pre_hook(full)
        try:
            yield partial(self.fn.run, *args, **kwargs, **knobs)
        except Exception as e:
            self.post_hook(full, exception=e)
            raise
        self.post_hook(full, exception=None)
