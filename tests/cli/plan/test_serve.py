"""``foretune plan serve`` as people type it: options, files, errors in one line."""

import json

import pandas as pd
import pytest
from commands import fails, run_json

from foretune.cli import main

MODEL = "meta-llama/Llama-3.1-8B"
PLAN = [
    "plan",
    MODEL,
    "--system",
    "h100_sxm",
    "--gpus",
    "2",
    "--isl",
    "1024",
    "--osl",
    "32",
    "--formats",
    "bf16,fp8/fp8",
]


def answered(capsys, *arguments):
    return run_json(capsys, *PLAN, *arguments)


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
    answer = answered(capsys, "--formats", "fp8/fp8", "--for", "latency", "--limit", "memory=40")
    assert answer["best"]["formats"] == "fp8, fp8 cache"
    assert answer["best"]["memory_gib"] <= 40
    assert answer["best"]["tpot_ms"] == min(row["tpot_ms"] for row in answer["pareto"])


@pytest.mark.parametrize(("system", "cache"), [("h100_sxm", "fp8"), ("a100_sxm", "bf16")])
def test_weights_alone_are_planned_with_the_usual_caches(capsys, system, cache):
    best = answered(capsys, "--formats", "bf16", "--system", system)["best"]
    assert best["formats"] == f"bf16, {cache} cache"


@pytest.mark.parametrize("name", ["h100_sxm", "h100"])
def test_own_prices_count(capsys, tmp_path, name):
    prices = tmp_path / "prices.csv"
    prices.write_text(f"system,usd_per_gpu_hour\n{name},1.0\n")
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
    strict = answered(capsys, "--qualities", str(path), "--limit", "accuracy=0.95")
    assert strict["best"]["formats"].startswith("bf16")


def test_a_rate_and_pools(capsys):
    short = "--osl", "16"
    assert answered(capsys, "--rate", "2", *short)["best"]["good"] >= 0.9
    pooled = answered(capsys, "--pools", *short)
    assert any(row["prefill"] for row in pooled["pareto"])


def test_a_plan_is_kept(capsys, tmp_path, template, monkeypatch):
    (tmp_path / "ml.db").write_bytes(template.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/ml.db")
    answer = answered(capsys, "--out", "plans")
    folder = tmp_path / "plans" / "Llama-3.1-8B-h100_sxm-001"
    assert len(pd.read_parquet(folder / "candidates.parquet")) == answer["candidates"]
    assert (folder / "report.html").is_file()
    assert answer["mlflow_run_id"]


def test_a_file_that_cannot_be_written_does_not_lose_the_plan(capsys):
    assert main([*PLAN, "--kubernetes", "absent/pod.json", "--json"]) == 1
    captured = capsys.readouterr()
    assert json.loads(captured.out)["best"]
    assert captured.err.strip().splitlines()[-1].startswith("foretune: cannot write absent")


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
        (["--limit", "accuracy=95"], "accuracy 95"),
        (["--limit", "speed=2"], "unknown key of --limit 'speed'"),
        (["--limit", "tpot=fast"], "--limit tpot=fast: give a number"),
        (["--limit", "tpot=9", "--tpot", "9"], "are the same: give one"),
        (["--speculative", "3"], "write TOKENS:ACCEPTANCE"),
        (["--offload", "nvme=3"], "unknown key of --offload 'nvme'"),
        (["--pools", "--rate", "1"], "pools are sized for one load"),
        (["--formats", "bf16/fp8,/bf16"], "leave /bf16 out"),
        (["--pools", "--kubernetes", "pod.json"], "leave --pools out"),
    ],
)
def test_wrong_input_is_one_clear_line(capsys, change, says):
    assert main([*PLAN, *change]) != 0
    assert says in capsys.readouterr().err.strip().splitlines()[-1]


def test_an_unknown_model_offers_the_nearest(capsys):
    wrong = [part.replace("Llama-3.1-8B", "Lama-3.1-8B") for part in PLAN]
    assert "did you mean" in fails(capsys, 2, *wrong)


@pytest.mark.parametrize("option", ["--system", "--gpus", "--isl", "--osl"])
def test_what_is_forgotten_is_named(capsys, option):
    at = PLAN.index(option)
    printed = fails(capsys, 2, *PLAN[:at], *PLAN[at + 2 :])
    assert f"give {option} too: foretune plan serve" in printed
    given = [
        f"{name} {PLAN[PLAN.index(name) + 1]}" for name in ("--gpus", "--osl") if name != option
    ]
    assert all(each in printed for each in given)


def test_serving_is_the_default(capsys):
    short = answered(capsys)
    assert short["best"] == run_json(capsys, "plan", "serve", *PLAN[1:])["best"]


def test_a_misspelt_plan_offers_the_nearest(capsys):
    assert "did you mean 'train'" in fails(capsys, 2, "plan", "trian", MODEL)


def test_a_folder_may_be_called_like_a_plan(capsys, tmp_path):
    (tmp_path / "trained").mkdir()
    assert "config.json" in fails(capsys, 2, "plan", "trained", *PLAN[2:])


@pytest.mark.parametrize("command", ["serve", "train", "fleet"])
def test_help_fits_a_terminal(capsys, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["plan", command, "--help"]) == 0
    assert all(len(line) <= 80 for line in capsys.readouterr().out.splitlines())


def test_emissions_follow_from_the_energy_and_name_their_source(capsys):
    answer = answered(capsys, "--carbon", "380")
    grams = answer["best"]["energy_mj_per_token"] / 3.6e9 * 1e6 * 380
    assert answer["carbon"] == {
        "g_per_kwh": 380,
        "source": "380 g/kWh, as given",
        "g_per_million_tokens": {"best": pytest.approx(grams)},
    }
    assert "carbon" not in answered(capsys)
    assert "give grams of CO2 per kWh" in fails(capsys, 2, *PLAN, "--carbon", "-1")


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("at_s,isl,osl,cached\n0,200,20,100\n0.5,200,20,100\n")
    return str(path)


@pytest.mark.parametrize("option", ["--isl", "--osl"])
def test_trace_does_not_replace_a_given_0(capsys, trace, option):
    assert main([*PLAN, "--trace", trace, option, "0"]) == 2
    assert f"{option} 0" in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize(("given", "prefix"), [([], 100), (["--prefix", "0"], 0)])
def test_trace_gives_the_prefix_that_is_not_given(capsys, trace, given, prefix):
    question = answered(capsys, "--trace", trace, *given)["question"]
    assert question["prefix"] == prefix


def test_plan_folder_is_kept_if_manifest_cannot_be_written(capsys, tmp_path, template, monkeypatch):
    (tmp_path / "ml.db").write_bytes(template.read_bytes())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/ml.db")
    files = ["--out", "plans", "--kubernetes", "absent/pod.json", "--json"]

    assert main([*PLAN, *files]) == 1

    captured = capsys.readouterr()
    assert json.loads(captured.out)["report"].endswith("report.html")
    assert captured.err.strip().splitlines()[-1].startswith("foretune: cannot write absent")


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\na,512,16\nb,512,16\nc,9000,64\n")
    return str(path)


def without_lengths():
    start = PLAN.index("--isl")
    return [*PLAN[:start], *PLAN[start + 4 :]]


def test_lengths_of_a_file_are_planned_beside_their_means(capsys, lengths):
    answer = run_json(capsys, *without_lengths(), "--lengths", lengths)
    assert answer["question"]["isl"] == 3341
    assert answer["question"]["osl"] == 32
    assert "prompts of 512 to 9,000 tokens" in answer["question"]["lengths"]

    # Running requests are mostly the long ones, so each step reads more, and fewer of them fit.
    equal = answer["equal_lengths"]
    assert equal["isl"] == 3341
    assert equal["tpot_ms"] < answer["best"]["tpot_ms"]
    assert equal["mixed_max_requests"] < equal["max_requests"]
    simulated = answer["replayed"]
    assert simulated["ttft_ms"]["p99"] > simulated["ttft_ms"]["p50"]


def test_lengths_at_a_rate_are_compared_in_memory_alone(capsys, lengths):
    answer = run_json(capsys, *without_lengths(), "--lengths", lengths, "--rate", "1")
    equal = answer["equal_lengths"]
    assert equal["tpot_ms"] is None
    assert equal["mixed_max_requests"] < equal["max_requests"]


def test_columns_that_are_not_read_are_named(capsys, lengths):
    assert main([*without_lengths(), "--lengths", lengths]) == 0
    out = capsys.readouterr().out
    assert "not read: TIMESTAMP" in out
    assert "if all requests had the mean lengths, 3,341 and 32" in out


def test_shares_of_lengths_on_the_command_line(capsys):
    mixed = [*without_lengths(), "--isl", "512:0.7,9000:0.3", "--osl", "16:1,64:1"]
    answer = run_json(capsys, *mixed)
    assert answer["question"]["isl"] == round(0.7 * 512 + 0.3 * 9000)
    assert answer["question"]["osl"] == 40
    assert "4 kinds" in answer["question"]["lengths"]


def test_one_length_with_a_share_is_that_length(capsys):
    answer = run_json(capsys, *without_lengths(), "--isl", "512:1", "--osl", "16")
    assert "equal_lengths" not in answer
    assert "lengths" not in answer["question"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (["--isl", "512"], "leave --isl out"),
        (["--prefix", "600"], "between 0 and 511"),
        (["--prove"], "requests of one length"),
    ],
)
def test_lengths_that_contradict_are_refused(capsys, lengths, change, says):
    assert says in fails(capsys, 2, *without_lengths(), "--lengths", lengths, *change)


def test_lengths_of_one_kind_are_a_plan_of_one_length(capsys, tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("isl,osl,count\n1024,32,9\n")
    by_file = run_json(capsys, *without_lengths(), "--lengths", str(path))
    assert by_file["best"] == answered(capsys)["best"]
