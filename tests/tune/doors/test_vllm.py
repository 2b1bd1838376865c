"""vLLM's tuned files, and the way into a store and back: `tune/doors/vllm.py`."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import StoreError, UsageError
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.doors.vllm import (
    REQUIRED,
    Layer,
    ParameterNames,
    TunedLayer,
    export_vllm,
    import_vllm,
    read_vllm,
    write_vllm,
)
from foretune.tune.store import Choice, Store, Subject

NAMES = (*REQUIRED, "num_stages")
FILES = {
    "E=128,N=1024,device_name=NVIDIA_B200.json": Layer(128, 1024, "NVIDIA B200"),
    "E=8,N=3584,device_name=NVIDIA_A100-SXM4-80GB,dtype=int8_w8a16.json": Layer(
        8, 3584, "NVIDIA A100-SXM4-80GB", "int8_w8a16"
    ),
    "E=128,N=384,device_name=NVIDIA_H100,dtype=fp8_w8a8,block_shape=[128,128].json": Layer(
        128, 384, "NVIDIA H100", "fp8_w8a8", (128, 128)
    ),
    "E=128,N=384,device_name=NVIDIA_H100_PCIe,block_shape=[128,64].json": Layer(
        128, 384, "NVIDIA H100 PCIe", block_shape=(128, 64)
    ),
    "E=10,N=512,device_name=Intel(R)_Arc(TM)_Pro_B60_Graphics.json": Layer(
        10, 512, "Intel(R) Arc(TM) Pro B60 Graphics"
    ),
}
B200 = "E=128,N=1024,device_name=NVIDIA_B200.json"


def config(m=16, **more):
    values = dict(zip(NAMES, (m, 64, 128, 1, 4, 3), strict=True))
    return Configuration({**values, **more})


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "tuned.db")


@pytest.fixture
def b200(tmp_path):
    """A file as vLLM's own tuner writes them."""
    content = {"triton_version": "3.5.0", "1": dict(config()), "64": dict(config(64, SPLIT_K=2))}
    path = tmp_path / B200
    path.write_text(json.dumps(content, indent=4) + "\n")
    return path


@pytest.mark.parametrize("name", FILES)
def test_layer_is_read_from_a_file_name(name):
    assert Layer.from_file(f"/some/where/{name}") == FILES[name]
    assert FILES[name].file_name == name


@given(
    st.integers(1, 512),
    st.integers(1, 2**16),
    st.sampled_from(["NVIDIA L40S", "AMD Instinct MI300X", "NVIDIA GeForce RTX 4090"]),
    st.sampled_from(["", "fp8_w8a8", "int4_w4a16"]),
    st.none() | st.tuples(st.integers(1, 256), st.integers(1, 256)),
)
def test_layer_file_name_is_read_back(experts, size, device, dtype, block):
    layer = Layer(experts, size, device, dtype, block)
    assert Layer.from_file(layer.file_name) == layer


@pytest.mark.parametrize("device", ["NVIDIA H200", "NVIDIA H200 NVL", "NVIDIA H200 141GB HBM3e"])
def test_layer_file_name_is_equal_for_all_h200s(device):
    assert Layer(8, 7168, device).file_name == "E=8,N=7168,device_name=NVIDIA_H200.json"


@pytest.mark.parametrize(
    "name",
    [
        "configs.json",
        "E=8,N=1.json",
        "E=8,N=x,device_name=a.json",
        "E=8,N=1,device_name=a.txt",
        "E=8,N=1,device_name=a,per_channel_quant=True.json",
        "E=8,N=1,device_name=a_down.json",
        "E=8,N=1,K=64,device_name=a.json",
        "N=1,K=64,device_name=a.json",
    ],
)
def test_layer_from_other_file_name_is_an_error(name):
    with pytest.raises(UsageError, match="is not a name of vLLM"):
        Layer.from_file(name)


def test_read_vllm_returns_layer_version_and_configurations(b200):
    tuned = read_vllm(b200)
    assert tuned.layer == FILES[B200]
    assert tuned.triton == "3.5.0"
    assert tuned.configs == {1: config(), 64: config(64, SPLIT_K=2)}


def test_write_vllm_writes_the_same_file_again(b200, tmp_path):
    path = write_vllm(tmp_path / "copy", read_vllm(b200))
    assert path.name == B200
    assert path.read_bytes() == b200.read_bytes()


def test_read_vllm_old_file_has_no_triton_version(tmp_path):
    path = write_vllm(tmp_path, TunedLayer(FILES[B200], {2: config(), 1: config(32)}))
    assert list(json.loads(path.read_text())) == ["1", "2"]
    assert read_vllm(path).triton == ""


def test_export_vllm_writes_what_was_imported(b200, store, tmp_path):
    subject, new, kept = import_vllm(store, b200)
    assert subject == Subject("fused_moe", "vllm", "NVIDIA B200", "triton 3.5.0")
    assert (new, kept) == (2, 0)
    choice = store.choice(subject, Problem(M=64, E=128, N=1024))
    assert (choice.config, choice.how, choice.measured) == (config(64, SPLIT_K=2), "measured", 0)
    assert math.isnan(choice.regret)
    path, count = export_vllm(store, tmp_path / "out", subject, FILES[B200])
    assert count == 2
    assert path.read_bytes() == b200.read_bytes()
    assert import_vllm(store, b200) == (subject, 0, 2)


def test_import_vllm_keeps_existing_choices(b200, store):
    subject = Subject("fused_moe", "vllm", "NVIDIA B200", "triton 3.5.0")
    mine = Choice(config(128), 5, 0.0, "measured")
    store.choose(subject, Problem(M=1, E=128, N=1024), mine)
    assert import_vllm(store, b200) == (subject, 1, 1)
    assert store.choice(subject, Problem(M=1, E=128, N=1024)) == mine


def test_import_vllm_with_other_parameter_names(b200, store, tmp_path):
    subject = Subject("my_moe", "3c1f", "NVIDIA B200", "foretune 0.1.0, triton 3.9.0")
    naming = ParameterNames({"M": "tokens", "E": "experts"}, {"top_k": 8})
    import_vllm(store, b200, subject=subject, naming=naming)
    assert store.choice(subject, Problem(tokens=64, experts=128, N=1024, top_k=8)) is not None
    path, count = export_vllm(store, tmp_path / "out", subject, FILES[B200], naming)
    assert (path.name, count) == (B200, 2)
    assert json.loads(path.read_text())["triton_version"] == "3.9.0"
    with pytest.raises(UsageError, match=r"no choice for M=1,E=128,N=1024 with any M"):
        export_vllm(store, tmp_path / "out", subject, FILES[B200])


def test_export_vllm_renames_our_parameters(store, tmp_path):
    layer = FILES[B200]
    subject = Subject("grouped", "a", "NVIDIA B200", "triton 3.9.0")
    ours = Configuration(BLOCK_M=64, BLOCK_N=128, BLOCK_K=32, GROUP_M=8, num_warps=8, num_stages=3)
    store.choose(subject, layer.problem(16), Choice(ours, 4, 0.0, "measured"))
    store.choose(subject, Problem(M="x", E=128, N=1024), Choice(ours, 4, 0.0, "measured"))
    path, count = export_vllm(store, tmp_path, subject, layer)
    written = json.loads(path.read_text())
    assert count == 1
    assert written["16"] == dict(zip(NAMES, (64, 128, 32, 8, 8, 3), strict=True))


def test_export_vllm_takes_the_last_choice_of_a_problem(store, tmp_path):
    subject = Subject("fused_moe", "a", "NVIDIA B200", "triton 3.9.0")
    layer = FILES[B200]
    for second, m, special in ((2, 64, ""), (1, 32, "x:16")):
        at = f"2026-01-01T00:00:0{second}.000+00:00"  # clocks differ: the last one stored counts
        problem = Problem({**layer.problem(8), "specialized": special})
        store.choose(subject, problem, Choice(config(m), 4, 0.0, "measured", at))
    path, count = export_vllm(store, tmp_path, subject, layer)
    assert count == 1
    assert read_vllm(path).configs == {8: config(32)}
    with pytest.raises(UsageError, match="no choice for"):
        export_vllm(store, tmp_path, subject, layer, ParameterNames(extra={"specialized": "y:16"}))


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            {"BLOCK_SIZE_M": 16},
            r"vLLM needs BLOCK_SIZE_N, .*num_warps, which BLOCK_SIZE_M=16 lacks",
        ),
        ({**config(), "PERSISTENT": True}, "vLLM does not know PERSISTENT"),
    ],
)
def test_write_vllm_unusable_configuration_is_an_error(tmp_path, broken, message):
    with pytest.raises(UsageError, match=message):
        write_vllm(tmp_path, TunedLayer(FILES[B200], {1: Configuration(broken)}))
    assert list(tmp_path.iterdir()) == []


def test_import_vllm_for_another_device_is_an_error(b200, store):
    subject = Subject("fused_moe", "a", "NVIDIA H100", "")
    with pytest.raises(UsageError, match="is for NVIDIA B200, not NVIDIA H100"):
        import_vllm(store, b200, subject=subject)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"many": {}}', '{"1": 3}', '{"1": {"BLOCK_SIZE_M": [16]}}', '{"1": {}}']
)
def test_import_vllm_damaged_file_is_an_error(tmp_path, store, text):
    (tmp_path / B200).write_text(text)
    with pytest.raises(StoreError, match=r"does not map numbers|M = 1 has no BLOCK_SIZE_M"):
        import_vllm(store, tmp_path / B200)
    assert store.subjects() == []


def test_vllm_missing_file_or_folder_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="cannot read"):
        read_vllm(tmp_path / B200)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot write"):
        write_vllm(tmp_path / "file", TunedLayer(FILES[B200], {1: config()}))
