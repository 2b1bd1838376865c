"""Tests kernel arguments without memory, and their texts: `collect/compiled/arguments.py`."""

import pickle

import pytest

from foretune.collect.compiled.arguments import Tensor, describe, parse_argument
from foretune.errors import UnknownName, UsageError


def test_describe_tensor_keeps_metadata_only():
    torch = pytest.importorskip("torch")
    base = torch.zeros(1000, 64, dtype=torch.float16)
    seen = describe(base[1:, 1:])
    assert (seen.element, seen.shape, seen.strides) == ("float16", (999, 63), (64, 1))
    assert seen.address == (base.data_ptr() + 130) % 16
    assert seen.bytes == base.untyped_storage().size()
    assert seen.dtype is torch.float16
    assert (seen.stride(0), seen.size(1), seen.dim(), seen.numel()) == (64, 63, 2, 999 * 63)
    assert len(pickle.dumps(seen)) < 1000


def test_describe_dtype_is_aligned_pointer():
    torch = pytest.importorskip("torch")
    assert describe(torch.bfloat16) == Tensor("bfloat16")
    assert describe((torch.int8, 3)) == (Tensor("int8"), 3)
    assert describe(None) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=fp16*", Tensor("float16")),
        ("x=fp8*2", Tensor("float8_e4m3fn", address=2)),
        ("x=4096", 4096),
        ("x=-0.5", -0.5),
        ("x=true", True),
        ("x=none", None),
        ("x=i32", 2**20),
        ("x=i64", 2**40),
    ],
)
def test_parse_argument_returns_name_and_value(text, value):
    assert parse_argument(text) == ("x", value)


def test_parse_argument_tensor_has_row_major_strides_and_named_sizes():
    sizes = {"M": 32, "K": 64}

    assert parse_argument("x=fp16[M, K]", sizes) == ("x", Tensor("float16", (32, 64), (64, 1)))
    assert parse_argument("x=bf16[2,M,3]", sizes) == (
        "x",
        Tensor("bfloat16", (2, 32, 3), (96, 3, 1)),
    )
    assert parse_argument("stride=K", sizes) == ("stride", 64)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("x=fp16[M,4]", UsageError, "'M' is no size; give it with --problem"),
        ("x=fp16[0]", UsageError, "'0' is no size"),
        ("x=half[4]", UnknownName, "unknown element type 'half'"),
        ("x", UsageError, "give NAME=VALUE"),
        ("x=fp17*", UnknownName, "unknown element type 'fp17'"),
        ("x=fp16", UsageError, "a pointer is x=fp16"),
        ("x=float16", UsageError, "a compile-time text belongs in --config"),
        ("x=fp16*3", UsageError, "an alignment is 1, 2, 4, 8 or 16"),
    ],
)
def test_parse_argument_unreadable_is_refused(text, error, message):
    with pytest.raises(error, match=message):
        parse_argument(text)
