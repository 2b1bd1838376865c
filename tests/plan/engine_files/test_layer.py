"""Names of engines' files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import UsageError
from foretune.plan.engine_files.layer import Layer

SIZES = st.integers(1, 10**6)
BLOCKS = st.none() | st.tuples(st.integers(1, 512), st.integers(1, 512))
DEVICES = st.sampled_from(["NVIDIA B200", "NVIDIA A100-SXM4-80GB", "AMD Instinct MI300X"])
DTYPES = st.sampled_from(["", "fp8_w8a8", "int4_w4a16"])
EXPERTS = st.builds(Layer, SIZES, SIZES, DEVICES, DTYPES, BLOCKS)
PRODUCTS = st.builds(Layer, st.just(0), SIZES, DEVICES, DTYPES, BLOCKS, SIZES)


@given(EXPERTS | PRODUCTS, st.sampled_from(["vllm", "sglang"]))
def test_a_name_says_which_layer(layer, engine):
    assert Layer.from_file(f"folder/{layer.file_name_for(engine)}") == layer


def test_both_engines_names():
    """As files in their packages are called."""
    product = Layer(0, 2112, "NVIDIA H20", "fp8_w8a8", (128, 128), 7168)
    start = "N=2112,K=7168,device_name=NVIDIA_H20,dtype=fp8_w8a8,block_shape="
    assert product.file_name_for("vllm") == f"{start}[128,128].json"
    assert product.file_name_for("sglang") == f"{start}[128, 128].json"
    experts = Layer(8, 7168, "NVIDIA H200 NVL")
    assert experts.file_name_for("vllm") == "E=8,N=7168,device_name=NVIDIA_H200.json"
    assert experts.file_name_for("sglang") == "E=8,N=7168,device_name=NVIDIA_H200_NVL.json"


@pytest.mark.parametrize(
    "name",
    [
        "E=8,N=7168,device_name=NVIDIA_H20_down.json",
        "E=8,N=7168,device_name=NVIDIA_H20,per_channel_quant=True.json",
        "E=8,N=7168,K=64,device_name=NVIDIA_H20.json",
        "N=7168,device_name=NVIDIA_H20.json",
        "card.json",
    ],
)
def test_files_of_other_kernels_are_refused(name):
    with pytest.raises(UsageError, match="not named as"):
        Layer.from_file(name)


def test_the_problem_of_a_product():
    layer = Layer(0, 512, "NVIDIA H20", "fp8_w8a8", (128, 64), 7168)
    assert dict(layer.problem(16)) == {
        "M": 16, "N": 512, "K": 7168, "dtype": "fp8_w8a8", "block_n": 128, "block_k": 64,
    }  # fmt: skip
