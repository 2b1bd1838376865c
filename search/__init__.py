"""Searchers: propose configurations (`ask`), learn from measurements (`tell`)."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.search.factory import make_searcher
    from foretune.search.optuna.guided_sampler import GuidedSampler
    from foretune.search.optuna.sampler import SurrogateSampler
    from foretune.search.searcher import Prior, Searcher
    from foretune.search.stopping import Stopping

__all__ = ["GuidedSampler", "Prior", "Searcher", "Stopping", "SurrogateSampler", "make_searcher"]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "factory": ("make_searcher",),
            "optuna.sampler": ("SurrogateSampler",),
            "optuna.guided_sampler": ("GuidedSampler",),
            "searcher": ("Prior", "Searcher"),
            "stopping": ("Stopping",),
        },
    )
