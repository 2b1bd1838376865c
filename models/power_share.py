"""A kernel's share of its board's power limit, from the roofline's parts of its time.

An awake board draws a share of its limit. Each active unit adds to it, until the limit throttles
the clock. With the roofline's parts (`CalibratedRoofline`) as shares of the time::

    busy = Σ weight_i * part_i / t,   t = overhead + (Σ part_i**p) ** (1/p)
    power / limit = idle + (1 - idle) * busy / (1 + busy**4) ** (1/4)

A short kernel is mostly overhead, and its board nearly idle. On a faster device the same kernel is
shorter and draws a smaller share. Boards differ in their limits far more than in this law.
"""

import numpy as np

from foretune.models.roofline import Law, parts_of_time

_IDLE, _OVERHEAD, _EFFICIENCY, _OVERLAP, _WEIGHT = -1.4, np.log(0.02), 0.2, 0.8, -0.3
"""Start of the fit: 20 % idle; log of 20 µs, of 1 / 80 %, p = 1.6; weight 0.75."""
_KNEE = 4.0
"""Sharpness of the throttling."""


def _start(parts: int) -> np.ndarray:
    """Return the start of the fit.

    Log odds of idle, log overhead_ms, one efficiency per part, root of p - 1, and one log weight
    per part.
    """
    return np.array([_IDLE, _OVERHEAD, *[_EFFICIENCY] * parts, _OVERLAP, *[_WEIGHT] * parts])


def _log_share(parameters: np.ndarray, limits: np.ndarray) -> np.ndarray:
    """Return the log of the share of the limit.

    ``parameters`` are as in `_start`, scalars or one per row; ``limits`` are the logs of each
    part's time in ms (rows, parts).
    """
    parts = limits.shape[-1]
    odds, weights = parameters[0], parameters[parts + 3 :]
    log_ms, terms = parts_of_time(parameters[1 : parts + 3], limits)
    busy = sum(np.exp(w + term - log_ms) for w, term in zip(weights, terms[1:], strict=True))
    idle = 1.0 / (1.0 + np.exp(-odds))
    used = busy / (1.0 + busy**_KNEE) ** (1.0 / _KNEE)
    return np.log(idle + (1.0 - idle) * used)


POWER = Law(_start, _log_share)
