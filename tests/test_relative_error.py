"""Tests the error of an output, element by element: `foretune.relative_error`."""

import numpy as np
import pytest

from foretune.relative_error import WORST_ELEMENT, relative_error

RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal(2000)


def test_relative_error_of_normal_numbers_is_near_relative_norm():
    noise = 1e-3 * RNG.standard_normal(2000)
    norm = np.linalg.norm(noise) / np.linalg.norm(NORMAL)
    assert relative_error(NORMAL + noise, NORMAL) == pytest.approx(norm, rel=0.15)
    assert relative_error(NORMAL, NORMAL.copy()) == 0
    assert relative_error(3.0, 2.0) == 0.5
    assert relative_error(np.full(9, 1.25), np.ones(9)) == 0.25


def test_relative_error_large_value_hides_no_other_error():
    right = np.concatenate([[1e9], NORMAL[1:]])
    zeroed = np.where(right == 1e9, right, 0.0)
    assert np.linalg.norm(zeroed - right) < 1e-7 * np.linalg.norm(right)
    assert relative_error(zeroed, right) > 0.5


def test_relative_error_counts_one_wrong_element_among_many():
    right = np.full(1_000_000, 2.0)
    out = right.copy()
    out[-1] = 0.0
    assert relative_error(out, right) == pytest.approx(1 / WORST_ELEMENT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_relative_error_ignores_rounding_noise_of_cancelled_terms(dtype):
    """The spectrum of one tone has one large value, and rounding errors."""
    tone = np.sin(2 * np.pi * 5 * np.arange(4096) / 4096)
    right, out = (
        np.fft.rfft(tone),
        np.fft.rfft(np.roll(tone, 1)) * np.exp(2j * np.pi * np.arange(2049) / 4096),
    )
    assert relative_error(out.astype(np.complex128), right) < 1e-9
    noisy = np.zeros(5000, dtype)
    noisy[0], noisy[1:] = 1, np.finfo(dtype).eps * RNG.uniform(-1, 1, 4999)
    assert relative_error(np.eye(1, 5000, dtype=dtype)[0], noisy) < 1e-6


def test_relative_error_of_inverse_computed_otherwise_is_small():
    a = RNG.random((300, 300)) + 9 * np.eye(300)
    inverse = np.linalg.inv(a)
    assert relative_error(a @ inverse, inverse @ a) < 1e-9


def test_relative_error_of_zeros_uses_size_of_other_elements():
    right = np.where(NORMAL > 1.5, NORMAL, 0.0)
    assert relative_error(right + 1e-9, right) < 1e-8
    assert relative_error(right + 1.0, right) > 0.1
    assert relative_error(np.zeros(3), np.zeros(3)) == 0
    assert relative_error(np.full(3, 1e-9), np.zeros(3)) > 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_relative_error_infinite_elsewhere_is_infinite(bad):
    right = np.array([1.0, bad, 2.0])
    assert relative_error(right.copy(), right) == 0
    assert relative_error(np.array([bad, 1.0, 2.0]), right) == np.inf
    assert relative_error(np.array([1.0, 1.0, 2.0]), right) == np.inf
    assert relative_error(right, np.array([1.0, 1.0, 2.0])) == np.inf


class Lazy:
    """Computes when it is read, and equals everything."""

    def __array__(self, dtype=None, copy=None):
        return NORMAL.copy()

    def __eq__(self, other):
        return True

    __hash__ = None


@pytest.mark.parametrize(
    ("output", "right"),
    [
        (np.zeros(0), np.ones(3)),
        (np.ones(0), 1.0),
        (np.ones((3, 1)), np.ones(3)),
        (Lazy(), NORMAL),
        (NORMAL.view(type("View", (np.ndarray,), {})), NORMAL),
        (NORMAL.tolist()[:-1], NORMAL),
        ("b", "a"),
        (None, NORMAL),
    ],
)
def test_relative_error_incomparable_is_infinite(output, right):
    assert relative_error(output, right) == np.inf


def test_relative_error_takes_integers_complex_and_texts():
    assert relative_error(np.array([1, 2, 3]), [1, 2, 3]) == 0
    assert relative_error(np.array([True, False]), np.array([True, True])) > 0.1
    assert relative_error(np.uint8([0, 255]), np.uint8([255, 255])) > 0.1
    assert relative_error(np.array([1 + 1j]), np.array([1 + 0j])) == 1
    assert relative_error("a", "a") == 0
