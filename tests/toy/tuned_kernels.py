"""Kernels to decorate, and what a made-up device takes for each of their configurations."""

import triton
import triton.language as tl
from triton.runtime.errors import OutOfResources

SLOW = 4.0
FAST = 1.0
"""Milliseconds."""
NEWEST = tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9)
"""Whether this Triton behaves like the newest; with older ones ours may behave like either."""


def copy(x, y, n, m=1, BLOCK: tl.constexpr = 64):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) * m, mask=i < n)


def count(n, BLOCK: tl.constexpr):
    tl.device_assert(tl.program_id(0) * BLOCK < n + BLOCK)


def scale(x, n, FACTOR: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i, mask=i < n) * FACTOR, mask=i < n)


def configs(*blocks, **options):
    """Return one configuration per block size."""
    return [triton.Config({"BLOCK": block}, **options) for block in blocks]


def best_is(block):
    """Return times under which this block size is the fastest."""
    return lambda launch: FAST if launch.config["BLOCK"] == block else SLOW


def by_size(launch):
    """Return a time under which block 128 is best for up to 100 elements, 256 beyond."""
    wanted = 128 if launch.arguments["n"] <= 100 else 256
    return FAST + abs(launch.config["BLOCK"] - wanted) / 128


def failing(*blocks, best, error=None):
    """Return times under which these block sizes do not fit, or fail as given."""

    def times(launch):
        if launch.config["BLOCK"] in blocks:
            raise error or OutOfResources(300_000, 200_000, "shared memory")
        return best_is(best)(launch)

    return times


def blocks_of(launches):
    """Return the block sizes of launches, or of configurations."""
    return [
        (launch.kwargs if isinstance(launch, triton.Config) else launch.config)["BLOCK"]
        for launch in launches
    ]
