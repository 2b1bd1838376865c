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

_MODULE_OF = {
    "AskTell": "foretune.search.searcher",
    "Batch": "foretune.search.loop",
    "Prior": "foretune.search.searcher",
    "SearchLoop": "foretune.search.loop",
    "SearchOutcome": "foretune.search.standalone",
    "SearchResult": "foretune.search.loop",
    "Searcher": "foretune.search.searcher",
    "Stopping": "foretune.search.stopping",
    "SurrogateSampler": "foretune.search.optuna.sampler",
    "make_searcher": "foretune.search.factory",
    "run": "foretune.search.loop",
    "run_concurrently": "foretune.search.loop",
    "run_search": "foretune.search.standalone",
    "search": "foretune.search.loop",
}
"""Public name -> module that defines it: the imports above, which only type checkers run."""

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__, _MODULE_OF)
