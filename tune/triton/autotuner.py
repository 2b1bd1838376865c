"""Drop-in subclass of Triton's Autotuner that measures only the most promising configurations.

It is a subclass because torch.compile, export and other libraries check ``isinstance``. Hooks,
pruning, ``cache`` and all other attributes keep their meaning; only `run` is new. Predictions stay
out of ``early_config_prune`` and ``perf_model``, because compilers trace these.
"""

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial, wraps
from typing import Any, Self, cast

import triton
import triton.testing
from triton.runtime.autotuner import Autotuner as Stock

from foretune.collect.compiled.arguments import describe
from foretune.errors import PredictorError, TrackingError, UsageError, warn
from foretune.tune.triton import runtime
from foretune.tune.triton.benchmark import INVALID_CONFIG_ERRORS, UserKernelError
from foretune.tune.triton.call_driver import CallDriver
from foretune.tune.triton.call_plan import CachedChoice, CallPlan, Key, KeyedCall, make_plan
from foretune.tune.triton.call_recorder import record_if_requested
from foretune.tune.triton.call_tuner import CallTunerFactory
from foretune.tune.triton.kernel import KernelCall
from foretune.tune.triton.online import OnlineSearch
from foretune.tune.triton.options import Options
from foretune.tune.triton.parameters import triton_parameters, undecorated_kernel, underlying_tensor
from foretune.tune.triton.ranking import RankedConfiguration, rank_configurations
from foretune.tune.triton.stalled import StalledCallDriver

_STOCK_RUN = Stock.run  # Triton's own `run`, to detect a library's replacement
MAX_ONLINE_SEARCHES = 64
"""Maximum number of online searches; the least recently called one is dropped."""
PARTIAL_FILE = "measured by Foretune"
"""Part of the key of files that have the timings of some configurations."""
MAX_FALLBACK_CONFIGS = 200
"""Maximum number of configurations to measure after an error in Foretune."""


class Autotuner(Stock):  # type: ignore[misc]
    """See `foretune.autotune`; takes the arguments of Triton's class, and ``options``."""

    default_options = Options()
    """Options of kernels that are decorated without any, as by a class that a library derives."""
    _plans: Sequence[CallPlan] = ()
    pre_hook: Callable[..., Any]
    post_hook: Callable[..., Any]
    nargs: Any  # positional arguments of the current call, by name

    @wraps(Stock.__init__)  # type: ignore[misc]  # libraries read the signature
    def __init__(self, *args: Any, options: Options | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        _check_names(
            self.arg_names,
            key=self.keys,
            reset_to_zero=self.reset_to_zero,
            restore_value=self.restore_value,
        )
        if self.reset_to_zero or self.restore_value:
            self._unwrap_descriptors_in_hooks()
        self.options = options or self.default_options
        self._plans = ()
        self._cache_entries: dict[Key, triton.Config] = {}
        """The entries of `cache` that are choices of Foretune; others are the user's."""
        # These grow as `cache` does, by an entry for each problem. Only searches hold much memory.
        self._online: OrderedDict[Any, OnlineSearch] = OrderedDict()
        """Searches by problem, the least recently called first."""
        self._provisional_choices: dict[Any, triton.Config] = {}
        """Choices by problem that calls in a graph capture run with."""
        self._recorded: set[Any] = set()
        """Problems whose calls were recorded."""
        self._stale: set[Any] = set()
        """Problems to retune because their entry was removed from `cache`."""
        self.lock = threading.RLock()
        self._process = os.getpid()
        self.tuner_factory = CallTunerFactory(self.options)

    def _unwrap_descriptors_in_hooks(self) -> None:
        """Let Triton's hooks reset and restore the tensors of descriptors."""
        stock_pre_hook = self.pre_hook
        stock_post_hook = self.post_hook

        def tensors(arguments: Mapping[str, Any]) -> dict[str, Any]:
            return {name: underlying_tensor(value) for name, value in arguments.items()}

        if not self.user_defined_pre_hook:
            self.pre_hook = lambda kwargs, reset_only=False: stock_pre_hook(
                tensors(kwargs), reset_only
            )
        if not self.user_defined_post_hook:
            self.post_hook = lambda kwargs, exception: stock_post_hook(tensors(kwargs), exception)

    @cached_property
    def do_bench(self) -> Callable[..., Any]:
        """The benchmarker: the user's, the driver's, or a wall clock in the interpreter."""
        if self._do_bench is None and runtime.is_interpreted():
            return runtime.bench_in_interpreter
        options = getattr(self, "options", None)  # subclasses may skip our constructor
        if self._do_bench is None and options is not None and options.mode == "graph":
            return cast(Callable[..., Any], triton.testing.do_bench_cudagraph)
        return self._do_bench or triton.runtime.driver.active.get_benchmarker()

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch with the choice for this problem; choose on the first call."""
        # A library has replaced Triton's own `run`: call that one.
        if Stock.run is not _STOCK_RUN:
            return Stock.run(self, *args, **kwargs)
        if len(configs := self.configs) == 1:
            return self._launch(configs[0], args, kwargs)

        # A known problem: the fast path, which every launch takes.
        for plan in self._plans:
            if (key := plan.problem_key(args, kwargs)) is None:
                continue
            decision = plan.entries.get(key)
            if decision is None or self.cache.get(decision.stock_key) is not decision.cache_entry:
                break
            self.best_config = config = decision.config
            if config.pre_hook is not None:
                named = zip(self.arg_names, args, strict=False)
                config.pre_hook({**dict(named), **kwargs, **decision.knobs})
            return self.fn.run(*args, **kwargs, **decision.knobs)
        return self._run_slowly(args, kwargs)

    def choose(self, *args: Any, grid: Any = None, **kwargs: Any) -> triton.Config:
        """Return the configuration that a call would run with, without launching or measuring.

        For a tuned problem it is the stored choice, else the one predicted fastest.
        """
        with self._arguments_named(args):
            self._require_device()
            kwargs = {**kwargs, "grid": grid}
            if len(self.configs) == 1:
                return self.configs[0]
            stock_key = self._stock_key(kwargs)
            entry = self.cache.get(stock_key)
            if entry is not None and entry is not self._cache_entries.get(stock_key):
                return entry  # set by the user
            driver = self._make_driver(args, kwargs, self._prune(kwargs))
            return driver.sufficient_choice() or driver.predicted_best()

    def rank(self, *args: Any, grid: Any = None, **kwargs: Any) -> list[RankedConfiguration]:
        """Return all configurations for a call, best first, without launching or measuring.

        Measured ones come first, then predicted ones, then failures.
        """
        with self._arguments_named(args):
            self._require_device()
            kwargs = {**kwargs, "grid": grid}
            driver = self._make_driver(args, kwargs, self._prune(kwargs))
            with self.tuner_factory.lock:
                return rank_configurations(driver.tuner, driver.configs)

    def freeze(self, configs: Sequence[triton.Config] = ()) -> Self:
        """Keep only ``configs``, or the choices made so far; return this kernel.

        Use it for compilers that read ``configs`` and bypass `run`. torch.compile measures the
        remaining configurations; if only one remains, it measures nothing. Raises UsageError if
        nothing has been chosen yet.
        """
        chosen = list(self.cache.values())
        for plan in self._plans:
            chosen += [choice.config for choice in plan.entries.values()]
        kept = list(dict.fromkeys(configs or chosen))
        if not kept:
            name = self.base_fn.__name__
            raise UsageError(
                f"{name} has chosen no configuration yet: call it first, or {name}.choose(...)"
            )
        self.configs = kept
        return self

    @cached_property
    def function(self) -> Any:
        """The kernel below all decorators."""
        return undecorated_kernel(self.fn)

    def _prune(self, kwargs: Mapping[str, Any]) -> list[triton.Config]:
        """Return the configurations that pruning leaves; ValueError if it leaves none."""
        pruned = self.prune_configs(kwargs)
        if not pruned:
            raise ValueError(f"pruning left {self.base_fn.__name__} without a configuration")
        return list(pruned)

    def _kernel_call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> KernelCall:
        return KernelCall(self, self.options, args, kwargs)

    def _make_driver(
        self,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        configs: Sequence[triton.Config],
        ignore_known: bool = False,
    ) -> CallDriver:
        kernel_call = self._kernel_call(args, kwargs)
        return CallDriver(kernel_call, self.tuner_factory, configs, ignore_known)

    def _run_slowly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch a call that the fast path does not know."""
        if not hasattr(self, "tuner_factory"):  # a subclass skipped our constructor
            return _STOCK_RUN(self, *args, **kwargs)
        with self._arguments_named(args):
            return self._run_known_or_choose(args, kwargs)

    def _forget_threads_of_parent(self) -> None:
        """In a forked process, free the locks, and drop the searches.

        The threads that may hold a lock, or take a step of a search, exist only in the parent.
        """
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._online.clear()
        self.lock = threading.RLock()
        self.tuner_factory.renew_lock()

    @contextmanager
    def _arguments_named(self, args: tuple[Any, ...]) -> Iterator[None]:
        """Hold the lock and set ``nargs``, which pruning and Triton's benchmark read."""
        self._forget_threads_of_parent()
        with self.lock:
            self.nargs = dict(zip(self.arg_names, args, strict=False))
            try:
                yield
            finally:
                self.nargs = None

    def _require_device(self) -> None:
        if self._do_bench is None:  # a user's benchmarker needs none
            runtime.require_device()

    def _run_known_or_choose(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Launch with a known choice, the user's choice, or the only configuration; else choose."""
        plan = self._get_plan(args, kwargs)
        problem_key = plan.problem_key(args, kwargs)
        assert problem_key is not None
        call = KeyedCall(args, kwargs, plan, problem_key, self._stock_key(kwargs))
        self._retune_removed_entries(call.stock_key)

        # A problem with a choice.
        decision = plan.entries.get(call.problem_key)
        if decision is not None and self.cache.get(call.stock_key) is decision.cache_entry:
            return self._launch(decision.config, args, kwargs)

        # An entry of `cache` that the user set. With budget="all", ours counts as well: as in
        # stock Triton, all problems of a stock key share one choice.
        entry = self.cache.get(call.stock_key)
        set_by_user = entry is not self._cache_entries.get(call.stock_key)
        if call.stock_key in self.cache and (set_by_user or self.options.measures_all):
            plan.entries[call.problem_key] = CachedChoice(
                config=entry,
                knobs=entry.all_kwargs(),
                stock_key=call.stock_key,
                cache_entry=entry,
            )
            return self._launch(entry, args, kwargs)

        pruned = self._prune(kwargs)
        if len(pruned) == 1:
            self._cache_choice(call, pruned[0])
            return self._launch(pruned[0], args, kwargs)
        return self._choose_and_run(call, pruned)

    def _choose_and_run(self, call: KeyedCall, pruned: list[triton.Config]) -> Any:
        """Launch a problem without a choice: record the call, and choose as the options say."""
        if call.problem_id not in self._recorded:
            self._recorded.add(call.problem_id)
            record_if_requested(self._kernel_call(call.args, call.kwargs), pruned)
        if self.options.strict:
            self._require_recorded_choice(call, pruned)
        if self.options.mode == "serve":
            return self._serve(call, pruned)
        if runtime.is_capturing():
            return self._run_in_capture(call, pruned)
        if self.options.mode == "online":
            return self._run_online(call, pruned)
        return self._tune_and_run(call, pruned)

    def _require_recorded_choice(self, call: KeyedCall, pruned: list[triton.Config]) -> None:
        driver = self._make_driver(call.args, call.kwargs, pruned)
        if driver.sufficient_choice() is None:
            problem = driver.tuner.history.call.problem
            raise UsageError(
                f"no choice is recorded for {self.base_fn.__name__} on {problem}: warm it up "
                "(foretune warm-up), or drop strict"
            )

    def _retune_removed_entries(self, stock_key: Key) -> None:
        """Retune all problems of ``stock_key`` if its choice was removed from ``cache``."""
        if stock_key not in self._cache_entries or stock_key in self.cache:
            return
        del self._cache_entries[stock_key]
        for plan in self._plans:
            for problem_key, decision in list(plan.entries.items()):
                if decision.stock_key == stock_key:
                    del plan.entries[problem_key]
                    self._stale.add((plan, problem_key))

    def _serve(self, call: KeyedCall, pruned: list[triton.Config]) -> Any:
        """Launch the stored choice, else the default: a request does not wait for measurements."""
        default = pruned[0]
        driver = self._make_driver(call.args, call.kwargs, pruned)
        config = self._fall_back_on_error(
            lambda: driver.stored_choice() or default,
            fallback=lambda: default,
            consequence="runs with its first configuration",
        )
        with runtime.allow_code_loading():
            self._cache_choice(call, config)
            try:
                return self._launch(config, call.args, call.kwargs)
            except INVALID_CONFIG_ERRORS:
                self._forget_choice(call)
                if config is default:
                    raise
                self._cache_choice(call, default)
                return self._launch(default, call.args, call.kwargs)

    def _run_in_capture(self, call: KeyedCall, pruned: list[triton.Config]) -> Any:
        """Launch the stored or predicted choice; in a graph capture nothing is measured."""
        driver = self._make_driver(call.args, call.kwargs, pruned)
        if call.problem_id not in self._provisional_choices:
            self._provisional_choices[call.problem_id] = self._fall_back_on_error(
                lambda: driver.sufficient_choice() or driver.predicted_best(),
                fallback=lambda: pruned[0],
                consequence="is captured with its first configuration",
            )
        choice = self._provisional_choices[call.problem_id]
        with runtime.allow_code_loading():
            return self._launch_first(call, driver, choice, final=False)

    def _tune_and_run(self, call: KeyedCall, pruned: list[triton.Config]) -> Any:
        """Choose while the call waits, then launch."""
        self._require_device()
        driver = StalledCallDriver(
            self._kernel_call(call.args, call.kwargs),
            self.tuner_factory,
            pruned,
            ignore_known=call.problem_id in self._stale,
        )
        self._tune(call.stock_key, driver)
        if driver.all_failed:
            return self._launch(driver.config, call.args, call.kwargs)
        self._stale.discard(call.problem_id)
        self._provisional_choices.pop(call.problem_id, None)
        return self._launch_first(call, driver, driver.config, final=True)

    def _launch_first(
        self, call: KeyedCall, driver: CallDriver, config: triton.Config, final: bool
    ) -> Any:
        """Launch ``config``, or the next best one that can run; keep the one that ran.

        A ``final`` choice goes to `cache`, another one only lasts until the problem is tuned.
        """
        first = config
        while True:
            if final:
                self._cache_choice(call, config)
            try:
                result = self._launch(config, call.args, call.kwargs)
                break
            except INVALID_CONFIG_ERRORS as e:  # predicted, or measured in another process
                if final:
                    self._forget_choice(call)
                next_best = driver.next_best_after_failure(config, e)
                if next_best is None:
                    raise
                config = next_best

        if config is not first:
            self._fall_back_on_error(
                driver.store_best, fallback=lambda: None, consequence="did not store its choice"
            )
            if not final:
                self._provisional_choices[call.problem_id] = config
        return result

    def _forget_choice(self, call: KeyedCall) -> None:
        """Undo `_cache_choice`, unless the user has changed the entry since."""
        call.plan.entries.pop(call.problem_key, None)
        if self.cache.get(call.stock_key) is self._cache_entries.pop(call.stock_key, None):
            self.cache.pop(call.stock_key, None)

    def _tune(self, stock_key: Key, driver: StalledCallDriver) -> None:
        """Let ``driver`` choose; update everything that stock Triton updates."""

        def tune() -> None:
            start = time.time()
            self._fall_back_on_error(
                driver.tune,
                fallback=lambda: self._benchmark_like_stock(driver),
                consequence="fell back to stock Triton",
            )
            self.bench_time = time.time() - start
            self.configs_timings = driver.timings
            if not driver.all_failed:
                self.cache.setdefault(stock_key, driver.config)
            if driver.new_count:
                full = {**driver.kernel.named, **driver.config.all_kwargs()}
                self.pre_hook(full, reset_only=True)

        file_key = self._key_of_file(stock_key)
        if file_key is None:
            tune()
        elif self.check_disk_cache(file_key, driver.configs, tune):
            driver.config = self.cache[file_key]
            driver.timings = self.configs_timings
        if file_key != stock_key:  # Triton notes what it read under the file's key
            self.cache.pop(file_key, None)
        self._notify_listener(stock_key, driver)
        self._print_choice(stock_key, driver)

    def _key_of_file(self, stock_key: Key) -> Key | None:
        """Return the key of the file in Triton's cache that keeps the timings; None without one.

        Stock Triton's file must have the timings of all configurations. If fewer are measured, the
        store keeps them; without a store, a separate file does.
        """
        if not self.cache_results or not stock_key:
            return None
        if self.options.measures_all:
            return stock_key
        if self.options.store is not False:
            return None
        o = self.options
        predictor = o.predictor if isinstance(o.predictor, str) else type(o.predictor).__name__
        search = (o.budget, o.regret, o.seconds, o.mode, str(o.objective), o.include_default)
        return (*stock_key, f"{PARTIAL_FILE} {search} {predictor}")

    def _benchmark_like_stock(self, driver: StalledCallDriver) -> None:
        """Measure like stock Triton, within the budget, after an error in Foretune."""
        limit = min(self.options.max_measurements(len(driver.configs)), MAX_FALLBACK_CONFIGS)
        timings = {config: driver.kernel.bench(config) for config in driver.configs[:limit]}
        driver.timings = timings
        driver.new_count = len(timings)
        driver.config = min(timings, key=timings.__getitem__, default=driver.configs[0])

    def _run_online(self, call: KeyedCall, pruned: list[triton.Config]) -> Any:
        """Let the call carry a trial of its problem's search; cache the choice at its end."""
        try:
            search = self._online_search(call, pruned)
        except Exception as e:
            self._warn_of_error(e, "is tuned while the call waits")
            return self._tune_and_run(call, pruned)

        result = search.run(call.args, call.kwargs)
        if search.choice is not None:
            del self._online[call.problem_id]
            self._stale.discard(call.problem_id)
            self.configs_timings = self._fall_back_on_error(
                search.driver.collect_timings,
                fallback=dict,
                consequence="has no list of its times",
            )
            self._cache_choice(call, search.choice)
        return result

    def _online_search(self, call: KeyedCall, pruned: list[triton.Config]) -> OnlineSearch:
        """Return the search of the call's problem; drop those that were not called for long."""
        problem = call.problem_id
        if problem not in self._online:
            # Descriptions, so that the search keeps no tensor alive.
            args = tuple(map(describe, call.args))
            kwargs = {n: v if n == "grid" else describe(v) for n, v in call.kwargs.items()}
            is_stale = problem in self._stale
            driver = self._make_driver(args, kwargs, pruned, ignore_known=is_stale)
            warn_of_end = partial(self._warn_of_error, consequence="ended its search early")
            self._online[problem] = OnlineSearch(driver, self._launch, warn_of_end)
        self._online.move_to_end(problem)
        while len(self._online) > MAX_ONLINE_SEARCHES:
            self._online.popitem(last=False)
        return self._online[problem]

    def _cache_choice(self, call: KeyedCall, config: triton.Config) -> None:
        """Keep a choice for later calls, also in `cache`, where libraries look."""
        key = call.stock_key
        if key not in self.cache or self.cache[key] is not self._cache_entries.get(key):
            self.cache[key] = config
            self._cache_entries[key] = config
        call.plan.entries[call.problem_key] = CachedChoice(
            config=config,
            knobs=config.all_kwargs(),
            stock_key=key,
            cache_entry=self._cache_entries[key],
        )

    def _launch(self, config: triton.Config, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.best_config = config
        knobs = config.all_kwargs()
        if config.pre_hook is not None:
            named = zip(self.arg_names, args, strict=False)
            config.pre_hook({**dict(named), **kwargs, **knobs})
        return self.fn.run(*args, **kwargs, **knobs)

    def _get_plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPlan:
        """Return the plan of calls with these types of arguments; make it for the first one."""
        for plan in self._plans:
            if plan.problem_key(args, kwargs) is not None:
                return plan
        plan = make_plan(
            self.arg_names,
            self.keys,
            triton_parameters(self.function),
            args,
            kwargs,
            classes=not self.options.measures_all,
            buckets={n: partial(self.options.bucket, n) for n in self.options.buckets or {}},
        )
        self._plans = (*self._plans, plan)
        return plan

    def _stock_key(self, kwargs: dict[str, Any]) -> Key:
        """Return stock Triton's key: values of the key arguments, then every dtype."""
        given = {n: v for n, v in {**self.nargs, **kwargs}.items() if n in self.arg_names}
        values = [given[name] for name in self.keys if name in given]
        return (*values, *(str(v.dtype) for v in given.values() if hasattr(v, "dtype")))

    def _fall_back_on_error(
        self, act: Callable[[], Any], *, fallback: Callable[[], Any], consequence: str
    ) -> Any:
        """Return ``act()``, or ``fallback()`` if Foretune fails; raise errors of the kernel.

        ``consequence`` completes the warning "foretune.autotune of KERNEL …".
        """
        try:
            return act()
        except UserKernelError as e:
            raise e.cause from None
        except (PredictorError, TrackingError):  # the user named this predictor
            raise
        except Exception as e:
            self._warn_of_error(e, consequence)
            return fallback()

    def _warn_of_error(self, error: Exception, consequence: str) -> None:
        """Warn that Foretune failed, and say what happens instead."""
        reason = f"{type(error).__name__}: {error}"
        warn(f"foretune.autotune of {self.base_fn.__name__} {consequence}: {reason}")

    def _notify_listener(self, stock_key: Key, driver: StalledCallDriver) -> None:
        listener = getattr(triton.knobs.autotuning, "listener", None)
        if listener is not None and driver.timings:
            listener(
                fn=self.function,
                key=stock_key,
                best_config=driver.config,
                configs_timings=driver.timings,
                duration=self.bench_time if driver.new_count else None,
                cache_hit=not driver.new_count,
            )

    def _print_choice(self, stock_key: Key, driver: StalledCallDriver) -> None:
        if not triton.knobs.autotuning.print:
            return
        name = self.base_fn.__name__
        if driver.new_count:
            print(
                f"Triton autotuning for function {name},\nwith key as {stock_key},\n"
                f"finished after {self.bench_time:.2f}s,\nbest config selected: {driver.config};"
            )
        elif not self.options.measures_all:
            known = f"{len(driver.timings)} measured before" if driver.timings else "predicted"
            print(
                f"Foretune chose for function {name},\nwith key as {stock_key} ({known}):\n"
                f"{driver.config};"
            )


class StockAutotuner(Autotuner):
    """Tunes as stock Triton does; `choose`, `rank` and `freeze` still work."""

    run = Stock.run


def _check_names(arg_names: Sequence[str], **lists: Sequence[str] | None) -> None:
    """Raise Triton 3.9's error for names that are not arguments; older versions ignore them."""
    for what, names in lists.items():
        unknown = [name for name in names or () if name not in arg_names]
        if unknown:
            raise ValueError(
                f"{what} contains names that are not kernel arguments: {', '.join(unknown)}. "
                f"Valid argument names are: {', '.join(arg_names)}."
            )
