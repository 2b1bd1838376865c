"""Searchers propose configurations (`ask`) and learn from measurements (`tell`); one loop."""

from typing import TYPE_CHECKING

from foretune.support.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.search.factory import make_searcher
    from foretune.search.loop import Batch, SearchLoop, SearchResult, run, run_concurrently, search
    from foretune.search.optuna.sampler import SurrogateSampler
    from foretune.search.searcher import AskTell, Prior, Searcher
    from foretune.search.standalone import SearchOutcome, run_search
    from foretune.search.stopping import Stopping

__all__ = [
    "AskTell",
    "Batch",
    "Prior",
    "SearchLoop",
    "SearchOutcome",
    "SearchResult",
    "Searcher",
    "Stopping",
    "SurrogateSampler",
    "make_searcher",
    "run",
    "run_concurrently",
    "run_search",
    "search",
]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__)
