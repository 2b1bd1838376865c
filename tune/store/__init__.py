"""The tuning store: what has been measured and chosen, shared by threads, processes and machines.

One row per configuration, so that one more configuration means one more measurement. Nothing here
is on the path of a launch whose configuration is known.
"""

from foretune.tune.store.store import Store
from foretune.tune.store.store_file import StoreFile
from foretune.tune.store.subject import Choice, MergeReport, Subject, Summary

__all__ = ["Choice", "MergeReport", "Store", "StoreFile", "Subject", "Summary"]
