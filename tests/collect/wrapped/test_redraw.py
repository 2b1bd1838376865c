"""New values for given arguments: other content, alike in all that affects a run."""

import numpy as np
import pytest

from foretune.collect.wrapped.function import FunctionKernel
from foretune.collect.wrapped.values import blend, redraw, rescale
from foretune.errors import UsageError

RNG = np.random.default_rng(0)
KNOBS = {"b": [1, 2]}


def made(function, args=(), seed=1, **more):
    kernel = FunctionKernel(function, KNOBS, args, **more)
    inputs = kernel.make_inputs(kernel.problem(), seed)
    return [*inputs["args"], *inputs["kwargs"].values()]


ARRAYS = {
    "normal": RNG.standard_normal((40, 30)),
    "single precision": RNG.random(500, dtype=np.float32),
    "half precision": RNG.random((8, 9)).astype(np.float16),
    "columns first": np.asfortranarray(RNG.random((20, 10))),
    "constant": np.full((50, 2), 3.5),
    "one": np.array(7.25),
    "one row": RNG.random((1, 90)),
    "complex": RNG.random(60) + 1j * RNG.random(60),
    "empty": np.ones((0, 3)),
}


@pytest.mark.parametrize("draw", [blend, rescale])
@pytest.mark.parametrize("name", ARRAYS)
def test_the_layout_and_the_range_stay_and_the_content_does_not(draw, name):
    x = ARRAYS[name]
    before = x.copy(order="K")
    (new,), (again,), (other,) = (redraw([x], draw, seed) for seed in (1, 1, 2))
    assert (new.shape, new.dtype, new.strides) == (x.shape, x.dtype, before.strides)
    assert np.array_equal(x, before)
    assert np.array_equal(new, again)
    if x.size:
        assert not (new == x).any()
        assert not np.array_equal(new, other)
        assert np.abs(new).max() <= np.abs(x).max()
        assert np.median(np.abs(new)) == pytest.approx(np.median(np.abs(x)), rel=0.5)


def test_structure_stays():
    (sparse,) = redraw([np.where(RNG.random(400) < 0.3, RNG.random(400), 0.0)], blend, 1)
    x = np.where(RNG.random(400) < 0.3, RNG.random(400), 0.0)
    assert ((redraw([x], blend, 1)[0] == 0) == (x == 0)).all()
    assert 0 < np.count_nonzero(sparse) < 200
    holes = RNG.random(50)
    holes[[3, 9]] = np.nan, np.inf
    (new,) = redraw([holes], blend, 1)
    assert np.isnan(new[3])
    assert new[9] == np.inf
    assert np.isfinite(np.delete(new, [3, 9])).all()
    up = np.sort(RNG.random(50))
    rising, falling = redraw([up, up[::-1].copy()], blend, 1)
    assert (np.diff(rising) > 0).all()
    assert (np.diff(falling) < 0).all()
    shares = RNG.dirichlet(np.ones(5), 30)
    assert redraw([shares], blend, 1)[0].sum(axis=1) == pytest.approx(np.ones(30))
    assert (redraw([np.zeros(9)], blend, 1)[0] == 0).all()


def test_only_fractions_are_drawn():
    given = [3, 2.5, True, "mode", None, np.arange(9), np.ones(3, bool), [1, 2], ["a"], {"k": 1}]
    for new, value in zip(redraw(given, blend, 1), given, strict=True):
        assert new is value or new == value
    x = np.array([1.0, 2.0, 4.0])
    new = redraw([[1.0, 2.0, 4.0], (x, {"x": x})], blend, 1)
    assert type(new[0]) is list
    assert new[0] != [1.0, 2.0, 4.0]
    assert new[1][0] is new[1][1]["x"] is not x


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "int64"])
def test_tensors(dtype):
    torch = pytest.importorskip("torch")
    x = torch.arange(1, 13).reshape(3, 4).t().to(getattr(torch, dtype))
    (new,) = redraw([x], blend, 1)
    assert (new.shape, new.dtype, new.stride()) == (x.shape, x.dtype, x.stride())
    assert bool((new == x).all()) == (dtype == "int64")


def test_seed_zero_gives_the_arguments():
    x = RNG.random(20)
    assert made(lambda x, b=1: x * 2, (x,), seed=0)[0] is x
    new = made(lambda x, b=1: x * 2, (x,))[0]
    assert not np.array_equal(new, x)


def test_pinned_arguments_and_constant_answers_stay():
    x, y = RNG.random((2, 20))
    new = made(lambda x, y, b=1: x * y, (x,), kwargs={"y": y}, pinned=["x"])
    assert new[0] is x
    assert not np.array_equal(new[1], y)
    assert made(lambda x, b=1: x * 2, (x,), pinned="x")[0] is x
    assert made(lambda x, b=1: x * 2, (x,), check=x * 2)[0] is x
    with pytest.raises(UsageError, match="has no argument 'z' to pin"):
        made(lambda x, b=1: x, (x,), pinned=["z"])


def test_a_matrix_that_must_be_positive_definite_is_scaled():
    a = np.eye(20) * 20 + np.ones((20, 20))

    def solve(a, b=1):
        return np.linalg.cholesky(a)

    new = made(solve, (a,))[0]
    assert new == pytest.approx(a * (new[0, 0] / a[0, 0]))
    assert 0.5 <= new[0, 0] / a[0, 0] < 1


def test_nothing_runs_where_nothing_is_drawn():
    def never(x, n, b=1):
        raise AssertionError("it ran")

    x = np.arange(5)  # few whole numbers may be sizes
    assert made(never, (x, 3))[0] is x
    assert made(never, lambda seed=0: (np.full(3, float(seed)), 3))[0].sum() == 3


def test_what_accepts_no_other_values_keeps_its_own():
    x = np.linspace(1.0, 2.0, 30)

    def picky(x, b=1):
        if x[0] != 1.0:
            raise ValueError("not these")
        return x

    assert made(picky, (x,))[0] is x
    assert made(lambda x, b=1: np.sqrt(x - 1.0), (x,))[0] is not x
    assert made(lambda x, b=1: np.sqrt(x[::-1][-1:] - 1.0), (x,))[0] is not x


def test_new_nan_is_not_accepted():
    x = np.concatenate([np.linspace(-1.0, -0.5, 50), np.linspace(1.0, 2.0, 50)])
    new = made(lambda x, b=1: np.sqrt(x[50:]), (x,))[0]
    assert (new >= -1).all()
    assert (new[50:] >= 0).all()


def test_a_function_of_the_seed_draws_for_itself():
    def args(n=8, seed=0):
        return np.random.default_rng(seed).random(n), np.ones(3)

    new = made(lambda x, y, w, b=1: x.sum() * w.sum(), args, kwargs={"w": np.ones(4)})
    assert np.array_equal(new[0], np.random.default_rng(1).random(8))
    assert (new[1] == 1).all()
    assert (new[2] != 1).all()
    fixed = made(lambda x, b=1: x * 2, lambda n=8: np.ones(n))
    assert (fixed[0] != 1).all()
