"""Which layers engines look up in AITER's tables, and what is written for those it lacks."""

import json

import pandas as pd
import pytest

from foretune.errors import OutputError, UsageError
from foretune.plan import Formats, Layout, describe_model
from foretune.plan.engine_files.aiter_tables import (
    fill_tables,
    layers_in_tables,
    read_tables,
    write_tables,
)
from foretune.plan.engine_files.tuned_layers import MANIFEST_NAME
from foretune.problem import Problem

DEVICE = ("gfx942", 304)
BLOCKS, SHUFFLED = "a8w8_blockscale_tuned_gemm", "a8w8_blockscale_bpreshuffle_tuned_gemm"
TP8 = Layout(8, 1, 1, 8, 1)
DEEPSEEK = describe_model("deepseek-ai/DeepSeek-V3")
COLUMNS = ("cu_num", "M", "N", "K", "kernelId", "splitK", "us", "kernelName", "tflops", "bw")


@pytest.fixture
def folder(tmp_path):
    """An AITER with one table: two layers, one of them this model's."""
    place = tmp_path / "aiter" / "configs"
    place.mkdir(parents=True)
    rows = [(304, m, n, k, m, 0, 1.0, f"for {m}", 1.0, 1.0)
            for n, k in ((3072, 1536), (512, 512)) for m in (16, 1024)]  # fmt: skip
    pd.DataFrame(rows, columns=COLUMNS).to_csv(place / f"{BLOCKS}.csv", index=False)
    return tmp_path / "aiter"


def layers(formats="fp8_block", layout=TP8):
    return layers_in_tables(DEEPSEEK, layout, Formats(formats), "gfx942")


def test_the_layers_of_a_model():
    found = {(e.table, e.layer.get("N"), e.layer.get("K")) for e in layers()}
    for table in (BLOCKS, SHUFFLED):
        assert (table, 2112, 7168) in found  # latents of queries and keys in one product
        assert (table, 3072, 1536) in found
    experts, fused = (e for e in layers() if e.table == "tuned_fmoe")
    assert experts.layer["inter_dim"] == 2048 // 8
    assert (experts.layer["expert"], experts.layer["topk"]) == (256, 8)
    assert (fused.layer["expert"], fused.layer["topk"]) == (257, 9)
    assert experts.layer["q_type"] == "QuantType.per_1x128"
    assert experts.layer["q_dtype_w"] == "torch.float8_e4m3fnuz"


@pytest.mark.parametrize(
    ("formats", "tables", "weights"),
    [
        ("fp8", {"a8w8_bpreshuffle_tuned_gemm", "tuned_fmoe"}, "torch.float8_e4m3fnuz"),
        ("int8", {"a8w8_tuned_gemm"}, "torch.int8"),
        ("bf16", {"tuned_fmoe"}, "torch.bfloat16"),
        ("nvfp4", set(), ""),
    ],
)
def test_formats_have_tables(formats, tables, weights):
    found = layers(formats)
    assert {e.table for e in found} == tables
    assert {e.layer["q_dtype_w"] for e in found} == ({weights} if weights else set())


def test_a_layout_that_cannot_be_served_is_refused():
    with pytest.raises(UsageError, match="cannot be served"):
        layers(layout=Layout(3, 1, 1, 3, 1))


def test_what_is_there_and_what_is_guessed(folder):
    found = {
        (e.layer["N"], e.layer["K"]): e
        for e in fill_tables(layers(), read_tables([folder]), *DEVICE)
    }
    assert found[3072, 1536].status == "there"
    assert found[3072, 1536].guesses == {}
    guessed = found[7168, 2048]
    assert guessed.status == "guessed"
    assert {n: choice.values["kernelName"] for n, choice in guessed.guesses.items()} == {
        16: "for 16", 1024: "for 1024"
    }  # fmt: skip
    assert 0.5 < guessed.agreement <= 1
    assert found[2112, 7168].status == "nothing similar"  # no multiple of 512
    assert fill_tables(layers(), read_tables([folder]), "gfx950", 256) == []


def test_tables_are_written_whole_and_once(folder, tmp_path):
    tables = read_tables([folder])
    filled = fill_tables(layers(), tables, *DEVICE)
    out = tmp_path / "out"
    for _ in range(2):  # ours may be replaced
        written = write_tables(out, filled, tables, *DEVICE)
        assert written == {"AITER_CONFIG_GEMM_A8W8_BLOCKSCALE": out / f"{BLOCKS}.csv"}
    read = pd.read_csv(out / f"{BLOCKS}.csv")
    assert list(read.columns) == list(COLUMNS)
    assert len(read) == 4 + sum(len(e.guesses) for e in filled)
    card = json.loads((out / MANIFEST_NAME).read_text())
    assert card["engine"] == "aiter"
    assert all(not entry["measured"] for entry in card["files"][f"{BLOCKS}.csv"])
    assert Problem(card["files"][f"{BLOCKS}.csv"][0]["layer"]) in {e.layer for e in filled}


def test_what_is_not_ours_stays(folder, tmp_path):
    tables = read_tables([folder])
    filled = fill_tables(layers(), tables, *DEVICE)
    (tmp_path / f"{BLOCKS}.csv").write_text("mine")
    with pytest.raises(OutputError, match=r"was not written by Foretune"):
        write_tables(tmp_path, filled, tables, *DEVICE)
    assert (tmp_path / f"{BLOCKS}.csv").read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"cannot (read|write into)"):
        write_tables(tmp_path / "file" / "deeper", filled, tables, *DEVICE)


def test_nothing_to_write(folder, tmp_path):
    tables = read_tables([folder])
    assert write_tables(tmp_path / "out", [], tables, *DEVICE) == {}
    assert not (tmp_path / "out").exists()


def test_a_folder_without_tables_is_said(tmp_path):
    with pytest.raises(UsageError, match="no tuned table in"):
        read_tables([tmp_path])
