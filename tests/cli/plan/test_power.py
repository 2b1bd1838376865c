"""``foretune plan fleet --power-kw`` for one kind of request, by rooflines alone."""

import pytest
from commands import fails, run_json

from foretune.cli import main

COMMAND = [
    "plan", "fleet", "meta-llama/Llama-2-7b-hf", "--systems", "a100_sxm",
    "--gpus-per-instance", "1",
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
    assert "by the GPUs' power limits: 61 servers" in out
    assert "most tokens within the limits:" in out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--systems", "a100_sxn"], "did you mean 'a100_sxm'"),
        (["--power-kw", "0"], "--power-kw 0 feeds nothing"),
        (["--systems", "a100_sxm,l4"], "plan one system"),
        (["--gpus-per-instance", "1,2"], "plan one size of server"),
        (["--requests", "x.csv"], "leave --requests out"),
        (["--power-kw", "0.1"], "0.1 kW is not enough for a server"),
        (["--gpus-per-instance", "0"], "--gpus-per-instance 0 leaves nothing to do"),
        (["--limit", "tpot=0.001"], "no deployment meets the limits"),
    ],
)
def test_mistakes_are_one_line(capsys, more, message):
    assert message in fails(capsys, 2, *COMMAND, *more)
