"""Functions that keep what depends on shapes, types or options only, never on values of arrays.

With ``cached=0`` a function computes it in every call; this is the default. The gain is honest:
calls with other values have it, too. `CACHES` has them by name, with their arguments.
"""

import functools
import re

import numpy as np

RNG = np.random.default_rng(0)
CACHES = {}


def cache(*arguments):
    """Add a function and its arguments to the honest caches."""

    def add(function):
        CACHES[function.__name__] = (function, arguments)
        return function

    return add


def kept(make):
    """Return a function that is ``make``, or keeps what it made, by its second argument."""
    keeping = functools.lru_cache(make)
    return lambda cached, *key: keeping(*key) if cached else make(*key)


window_of = kept(np.hanning)
twiddles_of = kept(lambda n: np.exp(-2j * np.pi * np.arange(n)[:, None] * np.arange(n) / n))
path_of = kept(lambda n: np.einsum_path("ij,jk,kl->il", *[np.ones((n, n))] * 3, optimize=True)[0])
triangle_of = kept(lambda n: np.tril_indices(n))
pattern_of = kept(lambda text: re.compile(text))
compiled_of = kept(lambda text: compile(text, "<expression>", "eval"))
grid_of = kept(lambda rows, columns: np.mgrid[:rows, :columns].sum(axis=0))
nodes_of = kept(lambda n: np.polynomial.legendre.leggauss(n))
bits_of = kept(lambda n: np.array([int(f"{i:010b}"[::-1], 2) for i in range(n)]))
factor_of = kept(lambda dtype: np.dtype(dtype).type(np.finfo(dtype).eps))


@cache(RNG.random(500))
def keeps_a_window(x, cached=0):
    return x * window_of(cached, len(x))


@cache(RNG.random(64))
def keeps_the_factors_of_a_transform(x, cached=0):
    return twiddles_of(cached, len(x)) @ x


@cache(RNG.random((20, 20)))
def keeps_the_order_of_a_product(x, cached=0):
    path = path_of(cached, len(x))
    return np.einsum("ij,jk,kl->il", x, x, x, optimize=path)


@cache(RNG.random((50, 50)))
def keeps_the_indices_of_a_triangle(x, cached=0):
    return x[triangle_of(cached, len(x))]


@cache(RNG.random(40), r"\d+")
def keeps_a_pattern(x, text, cached=0):
    digits = pattern_of(cached, text).findall("1 22 333")
    return x * len(digits)


@cache(RNG.random(40), "x * 2 + 1")
def keeps_compiled_code(x, text, cached=0):
    return eval(compiled_of(cached, text), {"x": x})


@cache(RNG.random((30, 40)))
def keeps_a_grid(x, cached=0):
    return x + grid_of(cached, *x.shape)


@cache(RNG.random(30))
def keeps_the_nodes_of_an_integral(x, cached=0):
    nodes, weights = nodes_of(cached, 20)
    return np.cos(x[:, None] * nodes) @ weights


@cache(RNG.random(1024))
def keeps_a_permutation(x, cached=0):
    return x[bits_of(cached, len(x))]


@cache(RNG.random(100, dtype=np.float32))
def keeps_a_constant_of_a_type(x, cached=0):
    return x + factor_of(cached, x.dtype.name)


@cache(RNG.integers(0, 100, 200))
def keeps_the_edges_of_bins(x, cached=0):
    return np.bincount(x, minlength=100) + grid_of(cached, 1, 100)[0]
