"""Products of bit planes: what rounding predicts, and the error shrinks with every bit."""

import numpy as np
import pytest

pytest.importorskip("numba")

from bit_planes import BITS, WORD, BitPlanes, counts_of, pack

from foretune.relative_error import relative_error
from foretune.space import Configuration
from foretune.testing import check_kernel

KERNEL = BitPlanes()
PROBLEM = KERNEL.problem(N=37, K=300)


def unpack(planes, scales, columns):
    """Return the rounded numbers of packed rows."""
    rows, groups, bits, words = planes.shape
    bit = np.unpackbits(planes.view(np.uint8), axis=3, bitorder="little")
    q = (bit.astype(np.int64) << np.arange(bits)[:, None]).sum(axis=2)
    numbers = scales[..., None].astype(np.float64) * (2 * q - ((1 << bits) - 1))
    return numbers.reshape(rows, groups * words * WORD)[:, :columns]


def test_bit_planes_fulfils_contract():
    check_kernel(KERNEL, [{"N": 37, "K": 300}, {"N": 1, "K": 1}], configs=2, seed=3)


@pytest.mark.parametrize(
    ("bits", "x_bits"), [*((bits, 8) for bits in BITS), (min(BITS), 2), (max(BITS), 2)]
)
def test_bit_planes_product_is_that_of_rounded_numbers(bits, x_bits):
    inputs = KERNEL.make_inputs(PROBLEM)
    config = Configuration(bits=bits, x_bits=x_bits, group=128, threads=1)
    w, w_scales, _ = pack(inputs["w"], bits, 128)
    x, x_scales, _ = pack(inputs["x"][None], x_bits, 128)
    expected = unpack(w, w_scales, 300) @ unpack(x, x_scales, 300)[0]
    found = KERNEL.build(PROBLEM, config, inputs)()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_bit_planes_every_bit_lowers_error():
    inputs = KERNEL.make_inputs(KERNEL.problem(N=256, K=512))
    expected = KERNEL.reference(inputs)
    errors = [
        relative_error(
            KERNEL.build(
                KERNEL.problem(N=256, K=512),
                Configuration(bits=bits, x_bits=8, group=128, threads=1),
                inputs,
            )(),
            expected,
        )
        for bits in BITS
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] < 1.0
    assert errors[-1] < 0.02


def test_groups_end_with_the_row():
    assert counts_of(300, 128).tolist() == [128, 128, 44]


def test_zeros_stay_zeros():
    inputs = {"w": np.zeros((3, 64), np.float32), "x": np.zeros(64, np.float32)}
    config = Configuration(bits=8, x_bits=8, group=128, threads=1)
    found = KERNEL.build(KERNEL.problem(N=3, K=64), config, inputs)()
    assert np.abs(found).max() <= 64
