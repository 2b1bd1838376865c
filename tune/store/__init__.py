"""The tuning store: measurements and choices, shared by threads, processes and machines.

It has one row per configuration, so a new configuration costs one measurement. Launches with a
known configuration do not access it.
"""

from foretune.tune.store.reader import StoreFile
from foretune.tune.store.store import Store
from foretune.tune.store.subject import Choice, MergeReport, Subject, Summary

__all__ = ["Choice", "MergeReport", "Store", "StoreFile", "Subject", "Summary"]
