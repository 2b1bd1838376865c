"""Triton's autotuner, with a head start: predict all configurations, measure the few that matter.

A subclass, so that whoever asks ``isinstance`` of a kernel (torch.compile, export, other libraries)
still finds one. Hooks, pruning, the ``cache`` and everything others read or assign are stock's and
mean what they mean there; only `run` is new. The prediction never enters ``early_config_prune`` or
``perf_model``: compilers trace these.
"""

import threading
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Self, cast

import triton
import triton.testing
from triton.runtime.autotuner import Autotuner as Stock

from foretune.collect.compiled import describe
from foretune.errors import ForetuneWarning, PredictorError, TrackingError, UsageError
from foretune.tune.triton.call import parameters_of, plain_function
from foretune.tune.triton.call_plan import CallPlan, make_plan, plan_id
from foretune.tune.triton.decorated import Decorated
from foretune.tune.triton.descriptors import tensor_of
from foretune.tune.triton.measuring import CANNOT_RUN, KernelFailure
from foretune.tune.triton.offers import Offer, offers
from foretune.tune.triton.online import Online
from foretune.tune.triton.options import Options
from foretune.tune.triton.place import capturing, interpreted, loading_allowed, require_device
from foretune.tune.triton.recorded_calls import note
from foretune.tune.triton.stopwatch import bench_in_interpreter
from foretune.tune.triton.trials import Trials, fail_if_conflicting
from foretune.tune.triton.tunings import Tunings

Key = tuple[Any, ...]
_STOCK_RUN = Stock.run
"""Some replace it, to take the first configuration always, say: then theirs runs."""
MOST_ONLINE = 64
"""Searches that are spread over calls at the same time; the one not called for longest ends."""
LONG_LIST = 200


@dataclass(frozen=True)
class Decision:
    """What calls of one problem run with.

    Attributes:
        config: the configuration.
        knobs: its values, as they are passed to the kernel.
        key: the problem, as in stock Triton's ``cache``.
        anchor: what ``cache`` held under it: if it no longer does, somebody wants another choice.
    """

    config: triton.Config
    knobs: Mapping[str, Any]
    key: Key
    anchor: triton.Config


@dataclass(frozen=True)
class NewCall:
    """A call of a problem for which nothing is decided.

    Attributes:
        args: positional arguments.
        kwargs: arguments by name, and ``grid``.
        plan: that reads what varies between calls like this one.
        at: what it read: the problem.
        key: the problem as stock Triton has it: coarser.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    plan: CallPlan
    at: Key
    key: Key

    @property
    def where(self) -> tuple[CallPlan, Key]:
        """What tells its problem from all others."""
        return self.plan, self.at


class Autotuner(Stock):  # type: ignore[misc]
    """See `foretune.autotune`; arguments are those of Triton's class, and ``options``."""

    _plans = cast(dict[tuple[Any, ...], CallPlan], MappingProxyType({}))
    pre_hook: Callable[..., Any]
    post_hook: Callable[..., Any]
    nargs: Any  # positional arguments of the call that is being chosen for, by name

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        configs: Sequence[triton.Config],
        key: Sequence[str],
        reset_to_zero: Sequence[str] | None,
        restore_value: Sequence[str] | None,
        pre_hook: Callable[..., Any] | None = None,
        post_hook: Callable[..., Any] | None = None,
        prune_configs_by: dict[str, Any] | None = None,
        warmup: int | None = None,
        rep: int | None = None,
        use_cuda_graph: bool = False,
        do_bench: Callable[..., Any] | None = None,
        cache_results: bool = False,
        *,
        options: Options | None = None,
    ) -> None:
        _check_names(arg_names, key=key, reset_to_zero=reset_to_zero, restore_value=restore_value)
        super().__init__(
            fn,
            arg_names,
            configs,
            key,
            reset_to_zero,
            restore_value,
            pre_hook,
            post_hook,
            prune_configs_by,
            warmup,
            rep,
            use_cuda_graph,
            do_bench,
            cache_results,
        )
        if reset_to_zero or restore_value:
            self._let_hooks_see_tensors()
        self.options = options or Options()
        self._plans = {}
        self._anchors: dict[Key, triton.Config] = {}
        self._online: OrderedDict[Any, Online] = OrderedDict()
        self._stopgaps: dict[Any, triton.Config] = {}
        self._noted: set[Any] = set()
        """Problems that were written down, if calls are."""
        self._stale: set[Any] = set()
        """Problems to be tuned anew, since their choice was taken out of ``cache``."""
        self.lock = threading.RLock()
        self.tunings = Tunings(self.options)

    def _let_hooks_see_tensors(self) -> None:
        """Let Triton's own hooks zero and restore what descriptors are of: they cannot do it."""
        before, after = self.pre_hook, self.post_hook

        def tensors(arguments: Mapping[str, Any]) -> dict[str, Any]:
            return {name: tensor_of(value) for name, value in arguments.items()}

        if not self.user_defined_pre_hook:
            self.pre_hook = lambda kwargs, reset_only=False: before(tensors(kwargs), reset_only)
        if not self.user_defined_post_hook:
            self.post_hook = lambda kwargs, exception: after(tensors(kwargs), exception)

    @cached_property
    def do_bench(self) -> Callable[..., Any]:
        """What measures a launch: the user's, the driver's, or a clock in the interpreter."""
        if self._do_bench is None and interpreted():
            return bench_in_interpreter
        if self._do_bench is None and self.options.mode == "graph":
            return cast(Callable[..., Any], triton.testing.do_bench_cudagraph)
        return self._do_bench or triton.runtime.driver.active.get_benchmarker()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch with the configuration chosen for this problem; choose it on the first call."""
        if Stock.run is not _STOCK_RUN:
            return Stock.run(self, *args, **kwargs)
        plan = self._plans.get(plan_id(args, kwargs))
        if plan is not None and len(self.configs) > 1:
            decision = plan.entries.get(plan.key(args, kwargs))
            if decision is not None and self.cache.get(decision.key) is decision.anchor:
                self.best_config = config = decision.config
                if config.pre_hook is None:
                    return self.fn.run(*args, **kwargs, **decision.knobs)
        return self._run_new(args, kwargs)

    def choose(self, *args: Any, grid: Any = None, **kwargs: Any) -> triton.Config:
        """Return the configuration a call would run with now, without launching or measuring.

        Of a problem that was tuned, the tuned one; of any other, the one predicted to be best.
        """
        with self.lock:
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            try:
                require_device()
                kwargs = {**kwargs, "grid": grid}
                if len(self.configs) == 1:
                    return self.configs[0]
                key = self._stock_key(kwargs)
                if key in self.cache and self.cache[key] is not self._anchors.get(key):
                    return self.cache[key]  # somebody put it there
                trials = self._trials(args, kwargs, self.prune_configs(kwargs))
                return trials.settled() or trials.predicted()
            finally:
                self.nargs = None

    def rank(self, *args: Any, grid: Any = None, **kwargs: Any) -> list[Offer]:
        """Return all configurations for a call, the best first, without launching or measuring.

        What was measured comes first, then what is predicted, then what does not run.
        """
        with self.lock:
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            try:
                require_device()
                kwargs = {**kwargs, "grid": grid}
                trials = self._trials(args, kwargs, self.prune_configs(kwargs))
                with self.tunings.lock:
                    return offers(trials.tuning, trials.configs)
            finally:
                self.nargs = None

    def freeze(self, configs: Sequence[triton.Config] = ()) -> Self:
        """Keep only ``configs``, or those chosen so far; return this kernel.

        For compilers that look at ``configs`` themselves and bypass `run`: torch.compile measures
        what is left, and nothing if only one is.

        Raises:
            UsageError: nothing has been chosen yet.
        """
        decided = [d.config for p in self._plans.values() for d in p.entries.values()]
        kept = list(dict.fromkeys(configs or (*self.cache.values(), *decided)))
        if not kept:
            name = self.base_fn.__name__
            raise UsageError(
                f"{name} has no configuration to keep: call it first, or {name}.choose(...)"
            )
        self.configs = kept
        return self

    @cached_property
    def function(self) -> Any:
        """The kernel below all decorators."""
        return plain_function(self.fn)

    def _trials(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        configs: Sequence[triton.Config],
        afresh: bool = False,
    ) -> Trials:
        kernel = Decorated(
            self.fn, self.arg_names, self.keys, self._bench, self.pre_hook, self.post_hook,
            self.options,
        )  # fmt: skip
        return Trials(kernel, self.tunings, args, kwargs, configs, afresh)

    def _run_new(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch a problem that is new, or whose configuration has a hook."""
        if not hasattr(self, "tunings"):  # of a class that did not let our constructor run
            return _STOCK_RUN(self, *args, **kwargs)
        with self.lock:
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            try:
                if len(self.configs) == 1:
                    return self._launch(self.configs[0], args, kwargs)
                return self._run_keyed(args, kwargs)
            finally:
                self.nargs = None

    def _run_keyed(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = self._plan(args, kwargs)
        new = NewCall(args, kwargs, plan, plan.key(args, kwargs), self._stock_key(kwargs))
        self._mind_removed(new.key)
        decision = plan.entries.get(new.at)
        if decision is not None and self.cache.get(new.key) is decision.anchor:
            return self._launch(decision.config, args, kwargs)
        theirs = self.cache.get(new.key) is not self._anchors.get(new.key)
        if new.key in self.cache and (theirs or self.options.budget == "all"):
            config = self.cache[new.key]
            plan.entries[new.at] = Decision(config, config.all_kwargs(), new.key, config)
            return self._launch(config, args, kwargs)
        pruned = self.prune_configs(kwargs)
        if not pruned:
            raise ValueError(f"pruning left {self.base_fn.__name__} without a configuration")
        if len(pruned) == 1:
            self._remember(new, pruned[0])
            return self._launch(pruned[0], args, kwargs)
        fail_if_conflicting(pruned, kwargs)
        if new.where not in self._noted:
            self._noted.add(new.where)
            note(self.base_fn, new.args, new.kwargs, {**self.nargs, **new.kwargs}, pruned)
        if self.options.strict:
            self._require_recorded(new, pruned)
        if capturing():
            return self._run_captured(new, pruned)
        if self.options.mode == "online":
            return self._run_online(new, pruned)
        return self._run_tuned(new, pruned)

    def _require_recorded(self, new: NewCall, pruned: list[triton.Config]) -> None:
        """Do nothing if the choice for a new call was made before.

        Raises:
            UsageError: it was not.
        """
        trials = self._trials(new.args, new.kwargs, pruned)
        if trials.settled() is None:
            raise UsageError(
                f"no choice is recorded for {self.base_fn.__name__} on {trials.tuning.call.problem}"
                ": warm it up (foretune warm-up), or leave out strict"
            )

    def _mind_removed(self, key: Key) -> None:
        """If our choice was taken out of ``cache``, tune all problems of that key anew."""
        if key not in self._anchors or key in self.cache:
            return
        del self._anchors[key]
        for plan in self._plans.values():
            for at, decision in list(plan.entries.items()):
                if decision.key == key:
                    del plan.entries[at]
                    self._stale.add((plan, at))

    def _run_captured(self, new: NewCall, pruned: list[triton.Config]) -> Any:
        """Launch what is remembered or predicted: while a graph is captured nothing is measured.

        It may have to be compiled and loaded first.
        """
        trials = self._trials(new.args, new.kwargs, pruned)
        if new.where not in self._stopgaps:
            self._stopgaps[new.where] = self._guarded(
                lambda: trials.settled() or trials.predicted(), lambda: pruned[0]
            )
        with loading_allowed():
            return self._launch_first(new, trials, self._stopgaps[new.where], final=False)

    def _run_tuned(self, new: NewCall, pruned: list[triton.Config]) -> Any:
        trials = self._trials(new.args, new.kwargs, pruned, new.where in self._stale)
        self._tune(new.key, trials)
        if trials.nothing_runs:
            return self._launch(trials.config, new.args, new.kwargs)
        self._stale.discard(new.where)
        self._stopgaps.pop(new.where, None)
        return self._launch_first(new, trials, trials.config, final=True)

    def _launch_first(
        self, new: NewCall, trials: Trials, config: triton.Config, final: bool
    ) -> Any:
        """Launch ``config``, or the next best where it turns out not to run; remember which."""
        replaced = False
        while True:
            if final:
                self._remember(new, config)
            try:
                result = self._launch(config, new.args, new.kwargs)
            except CANNOT_RUN as e:  # it was chosen without measuring, or by somebody else
                if final:
                    self._forget(new)
                after = trials.without(config, e)
                if after is None:
                    raise
                config, replaced = after, True
                continue
            break
        if replaced:
            self._guarded(trials.settle_on_best, lambda: None)
            if not final:
                self._stopgaps[new.where] = config
        return result

    def _tune(self, key: Key, trials: Trials) -> None:
        """Let ``trials`` choose; tell everybody that stock Triton tells."""

        def tune() -> None:
            start = time.time()
            self._guarded(trials.tune, lambda: self._stock_tuning(trials))
            self.bench_time = time.time() - start
            self.configs_timings = trials.timings
            if not trials.nothing_runs:
                self.cache.setdefault(key, trials.config)
            if trials.fresh:
                full = {**self.nargs, **trials.kwargs, **trials.config.all_kwargs()}
                self.pre_hook(full, reset_only=True)

        # stock takes the file for complete: what was measured of it must be all
        if self.cache_results and self.options.budget == "all":
            if self.check_disk_cache(key, trials.configs, tune):
                trials.config, trials.timings = self.cache[key], self.configs_timings
        else:
            tune()
        self._tell_listener(key, trials)
        self._print(key, trials)

    def _stock_tuning(self, trials: Trials) -> None:
        """Measure as stock does: the way out when anything of ours fails.

        No more than the budget, and of a space too large to measure as many as of a long list.
        """
        most = min(self.options.most(len(trials.configs)), LONG_LIST)
        timings = {
            config: self._bench(*trials.args, config=config, **trials.kwargs)
            for config in trials.configs[:most]
        }
        trials.timings, trials.fresh = timings, len(timings)
        trials.config = min(timings, key=timings.__getitem__, default=trials.configs[0])

    def _run_online(self, new: NewCall, pruned: list[triton.Config]) -> Any:
        try:
            if new.where not in self._online:
                kept = {n: v if n == "grid" else describe(v) for n, v in new.kwargs.items()}
                stale = new.where in self._stale
                trials = self._trials(tuple(map(describe, new.args)), kept, pruned, stale)
                self._online[new.where] = Online(trials, self._launch, self.warn)
            self._online.move_to_end(new.where)
            while len(self._online) > MOST_ONLINE:
                self._online.popitem(last=False)
            online = self._online[new.where]
        except Exception as e:
            self.warn(e)
            return self._run_tuned(new, pruned)
        result = online.run(new.args, new.kwargs)
        if online.choice is not None:
            del self._online[new.where]
            self._stale.discard(new.where)
            self._guarded(lambda: self._note_timings(online.trials), lambda: None)
            self._remember(new, online.choice)
        return result

    def _note_timings(self, trials: Trials) -> None:
        with self.tunings.lock:
            self.configs_timings = trials.timings_so_far()

    def _remember(self, new: NewCall, config: triton.Config) -> None:
        key = new.key
        if key not in self.cache or self.cache[key] is not self._anchors.get(key):
            self.cache[key] = self._anchors[key] = config
        decision = Decision(config, config.all_kwargs(), key, self._anchors[key])
        new.plan.entries[new.at] = decision

    def _forget(self, new: NewCall) -> None:
        new.plan.entries.pop(new.at, None)
        if self.cache.get(new.key) is self._anchors.pop(new.key, None):
            self.cache.pop(new.key, None)

    def _launch(self, config: triton.Config, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.best_config = config
        knobs = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **knobs})
        return self.fn.run(*args, **kwargs, **knobs)

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPlan:
        which = plan_id(args, kwargs)
        if which not in self._plans:
            self._plans[which] = make_plan(
                self.arg_names, self.keys, parameters_of(self.function), args, kwargs,
                classes=self.options.budget != "all",
                buckets={n: partial(self.options.bucket, n) for n in self.options.buckets or {}},
            )  # fmt: skip
        return self._plans[which]

    def _stock_key(self, kwargs: dict[str, Any]) -> Key:
        """Return the key of stock Triton: values of the key arguments, then every dtype."""
        given = {n: v for n, v in {**self.nargs, **kwargs}.items() if n in self.arg_names}
        values = [given[name] for name in self.keys if name in given]
        return (*values, *(str(v.dtype) for v in given.values() if hasattr(v, "dtype")))

    def _guarded(self, act: Callable[[], Any], instead: Callable[[], Any]) -> Any:
        """Return what ``act`` does; if Foretune fails, not the kernel, do ``instead``."""
        try:
            return act()
        except KernelFailure as e:
            raise e.cause from None
        except (PredictorError, TrackingError):  # of the predictor that the user named
            raise
        except Exception as e:
            self.warn(e)
            return instead()

    def warn(self, error: Exception) -> None:
        """Say that Foretune failed and what happens instead."""
        warnings.warn(
            f"foretune.autotune of {self.base_fn.__name__} fell back to stock Triton: "
            f"{type(error).__name__}: {error}",
            ForetuneWarning,
            stacklevel=2,
        )

    def _tell_listener(self, key: Key, trials: Trials) -> None:
        listener = getattr(triton.knobs.autotuning, "listener", None)
        if listener is not None and trials.timings:
            listener(
                fn=self.function,
                key=key,
                best_config=trials.config,
                configs_timings=trials.timings,
                duration=self.bench_time if trials.fresh else None,
                cache_hit=not trials.fresh,
            )

    def _print(self, key: Key, trials: Trials) -> None:
        if not triton.knobs.autotuning.print:
            return
        name = self.base_fn.__name__
        if trials.fresh:
            print(
                f"Triton autotuning for function {name},\nwith key as {key},\n"
                f"finished after {self.bench_time:.2f}s,\nbest config selected: {trials.config};"
            )
        elif self.options.budget != "all":
            known = f"{len(trials.timings)} measured before" if trials.timings else "predicted"
            print(
                f"Foretune chose for function {name},\nwith key as {key} ({known}):\n"
                f"{trials.config};"
            )


class TurnedOff(Autotuner):
    """Tunes as stock Triton does; what only Foretune has can still be asked for."""

    run = Stock.run


def _check_names(arg_names: Sequence[str], **lists: Sequence[str] | None) -> None:
    """Refuse names that are no arguments, as Triton does since 3.9, in its words.

    Before, it ignored them: a typo in ``key`` made a kernel tune once and never again.
    """
    for what, names in lists.items():
        unknown = [name for name in names or () if name not in arg_names]
        if unknown:
            raise ValueError(
                f"{what} contains names that are not kernel arguments: {', '.join(unknown)}. "
                f"Valid argument names are: {', '.join(arg_names)}."
            )
