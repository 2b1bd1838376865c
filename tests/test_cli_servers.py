"""``foretune servers`` as its users meet it, by rooflines alone."""

import json

import pytest

from foretune.cli import main
from foretune.plan.cost import tables as operator_tables

COMMAND = [
    "servers", "meta-llama/Llama-2-7b-hf", "--system", "a100_sxm", "--gpus", "1",
    "--isl", "512", "--osl", "64", "--power-kw", "50",
]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_tables(monkeypatch):
    monkeypatch.setattr(operator_tables, "default_folders", list)


def test_json(capsys):
    assert main([*COMMAND, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    free, lowest = answer["caps"][0], answer["caps"][-1]
    assert free["cap_w"] == 400.0
    assert free["slowdown"] == pytest.approx(1.0)
    assert free["provisioned"] == 61  # 50 kW of 400 W and 412.5 W each
    assert lowest["servers"] >= free["servers"] >= free["provisioned"]
    assert lowest["slowdown"] > 1.0
    assert answer["best"]["tokens_per_s"] == max(one["tokens_per_s"] for one in answer["caps"])
    assert answer["server"]["mean_w"] <= answer["server"]["provisioned_w"] == 812.5
    assert free["mean_w"] <= 50_000


def test_for_people(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(COMMAND) == 0
    out = capsys.readouterr().out
    assert "boards' limits set aside: 61 servers" in out
    assert "most tokens within the limits:" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--system", "a100_sxn"], "did you mean 'a100_sxm'"),
        (["--power-kw", "0"], "power is above 0"),
        (["--power-kw", "0.1"], "0.1 kW feed not one server"),
        (["--gpus", "0"], "--gpus 0 leaves nothing to do"),
        (["--tpot", "0.001"], "no deployment keeps to the limits"),
    ],
)
def test_mistakes_are_one_line(capsys, more, message):
    assert main([*COMMAND, *more]) == 2
    err = capsys.readouterr().err.strip().splitlines()
    assert err[-1].startswith("foretune: ")
    assert message in err[-1]
