"""The error of an output is that of its elements: no large value and no odd object hides others."""

import numpy as np
import pytest

from foretune.relative_error import WORST_ELEMENT, relative_error

RNG = np.random.default_rng(0)
NORMAL = RNG.standard_normal(2000)


def test_it_is_about_the_relative_norm_of_normal_numbers():
    noise = 1e-3 * RNG.standard_normal(2000)
    norm = np.linalg.norm(noise) / np.linalg.norm(NORMAL)
    assert relative_error(NORMAL + noise, NORMAL) == pytest.approx(norm, rel=0.15)
    assert relative_error(NORMAL, NORMAL.copy()) == 0
    assert relative_error(3.0, 2.0) == 0.5
    assert relative_error(np.full(9, 1.25), np.ones(9)) == 0.25


def test_a_large_value_hides_nothing():
    right = np.concatenate([[1e9], NORMAL[1:]])
    zeroed = np.where(right == 1e9, right, 0.0)
    assert np.linalg.norm(zeroed - right) < 1e-7 * np.linalg.norm(right)
    assert relative_error(zeroed, right) > 0.5


def test_one_wrong_element_counts_among_many():
    right = np.full(1_000_000, 2.0)
    out = right.copy()
    out[-1] = 0.0
    assert relative_error(out, right) == pytest.approx(1 / WORST_ELEMENT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_is_left_of_terms_that_cancel_does_not_count(dtype):
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


def test_an_inverse_may_be_computed_in_another_way():
    a = RNG.random((300, 300)) + 9 * np.eye(300)
    inverse = np.linalg.inv(a)
    assert relative_error(a @ inverse, inverse @ a) < 1e-9


def test_zeros_are_compared_with_the_size_of_the_others():
    right = np.where(NORMAL > 1.5, NORMAL, 0.0)
    assert relative_error(right + 1e-9, right) < 1e-8
    assert relative_error(right + 1.0, right) > 0.1
    assert relative_error(np.zeros(3), np.zeros(3)) == 0
    assert relative_error(np.full(3, 1e-9), np.zeros(3)) > 1


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_must_stand_at_its_place(bad):
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
def test_what_cannot_be_compared_is_infinitely_far_off(output, right):
    assert relative_error(output, right) == np.inf


def test_whole_numbers_complex_ones_and_texts():
    assert relative_error(np.array([1, 2, 3]), [1, 2, 3]) == 0
    assert relative_error(np.array([True, False]), np.array([True, True])) > 0.1
    assert relative_error(np.uint8([0, 255]), np.uint8([255, 255])) > 0.1
    assert relative_error(np.array([1 + 1j]), np.array([1 + 0j])) == 1
    assert relative_error("a", "a") == 0
