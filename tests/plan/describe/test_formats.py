"""Number formats: bytes, hardware, and what they cost in quality."""

import pytest

from foretune.device import known_devices
from foretune.errors import RunTableError, UnknownName
from foretune.features.families import formats as families
from foretune.plan import Formats, checkpoint_formats, describe_model, read_accuracy
from foretune.plan.describe.accuracy import published_accuracy, recovery
from foretune.plan.describe.formats import (
    CACHE_FORMATS,
    FORMATS,
    MEASURED_NAMES,
    base_format,
    find_format,
    grouped_name,
    mixture_name,
    supported,
    table_name,
)


def test_bytes_include_scales():
    assert FORMATS["bf16"].bytes == 2
    assert FORMATS["int4_wo"].bytes == 0.5 + 2 / 128
    assert FORMATS["nvfp4"].bytes == 0.5 + 1 / 16
    assert FORMATS["mxfp4"].bytes == 0.5 + 1 / 32
    assert FORMATS["fp8_block"].bytes == 1 + 4 / 128**2
    assert FORMATS["int3_wo"].bytes == 0.375 + 2 / 128


@pytest.mark.parametrize("name", FORMATS)
def test_measured_tables_know_the_same_bytes(name):
    known = families.FORMATS[table_name(name)]
    exact = name not in MEASURED_NAMES or name == "mxfp4"
    tolerance = 1e-3 if exact else 0.4  # tables have the nearest format
    assert FORMATS[name].bytes == pytest.approx(known.weight_bytes, rel=tolerance)


@pytest.mark.parametrize(
    ("name", "bits_of_a_weight"),
    [
        ("int4_wo_g32", 4 + 16 / 32),
        ("int4_wo_g128z", 4 + 16 / 128 + 4 / 128),
        ("int4_wo_g64b", 4 + 16 / 64 + 16 / 64),
        ("int4_wo_row", 4),
        ("int8_wo_g128", 8 + 16 / 128),
        ("fp8:25%bf16", 0.75 * 8 + 0.25 * 16),
        ("int4_wo_g32:10.5%bf16", 0.895 * (4 + 16 / 32) + 0.105 * 16),
    ],
)
def test_find_format_of_other_arithmetic(name, bits_of_a_weight):
    assert find_format(name).bytes == pytest.approx(bits_of_a_weight / 8)
    assert find_format(name).name == name


@pytest.mark.parametrize("name", ["int4_wo_g0", "fp9_g32", "fp8:bf16", "fp8:200bf16", "int4_wo_g"])
def test_find_format_unknown_name_is_refused(name):
    with pytest.raises(UnknownName, match="number format"):
        find_format(name)


def test_formats_of_other_arithmetic_share_kernels_of_usual_ones():
    assert base_format("int4_wo_g32") == "int4_wo"
    assert table_name("int4_wo_g32:10%bf16") == "int4_wo"
    assert supported("int4_wo_g32", "sm_90") == "native"
    assert supported("int5_wo", "sm_90") == "no"
    mixed = find_format("nvfp4:30%bf16")
    assert (mixed.activations, mixed.block) == ("nvfp4", 16)
    assert (mixed.bits, mixed.narrowest_bits) == (pytest.approx(0.7 * 4 + 0.3 * 16), 4)
    assert supported("bf16:30%nvfp4", "sm_90") == "emulated"  # as the least supported part


def test_grouped_name_usual_group_is_the_usual_format():
    assert grouped_name("int4_wo", 128) == "int4_wo"
    assert grouped_name("int4_wo", 32) == "int4_wo_g32"
    assert grouped_name("int4_wo", 128, "z") == "int4_wo_g128z"
    assert grouped_name("int4_wo", 0) == "int4_wo_row"
    assert grouped_name("int8_wo", 0) == "int8_wo"


def test_mixture_name_leaves_out_what_changes_little():
    assert mixture_name({"fp8": 98.0, "bf16": 2.0}, "fp8") == "fp8:2.0%bf16"
    assert mixture_name({"fp8": 99.5, "bf16": 0.5}, "fp8") == "fp8"
    assert mixture_name({"fp8": 1.0}, "fp8") == "fp8"


def test_a_deployment_has_consistent_formats():
    assert Formats("fp8").moe == "fp8"
    assert Formats("int4_wo").activations == "bf16"
    assert Formats("bf16", moe="mxfp4", kv="fp8").attention == "bf16"
    assert Formats("fp8", kv="fp8").attention == "fp8"
    assert Formats("fp8") == Formats("fp8", "bf16", "fp8")
    with pytest.raises(UnknownName, match="did you mean 'int4_wo'"):
        Formats("int4_w")
    with pytest.raises(UnknownName, match="format of the cache"):
        Formats("fp8", kv="mxfp4")


def test_formats_of_checkpoints():
    assert checkpoint_formats(describe_model("openai/gpt-oss-120b")) == Formats(moe="mxfp4")
    assert checkpoint_formats(describe_model("Qwen/Qwen3-32B")) == Formats()


@pytest.mark.parametrize(
    ("name", "architecture", "expected"),
    [
        ("fp8", "sm_90", "native"),
        ("fp8", "sm_80", "emulated"),
        ("fp8", "sm_70", "no"),
        ("nvfp4", "sm_100", "native"),
        ("nvfp4", "sm_90", "emulated"),
        ("nvfp4", "gfx942", "no"),
        ("int8", "sm_103", "emulated"),
        ("bf16", "x86_64+avx512", "emulated"),
        ("w4a8_mxfp4_mxfp8", "sm_90", "no"),
        ("bf16", "abacus", "no"),
        ("bf16", "gfx1100", "native"),
        ("fp8", "gfx1100", "no"),
        ("fp8", "gfx1201", "native"),
        ("int3_wo", "sm_90", "emulated"),
        ("kv:nvfp4", "sm_100", "native"),
        ("kv:nvfp4", "sm_90", "no"),
        ("kv:int4_head", "sm_90", "emulated"),
    ],
)
def test_hardware(name, architecture, expected):
    assert supported(name, architecture) == expected


def test_formats_together_are_as_good_as_the_worst():
    assert Formats("bf16", moe="nvfp4").support("sm_90") == "emulated"
    assert Formats("bf16", kv="fp8").support("sm_90") == "native"
    assert Formats("bf16", moe="w4a8_mxfp4_mxfp8").support("sm_90") == "no"
    assert Formats("nvfp4", kv="nvfp4").support("sm_90") == "no"  # weights alone are converted
    with pytest.raises(UnknownName, match="format of the cache"):
        supported("kv:fp3", "sm_90")
    with pytest.raises(UnknownName):
        supported("fp3", "sm_90")


def test_every_gpu_of_the_spec_table_can_work_with_some_format():
    for device in known_devices().values():
        if device.kind == "gpu" and not device.architecture.startswith(("gfx1", "sm_6")):
            assert supported("bf16", device.architecture) != "no", device.name


def test_published_results():
    results = published_accuracy()
    assert {"fp8", "int8", "int8_wo", "int4_wo", "nvfp4", "kv:fp8"} <= {r.format for r in results}
    for result in results:
        assert result.source
        least = 0.45 if result.format.startswith("kv:") else 0.85  # reasoning on 4-bit keys
        assert least < result.recovery < 1.05, result


def test_what_formats_keep():
    llama = describe_model("meta-llama/Meta-Llama-3.1-70B")
    assert recovery(Formats(), llama) == 1.0
    own = recovery(Formats("int4_wo"), llama)
    assert own == pytest.approx(0.994)
    assert recovery(Formats("int4_wo")) != own  # the median over all models
    both = recovery(Formats("int4_wo", kv="fp8"), llama)
    assert both is not None
    assert both == pytest.approx(own * recovery(Formats(kv="fp8"), llama))
    assert recovery(Formats("mxfp4"), llama) is None
    published_in_mxfp4 = describe_model("openai/gpt-oss-120b")
    assert recovery(checkpoint_formats(published_in_mxfp4), published_in_mxfp4) == 1.0


@pytest.mark.parametrize("kind", sorted(set(CACHE_FORMATS) - {"bf16"}))
def test_what_narrow_caches_keep(kind):
    kept = recovery(Formats(kv=kind))
    assert kept is not None
    assert 0.9 < kept < 1.02


HEADER = "format,method,model,benchmark,baseline,quantized,better,source\n"


def test_own_results_replace_published_ones(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(HEADER + "fp8,mine,m,perplexity,4.0,5.0,lower,me\n")
    assert recovery(Formats("fp8"), results=read_accuracy(path)) == pytest.approx(0.8)
    assert recovery(Formats("int8"), results=read_accuracy(path)) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("format,method\nfp8,x\n", "no column 'model'"),
        (HEADER + "fp8,x,m,b,one,1,higher,s\n", "must be numbers"),
        (HEADER + "fp8,x,m,b,0,1,higher,s\n", "must be positive"),
        (HEADER + "fp8,x,m,b,1,1,sideways,s\n", "'higher' or 'lower'"),
        (HEADER + "fp3,x,m,b,1,1,higher,s\n", "unknown number format"),
        (HEADER + "kv:int4_wo,x,m,b,1,1,higher,s\n", "unknown number format"),
    ],
)
def test_bad_results(tmp_path, text, reason):
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(RunTableError, match=reason):
        read_accuracy(tmp_path / "bad.csv")
    with pytest.raises(RunTableError, match="is not a readable table"):
        read_accuracy(tmp_path / "absent.csv")
