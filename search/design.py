"""Space-filling designs: the candidate that is farthest from the points known so far."""

import numpy as np


def farthest(candidates: np.ndarray, others: np.ndarray, periodic: bool = False) -> int:
    """Return the number of the candidate whose nearest point among ``others`` is farthest.

    Both have the shape (rows, axes). ``periodic``: points lie in the unit cube, and distances wrap
    around it. Otherwise the corners of the cube come first, as in a two-level screening design.
    """
    if periodic:
        apart = np.abs(candidates[:, None] - others)
        shorter_way = np.minimum(apart, 1 - apart)
        squares = (shorter_way**2).sum(axis=2)
        return int(np.argmax(squares.min(axis=1)))

    # |a - b|² = |a|² + |b|² - 2 a·b needs no array of shape (candidates, others, axes).
    others_part = (others**2).sum(axis=1) - 2 * candidates @ others.T
    squares_to_nearest = (candidates**2).sum(axis=1) + others_part.min(axis=1)
    return int(np.argmax(squares_to_nearest))
