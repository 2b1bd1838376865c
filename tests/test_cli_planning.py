"""``foretune plan`` as people type it: options, files, errors in one line."""

import json

import pandas as pd
import pytest

from foretune.cli import main

MODEL = "meta-llama/Llama-3.1-8B"
PLAN = ["plan", MODEL, "--system", "h100_sxm", "--gpus", "2", "--isl", "1024", "--osl", "128",
        "--formats", "bf16,fp8/fp8"]  # fmt: skip


@pytest.fixture(autouse=True)
def rooflines(monkeypatch, tmp_path):
    """No tables, so that every machine plans the same."""
    from foretune.plan.cost import tables as operator_tables

    monkeypatch.setattr(operator_tables, "default_folders", list)
    monkeypatch.chdir(tmp_path)


def answered(capsys, *arguments):
    assert main([*PLAN, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys, *arguments):
    """Return the one line of an error, its exit code not being 0."""
    assert main(list(arguments)) != 0
    lines = capsys.readouterr().err.strip().splitlines()
    return lines[-1]


def test_people_get_a_table_sentences_and_commands(capsys):
    assert main([*PLAN, "--tpot", "30"]) == 0
    out = capsys.readouterr().out
    assert "best: " in out
    assert "vllm serve" in out
    assert "sglang.launch_server" in out
    assert "trtllm-serve" in out
    table = out.split("\n\n")[0]
    assert all(len(line) <= 80 for line in table.splitlines())


def test_formats_goal_and_limits_count(capsys):
    answer = answered(capsys, "--formats", "fp8/fp8", "--for", "latency", "--memory", "40")
    assert answer["best"]["formats"] == "fp8, fp8 cache"
    assert answer["best"]["memory_gib"] <= 40
    assert answer["best"]["tpot_ms"] == min(row["tpot_ms"] for row in answer["pareto"])


def test_own_prices_count(capsys, tmp_path):
    prices = tmp_path / "prices.csv"
    prices.write_text("system,usd_per_gpu_hour\nh100_sxm,1.0\n")
    best = answered(capsys, "--prices", str(prices))["best"]
    per_hour = best["tokens_per_s_per_gpu"] * 3600
    assert best["usd_per_million_tokens"] == pytest.approx(1e6 / per_hour)


def test_own_qualities_count(capsys, tmp_path):
    columns = "format,method,model,benchmark,baseline,quantized,better,source"
    path = tmp_path / "qualities.csv"
    path.write_text(
        f"{columns}\nfp8,mine,{MODEL},exam,100,90,higher,me\nkv:fp8,mine,{MODEL},exam,100,100,"
        "higher,me\n"
    )
    assert answered(capsys, "--qualities", str(path))["best"]["accuracy"] == pytest.approx(0.9)
    strict = answered(capsys, "--qualities", str(path), "--accuracy", "0.95")
    assert strict["best"]["formats"].startswith("bf16")


def test_a_rate_and_pools(capsys):
    assert answered(capsys, "--rate", "2")["best"]["good"] >= 0.9
    pooled = answered(capsys, "--pools")
    assert any(row["prefill"] for row in pooled["pareto"])


def test_a_plan_is_kept(capsys, tmp_path, template):
    (tmp_path / "ml.db").write_bytes(template.read_bytes())
    answer = answered(capsys, "--out", "plans", "--tracking-uri", f"sqlite:///{tmp_path}/ml.db")
    folder = tmp_path / "plans" / "Llama-3.1-8B-h100_sxm-001"
    assert len(pd.read_parquet(folder / "candidates.parquet")) == answer["candidates"]
    assert (folder / "report.html").is_file()
    assert answer["mlflow_run_id"]


def test_training_is_planned(capsys):
    command = ["plan", MODEL, "--train", "--system", "h100_sxm", "--gpus", "8", "--batch", "16",
               "--sequence", "2048", "--json"]  # fmt: skip
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["best"]["step_ms"] > 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--system", "h100_sxn"], "did you mean 'h100_sxm'"),
        (["--backend", "vlm"], "'vllm'"),
        (["--gpus", "0"], "--gpus 0"),
        (["--isl", "0"], "--isl 0"),
        (["--rate", "-1"], "--rate -1"),
        (["--formats", "fp7"], "fp7"),
        (["--for", "speed"], "goal"),
        (["--tpot", "0.001"], "ms per further token instead of 0.001"),
        (["--prices", "absent.csv"], "absent.csv"),
        (["--measured", "absent.csv"], "absent.csv"),
        (["--operators", "absent"], "absent"),
        (["--accuracy", "95"], "accuracy 95"),
        (["--pools", "--rate", "1"], "pools are matched to one load"),
        (["--train", "--batch", "8", "--sequence", "8", "--rate", "1"], "plan --train without it"),
        (["--verify-vllm", "--rate", "1"], "plan it without --rate"),
    ],
)
def test_wrong_input_is_one_clear_line(capsys, change, says):
    assert says in refused(capsys, *PLAN, *change)


def test_an_unknown_model_offers_the_nearest(capsys):
    wrong = [part.replace("3.1-8B", "3.1-9B") for part in PLAN]
    assert "did you mean" in refused(capsys, *wrong)
