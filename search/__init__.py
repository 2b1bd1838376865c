"""Searchers: propose configurations (`ask`), learn from measurements (`tell`)."""

import importlib
from typing import TYPE_CHECKING, Any

from foretune.search.searcher import Prior, Searcher, make_searcher

if TYPE_CHECKING:
    from foretune.search.sampler import SurrogateSampler

__all__ = ["Prior", "Searcher", "SurrogateSampler", "make_searcher"]


def __getattr__(name: str) -> Any:
    if name != "SurrogateSampler":
        raise AttributeError(f"module 'foretune.search' has no attribute {name!r}")
    return importlib.import_module("foretune.search.sampler").SurrogateSampler
