"""Working sets beside caches: whether what a kernel reads again is still there."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from foretune.family import Quantity, nan_to

CACHE_SUFFIX = "_of_cache"
"""How these quantities end: where all devices have the same cache, they only repeat others."""


def cache_features(
    name: str, working_set: Quantity, device: Mapping[str, Any]
) -> dict[str, Quantity]:
    """Return log2 of a working set (bytes) over the device's last cache, called ``…_of_cache``.

    That is ``l3_kib`` where there is one (CPUs), ``l2_kib`` elsewhere; NaN where neither is known.
    """
    cache = nan_to(device.get("l3_kib", np.nan), device.get("l2_kib", np.nan))
    return {f"{name}{CACHE_SUFFIX}": np.log2(working_set / (1024.0 * cache))}
