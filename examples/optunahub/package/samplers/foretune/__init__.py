"""Foretune's surrogate search as a sampler."""

from foretune.search import SurrogateSampler

__all__ = ["SurrogateSampler"]
