"""Foretune's search as an autotuner of Helion."""

from collections.abc import Callable, Sequence
from typing import Any

from foretune.measurement import Measurement
from foretune.problem import Problem
from foretune.search.factory import SearcherKind, make_searcher
from foretune.search.loop import run, search
from foretune.search.stopping import Stopping
from foretune.space import Configuration, ListedSpace
from foretune.tune.doors.knobs import flat_knobs, internals_of, timed

TESTED = "Helion 1.5.1"
"""The version that was run."""
CANDIDATES = 200
"""Number of random Helion configurations among which the search chooses."""
BATCH = 4
"""Number of configurations that Helion compiles at the same time."""


def helion_autotuner(budget: int = 16, searcher: SearcherKind = "surrogate") -> Callable[..., Any]:
    """Return an autotuner for ``@helion.kernel(autotuner_fn=helion_autotuner())``.

    Helion's default and its seeds (the user's and the compiler's) come first. Helion compiles,
    checks, measures, logs and caches; its ``autotune_budget_seconds`` and random seed apply.

    Args:
        budget: maximum number of measured configurations; all seeds are measured in any case.
        searcher: as for `foretune.make_searcher`.
    """

    def autotuner(kernel: Any, args: Sequence[Any], **_: Any) -> Any:
        with internals_of(TESTED):
            from helion.autotuner import cache_classes
            from helion.autotuner.base_search import BaseSearch

            cache = cache_classes[kernel.settings.autotune_cache]

        class ForetuneSearch(BaseSearch):  # type: ignore[misc]
            def _autotune(self) -> Any:
                return _search(self, budget, searcher)

        def make() -> Any:
            return ForetuneSearch(kernel, args)

        return cache(make(), autotuner_factory=make)

    return autotuner


def _search(helion: Any, budget: int, kind: SearcherKind) -> Any:
    """Return the best measured configuration of a Helion `BaseSearch`."""
    with internals_of(TESTED):
        from helion.exc import NoConfigFound

        seeds, others = _candidates(helion)
        benchmark = helion.benchmark_batch
        seed = helion.settings.autotune_random_seed
        seconds = helion.settings.autotune_budget_seconds

    # The search knows candidates by their knobs; Helion gets its own objects back.
    helion_configs = {_configuration(config): config for config in [*seeds, *others]}
    first = list(dict.fromkeys(map(_configuration, seeds)))
    searcher = make_searcher(kind, ListedSpace(helion_configs), seed=seed)

    def measure(start: tuple[Configuration, ...]) -> list[Measurement]:
        results = benchmark([helion_configs[config] for config in start])
        return [
            timed("helion", Problem(), config, device="this", time_ms=result.perf, source="helion")
            for config, result in zip(start, results, strict=True)
        ]

    # All seeds are measured, even if the budget is smaller.
    stopping = Stopping(max(budget, len(first)), seconds=seconds)
    run(search(searcher, stopping, first=first, parallel=BATCH), measure)
    best = searcher.best()
    if best is None:
        raise NoConfigFound
    return helion_configs[best]


def _candidates(helion: Any) -> tuple[list[Any], list[Any]]:
    """Return Helion's seeds, the default first, and its random configurations."""
    from helion.autotuner.base_search import normalize_autotune_seed_configs

    settings = helion.settings
    generation = helion.config_spec.create_config_generation(
        overrides=settings.autotune_config_overrides or None,
        advanced_controls_files=settings.autotune_search_acf or None,
        process_group_name=helion.kernel.env.process_group_name,
    )
    default = generation.unflatten(generation.default_flat())
    users = generation.user_seed_flat_config_pairs(normalize_autotune_seed_configs(settings))
    of_compiler = generation.seed_flat_config_pairs()
    seeds = [default, *(config for _, config in [*users, *of_compiler])]
    return seeds, generation.random_population(CANDIDATES)


def _configuration(config: Any) -> Configuration:
    return Configuration(dict(flat_knobs(config.config)))
