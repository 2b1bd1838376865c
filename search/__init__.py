"""Searchers: propose configurations (`ask`), learn from measurements (`tell`)."""

from typing import TYPE_CHECKING

from foretune.lazy import lazy

if TYPE_CHECKING:
    from foretune.search.optuna.sampler import SurrogateSampler
    from foretune.search.searcher import Prior, Searcher, make_searcher

__all__ = ["Prior", "Searcher", "SurrogateSampler", "make_searcher"]

__getattr__, __dir__ = lazy(
    __name__,
    {"optuna.sampler": ("SurrogateSampler",), "searcher": ("Prior", "Searcher", "make_searcher")},
)
