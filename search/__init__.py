"""Searchers: propose configurations (`ask`), learn from measurements (`tell`)."""

from foretune.search.searcher import Prior, Searcher, make_searcher

__all__ = ["Prior", "Searcher", "make_searcher"]
