"""A function that chooses its block size at the first call of each shape, and keeps the choice.

python examples/tunable.py
foretune tune examples/tunable.py:smooth --problem N=3000
"""

import numpy as np

import foretune as ft


def inputs(N=2000, seed=0):
    """Return the arguments of a problem, for the command line."""
    return (np.random.default_rng(seed).random((N, 500)),)


@ft.tunable(block=[8, 32, 128, 512, 2048], inputs=inputs, options={"budget": 5})
def smooth(image, block=32):
    """Return the mean of every pixel and its two neighbors in the same column."""
    out = image.copy()
    for start in range(1, len(image) - 1, block):
        stop = min(start + block, len(image) - 1)
        inner = image[start - 1 : stop - 1] + image[start:stop] + image[start + 1 : stop + 1]
        out[start:stop] = inner / 3
    return out


if __name__ == "__main__":
    (image,) = inputs()
    smooth(image)  # tunes, or finds the choice of an earlier run
    print(ft.best("smooth", image_0=len(image)))
