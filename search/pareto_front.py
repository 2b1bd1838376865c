"""The Pareto front of points, and the volume that it dominates."""

import numpy as np
import numpy.typing as npt

CHUNK = 256
"""Number of points that are compared with all others at a time."""

Floats = npt.NDArray[np.float64]


def pareto_front(values: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows of ``values`` (points, objectives) that no other row dominates.

    A row dominates another if it is nowhere larger and somewhere smaller. Equal rows do not
    dominate each other. Rows with infinity or NaN are never on the front.
    """
    points = np.asarray(values, dtype=float)
    if not len(points):
        return np.zeros(0, dtype=bool)

    # Nothing has dominated these rows so far. Chunk by chunk, they strike out those behind them.
    is_front = np.isfinite(points).all(axis=1)
    start = 0
    while True:
        chunk = start + np.flatnonzero(is_front[start:])[:CHUNK]
        if not len(chunk):
            return is_front
        beside_chunk = points[:, None]
        nowhere_smaller = np.all(beside_chunk >= points[chunk], axis=2)
        somewhere_larger = np.any(beside_chunk > points[chunk], axis=2)
        is_front &= ~np.any(nowhere_smaller & somewhere_larger, axis=1)
        start = int(chunk[-1]) + 1


def hypervolume(values: npt.ArrayLike, reference: npt.ArrayLike) -> float:
    """Return the exact volume that ``values`` (points, objectives) dominate below ``reference``.

    Computed by slices along the last objective (While et al., IEEE Transactions on Evolutionary
    Computation 10, 2006), down to four objectives, whose slices share a grid of the first two.
    """
    points = np.asarray(values, dtype=float)
    corner = np.asarray(reference, dtype=float)
    if len(points):
        points = points[(points < corner).all(axis=1)]
    if not len(points):
        return 0.0
    front = points[pareto_front(points)]

    # Fewer than four objectives: the volume is as thick as 1 along the others.
    n_missing = max(4 - len(corner), 0)
    thick = np.hstack([front, np.zeros((len(front), n_missing))])
    return _volume(thick, np.append(corner, np.ones(n_missing)))


def _volume(points: Floats, corner: Floats) -> float:
    """Return the volume of four or more objectives, by slices along the last one.

    Between one point and the next along it, the points before dominate the same slice.
    """
    by_last = points[np.argsort(points[:, -1])]
    depths = np.diff(by_last[:, -1], append=corner[-1])
    if len(corner) == 4:
        slices = _slice_volumes(by_last[:, :3], corner[:3])
        return float(depths @ slices)
    volume = 0.0
    for n, depth in enumerate(depths, start=1):
        volume += depth * _volume(by_last[:n, :-1], corner[:-1])
    return float(volume)


def _slice_volumes(points: Floats, corner: Floats) -> Floats:
    """Return the volumes of the first, the first two, …, of all ``points``, of three objectives.

    The first two objectives span a grid. Each point raises the dominated height along the third one
    over all cells at or beyond its own, if they are lower.
    """
    x, column_of_point = np.unique(points[:, 0], return_inverse=True)
    y, row_of_point = np.unique(points[:, 1], return_inverse=True)
    widths = np.diff(x, append=corner[0])
    lengths = np.diff(y, append=corner[1])
    heights = np.zeros((len(x), len(y)))
    volumes = np.empty(len(points))
    volume = 0.0
    for n, height in enumerate(corner[2] - points[:, 2]):
        column = column_of_point[n]
        row = row_of_point[n]
        # Heights never decrease along an axis: the lower cells are a rectangle's corner.
        end_column = heights[:, row].searchsorted(height)
        end_row = heights[column].searchsorted(height)
        raised = heights[column:end_column, row:end_row]
        gain = np.maximum(height - raised, 0.0)
        raised += gain
        volume += widths[column:end_column] @ gain @ lengths[row:end_row]
        volumes[n] = volume
    return volumes
