"""``foretune plan fleet`` as its users meet it, by rooflines alone."""

import pytest
from commands import fails, run_json

from foretune.cli import main

MODEL = "meta-llama/Llama-2-7b-hf"


@pytest.fixture
def command(tmp_path):
    (tmp_path / "requests.csv").write_text("isl,osl,requests_per_s\n128,64,9\n2048,128,1\n")
    (tmp_path / "prices.csv").write_text("system,usd_per_gpu_hour\nh100_sxm,6\nl4,0.8\n")
    return [
        "plan",
        "fleet",
        MODEL,
        "--requests",
        "requests.csv",
        "--systems",
        "h100_sxm,l4",
        "--gpus-per-instance",
        "1",
        "--prices",
        "prices.csv",
        "--limit",
        "tpot=80",
    ]


def test_json(command, capsys):
    answer = run_json(capsys, *command)
    assert answer["usd_per_hour"] == pytest.approx(
        sum(one["count"] * one["usd_per_hour"] for one in answer["instances"])
    )
    served = [s for one in answer["instances"] for s in one["serves"]]
    assert sum(s["requests_per_s"] for s in served) == pytest.approx(10.0)
    for one in answer["instances"]:
        needed = sum(s["requests_per_s"] / s["most_per_s"] for s in one["serves"])
        assert needed <= one["count"] * (1 + 1e-6)
        assert one["busy"] == pytest.approx(needed / one["count"])
    costs = [cost for cost in answer["single_usd_per_hour"].values() if cost is not None]
    assert answer["usd_per_hour"] <= min(costs)
    assert answer["saved"] == pytest.approx(1 - answer["usd_per_hour"] / min(costs))


def test_for_people(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "what to rent" in out
    assert "USD per hour" in out
    assert "l4 alone:" in out
    notes = [line for line in out.splitlines() if line.startswith("note")]
    tables = [line for line in out.splitlines() if line not in notes]
    assert max(map(len, tables)) <= 80


@pytest.mark.parametrize(
    ("more", "code", "message"),
    [
        (["--requests", "absent.csv"], 1, "absent.csv is not a readable table"),
        (["--systems", "h100_sxn"], 2, "did you mean 'h100_sxm'"),
        (["--systems", "h200_sxm"], 2, "h200_sxm has no price"),
        (["--gpus-per-instance", "two"], 2, "--gpus-per-instance two is not of the form 1,2,4,8"),
        (["--gpus-per-instance", "0"], 2, "--gpus-per-instance 0 leaves nothing to do"),
        (["--available", "l4"], 2, "--available l4 is not of the form h100_sxm=8"),
        (["--available", "l40s=1"], 2, "l40s is not among h100_sxm, l4"),
        (["--available", "l4=0", "--power-kw", "0.1"], 2, "the allowed GPUs or power are not"),
        (["--power-kw", "-1"], 2, "--power-kw -1 must be above 0"),
        (["--limit", "memory=1"], 2, "unknown key of --limit 'memory'"),
        (["--operators", "absent"], 2, "no measured operators in absent"),
        (["--backend", "mine"], 2, "unknown engine 'mine'"),
    ],
)
def test_mistakes_are_one_line(command, capsys, more, code, message):
    assert message in fails(capsys, code, *command, *more)
