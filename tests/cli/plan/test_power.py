"""``foretune plan power`` as its users meet it, by rooflines alone."""

import pytest
from commands import fails, run_json

from foretune.cli import main

COMMAND = [
    "plan", "power", "meta-llama/Llama-2-7b-hf", "--system", "a100_sxm", "--gpus", "1",
    "--isl", "512", "--osl", "64", "--power-kw", "50",
]  # fmt: skip


def test_json(capsys):
    answer = run_json(capsys, *COMMAND)
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
        (["--power-kw", "0.1"], "0.1 kW is not enough for a server"),
        (["--gpus", "0"], "--gpus 0 leaves nothing to do"),
        (["--tpot", "0.001"], "no deployment meets the limits"),
    ],
)
def test_mistakes_are_one_line(capsys, more, message):
    assert message in fails(capsys, 2, *COMMAND, *more)
