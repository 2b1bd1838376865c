"""``foretune plan train`` as its users meet it, by rooflines alone."""

import re

import pandas as pd
import pytest
from commands import fails, run_json

from foretune.cli import main

MODEL = "Qwen/Qwen3-32B"
TRAIN = [
    "plan",
    "train",
    MODEL,
    "--system",
    "h100",
    "--gpus",
    "32",
    "--batch",
    "128",
    "--sequence",
    "4096",
]


def test_people_get_a_table_and_sentences(capsys):
    assert main([*TRAIN, "--tokens", "1e12", "--top", "3"]) == 0
    shown = capsys.readouterr().out
    assert "training Qwen/Qwen3-32B on 32 × h100_sxm, 128 × 4096 tokens, bf16" in shown
    for part in ("days", "USD", "GiB of the fullest GPU", "rooflines"):
        assert part in shown


def test_json(capsys):
    answer = run_json(capsys, *TRAIN, "--formats", "fp8", "--top", "2")
    assert len(answer["candidates"]) == 2
    assert answer["best"]["step_ms"] == answer["candidates"][0]["step_ms"]
    printed = {"tp", "pp", "dp", "cp", "ep", "chunks", "zero", "recompute", "mfu", "memory_gib"}
    assert printed <= set(answer["best"])
    assert "days" not in answer


def test_software_and_overlap_count(capsys):
    step = run_json(capsys, *TRAIN)["best"]["step_ms"]
    assert run_json(capsys, *TRAIN, "--overlap")["best"]["step_ms"] <= step
    assert run_json(capsys, *TRAIN, "--software", "pytorch")["best"]["step_ms"] != step
    assert run_json(capsys, *TRAIN, "--formats", "bf16/bf16")["best"]["step_ms"] <= step


def test_zero_bubble_is_planned_if_asked_for(capsys):
    deep = [*TRAIN, "--top", "200", "--batch", "32"]
    plain = run_json(capsys, *deep)
    filled = run_json(capsys, *deep, "--zero-bubble")
    assert {row["zero_bubble"] for row in plain["candidates"]} == {0}
    assert {row["zero_bubble"] for row in filled["candidates"]} > {0}
    assert filled["best"]["step_ms"] <= plain["best"]["step_ms"]
    assert any("zb1 and zb2" in note for note in filled["notes"])


def test_each_recipe_is_shown_with_its_fastest_schedule(capsys):
    rows = run_json(capsys, *TRAIN, "--top", "50")["candidates"]
    names = ("tp", "pp", "dp", "cp", "ep", "micro_batch", "zero", "recompute", "offload")
    assert len({tuple(row[name] for name in names) for row in rows}) == len(rows) == 50


def test_the_host_holds_what_it_may(capsys):
    few = [*TRAIN, "--gpus", "4", "--batch", "16", "--sequence", "2048", "--top", "2"]
    assert main([*few, "--offload", "100"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"; 9\d\.\d of optimizer state on the host", shown)
    assert "offload as in ZeRO-Offload, not measured: 55.7 GB/s to the host" in shown
    assert main([*few, "--offload", "100", "--link", "host=20"]) == 0
    assert "not measured: 20 GB/s to the host" in capsys.readouterr().out
    assert "key of --link" in fails(capsys, 2, *few, "--link", "disk=3")
    plain = run_json(capsys, *TRAIN)
    assert not any("ZeRO-Offload" in note for note in plain["notes"])
    assert "give 0 or more" in fails(capsys, 2, *few, "--offload=-1")


def test_own_prices_count(capsys, tmp_path):
    (tmp_path / "prices.csv").write_text("system,usd_per_gpu_hour\nh100_sxm,1.0\n")
    answer = run_json(capsys, *TRAIN, "--tokens", "1e12", "--prices", "prices.csv")
    assert answer["usd"] == pytest.approx(answer["days"] * 24 * 32)


def test_systems_that_nobody_measured_are_said_to_be(capsys, tmp_path):
    folder = tmp_path / "own" / "h100_sxm" / "gemm" / "sglang" / "1.0"
    folder.mkdir(parents=True)
    sizes = [(m, n, k) for m in (256, 4096) for n in (1024, 8192) for k in (1024, 8192)]
    table = pd.DataFrame(sizes, columns=["m", "n", "k"])
    work = 2.0 * table["m"] * table["n"] * table["k"] / 5e11
    table.assign(gemm_dtype="bfloat16", kernel_source="x", latency=0.01 + work).to_parquet(
        folder / "gemm_perf.parquet"
    )
    for system, printed in (("mi300x", True), ("h100", False)):
        command = [*TRAIN, "--system", system, "--operators", "own"]
        notes = run_json(capsys, *command)["notes"]
        assert any("no operator was measured" in note for note in notes) == printed


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--system", "h100_sxn"], "did you mean 'h100_sxm'"),
        (["--formats", "fp7"], "known: bf16, fp8"),
        (["--formats", "bf16/fp7"], "known: bf16, fp32"),
        (["--software", "jax"], "known: megatron, pytorch"),
        (["--gpus", "0"], "--gpus 0"),
        (["--batch", "0"], "--batch 0"),
        (["--sequence", "-1"], "--sequence -1"),
        (["--tokens", "nan"], "--tokens nan: give a number of tokens"),
        (["--rate", "1"], "No such option: --rate"),
    ],
)
def test_mistakes_are_one_line(capsys, more, message):
    assert message in fails(capsys, 2, *TRAIN, *more)


def test_an_unknown_model_offers_the_nearest(capsys):
    wrong = [part.replace("Qwen3-32B", "Qwne3-32B") for part in TRAIN]
    assert "did you mean" in fails(capsys, 2, *wrong)


def test_documents_are_packed_and_compared_with_padding(capsys, tmp_path):
    plain = run_json(capsys, *TRAIN)
    assert "packing" not in plain
    answer = run_json(capsys, *TRAIN, "--lengths", "512:0.5,1536:0.5")
    gain = answer["packing"]
    assert gain["documents_per_sequence"] == pytest.approx(4)
    assert gain["mean_keys"] == pytest.approx(0.25 * 512 + 0.75 * 1536)
    plain_rate = plain["best"]["tokens_per_s_per_gpu"]
    assert gain["padded_tokens_per_s_per_gpu"] == pytest.approx(plain_rate / 4)
    assert 4 < gain["speedup"] < 6
    assert answer["best"]["step_ms"] < plain["best"]["step_ms"]

    file = tmp_path / "documents.csv"
    file.write_text("length\n512\n1536\n")
    assert run_json(capsys, *TRAIN, "--lengths", str(file))["packing"] == gain


def test_long_documents_are_cut_and_said(capsys):
    assert main([*TRAIN, "--lengths", "20000:0.05,512:0.95"]) == 0
    shown = capsys.readouterr().out
    assert "documents are cut at 4,096 tokens; the longest has 20,000" in shown
    assert "documents are packed whole" in shown


@pytest.mark.parametrize(
    ("lengths", "code", "why"),
    [
        ("512:x", 2, "TOKENS:SHARE"),
        ("0:1", 2, "at least 1 token"),
        ("absent.csv", 1, "No such file"),
    ],
)
def test_wrong_lengths_are_one_clear_line(capsys, lengths, code, why):
    assert why in fails(capsys, code, *TRAIN, "--lengths", lengths)
