"""Every SIMD intrinsic against NumPy, at each vector width."""

import numpy as np
import pytest

pytest.importorskip("numba")

from foretune.collect.kernels.numba_codegen import compile_function, function_source

LANES = [4, 8, 16]
SIZE = 40


def run(lanes, arguments, lines, *arrays, result="store(out, 0, r)"):
    """Run ``lines`` (which set ``r``) on ``arrays`` and return the 40 elements of ``out``."""
    body = [line.replace("LANES", str(lanes)) for line in [*lines, result]]
    out = np.full(SIZE, -7, dtype=arrays[0].dtype if arrays[0].dtype.kind == "f" else np.float32)
    compile_function(function_source("probe", f"out, {arguments}", body), "probe")(out, *arrays)
    return out


@pytest.fixture(params=[np.float32, np.float64], ids=["fp32", "fp64"])
def x(request):
    return np.random.default_rng(0).standard_normal(SIZE).astype(request.param)


@pytest.fixture(params=LANES)
def lanes(request):
    return request.param


def test_load_and_store_move_exactly_the_lanes(x, lanes):
    out = run(lanes, "x", ["r = load(x, 3, LANES)"], x)
    assert np.array_equal(out[:lanes], x[3 : 3 + lanes])
    assert np.all(out[lanes:] == -7)


@pytest.mark.parametrize("count", [-3, 0, 1, 3, 4, 11, 16, 2**33])
def test_load_first_fills_with_zeros(x, lanes, count):
    out = run(lanes, "x, count", ["r = load_first(x, 3, count, LANES)"], x, count)
    kept = min(max(count, 0), lanes)
    assert np.array_equal(out[:kept], x[3 : 3 + kept])
    assert np.all(out[kept:lanes] == 0)


@pytest.mark.parametrize("count", [-3, 0, 1, 3, 4, 11, 16, 2**33])
def test_store_first_leaves_the_rest(x, lanes, count):
    lines = ["r = load(x, 0, LANES)"]
    out = run(lanes, "x, count", lines, x, count, result="store_first(out, 1, r, count)")
    kept = min(max(count, 0), lanes)
    assert np.array_equal(out[1 : 1 + kept], x[:kept])
    assert np.all(out[1 + kept :] == -7)


def test_store_past_cache_stores(lanes):
    x = np.arange(SIZE, dtype=np.float32)
    buffer = np.zeros(SIZE + 32, dtype=np.float32)
    out = buffer[-buffer.ctypes.data // 4 % 16 :][:SIZE]  # aligned to 64 bytes
    body = [f"store_past_cache(out, 0, load(x, 0, {lanes}))"]
    compile_function(function_source("probe", "out, x", body), "probe")(out, x)
    assert np.array_equal(out[:lanes], x[:lanes])
    assert np.all(out[lanes:] == 0)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_load_bytes_and_to_float_keep_the_sign(lanes, dtype):
    w = np.random.default_rng(0).integers(0, 256, SIZE).astype(np.uint8).view(dtype)
    w[:2] = np.array([-128, 127]).astype(dtype)
    out = run(lanes, "w", ["r = to_float(load_bytes(w, 0, LANES))"], w)
    assert np.array_equal(out[:lanes], w[:lanes].astype(np.float32))


def test_nibbles(lanes):
    w = np.arange(5, 250, 6, dtype=np.uint8)[:SIZE]
    low = run(lanes, "w", ["r = to_float(low_nibble(load_bytes(w, 0, LANES)))"], w)
    high = run(lanes, "w", ["r = to_float(high_nibble(load_bytes(w, 0, LANES)))"], w)
    assert np.array_equal(low[:lanes], w[:lanes] & 15)
    assert np.array_equal(high[:lanes], w[:lanes] >> 4)


def test_prefetch_changes_nothing_even_beyond_the_end(x, lanes):
    out = run(lanes, "x", ["prefetch(x, 1 << 40)", "r = load(x, 0, LANES)"], x)
    assert np.array_equal(out[:lanes], x[:lanes])


def test_splat(x, lanes):
    assert np.all(run(lanes, "x", ["r = splat(x[5], LANES)"], x)[:lanes] == x[5])


@pytest.mark.parametrize("count", [-1, 0, 3, 16])
def test_keep_first_replaces_the_other_lanes(x, lanes, count):
    out = run(lanes, "x, count", ["r = keep_first(load(x, 0, LANES), count, x[9])"], x, count)
    kept = min(max(count, 0), lanes)
    assert np.array_equal(out[:kept], x[:kept])
    assert np.all(out[kept:lanes] == x[9])


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ("add", np.add),
        ("subtract", np.subtract),
        ("multiply", np.multiply),
        ("maximum", np.maximum),
    ],
)
def test_two_operand_arithmetic(x, lanes, operation, expected):
    out = run(lanes, "x", [f"r = {operation}(load(x, 0, LANES), load(x, 20, LANES))"], x)
    assert np.array_equal(out[:lanes], expected(x[:lanes], x[20 : 20 + lanes]))


def test_fma(x, lanes):
    lines = ["r = fma(load(x, 0, LANES), load(x, 16, LANES), load(x, 24, LANES))"]
    expected = x[:lanes].astype(float) * x[16 : 16 + lanes] + x[24 : 24 + lanes]
    assert np.allclose(run(lanes, "x", lines, x)[:lanes], expected, atol=1e-6)


def test_total_and_largest_reduce_to_a_number(x, lanes):
    summed = run(lanes, "x", ["r = total(load(x, 0, LANES))"], x, result="out[0] = r")
    assert np.isclose(summed[0], x[:lanes].sum(), rtol=1e-5, atol=1e-6)
    most = run(lanes, "x", ["r = largest(load(x, 0, LANES))"], x, result="out[0] = r")
    assert most[0] == x[:lanes].max()


def test_power_of_two_is_exact_and_ends_in_zero(lanes):
    x = np.resize(np.float32([-1e30, -1000, -127, -126, -1, 0, 1, 2, 64, 127]), SIZE)
    for at in (0, 10):
        out = run(lanes, "x, at", ["r = power_of_two(load(x, at, LANES))"], x, at)
        expected = np.where(x > -127, np.ldexp(np.float32(1), np.maximum(x, -127).astype(int)), 0)
        assert np.array_equal(out[:lanes], expected[at : at + lanes])


@pytest.mark.parametrize("scale", [1.0, 50.0, 1000.0, 1e4])
def test_exponential_in_two_parts(lanes, scale):
    x = np.linspace(-scale, scale, SIZE, dtype=np.float32)
    n, m = (np.empty(0, np.float32) for _ in range(2))
    for at in range(0, SIZE - 15, lanes):
        lines = ["x_ = load(x, at, LANES)", "n = exp_exponent(x_)"]
        n = np.append(n, run(lanes, "x, at", [*lines, "r = n"], x, at)[:lanes])
        m = np.append(m, run(lanes, "x, at", [*lines, "r = exp_mantissa(x_, n)"], x, at)[:lanes])
    wide = x[: len(n)].astype(np.longdouble)
    expected = np.exp(wide - n * np.log(np.longdouble(2)))
    assert np.array_equal(n, np.rint(x[: len(n)] * np.log2(np.e).astype(np.float32)))
    assert np.max(np.abs(m / expected - 1)) < 2e-7
    assert m.min() > 0.7
    assert m.max() < 1.42
