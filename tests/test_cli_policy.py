"""``foretune policy``: trained on a predictor, asked for configurations."""

import pytest
from commands import fails, run_json
from toy_kernel import DEVICE, FakeRunner, Toy

from foretune.cli import main
from foretune.collect import plan_configurations
from foretune.datasets import from_measurements
from foretune.models import Predictor

pytest.importorskip("torch")

TRAIN = ("policy", "train", "predictor", "--updates", "40", "--out", "policy")


@pytest.fixture(scope="module")
def predictor():
    """A predictor of the toy kernel."""
    toy = Toy()
    plan = plan_configurations(toy, toy.training_problems(6), 20, 0)
    rows = [m for problem, cs in plan.items() for m in FakeRunner().run(toy, problem, cs)]
    return Predictor(targets=("time_ms",), kernel=toy).fit(from_measurements(rows, DEVICE))


@pytest.fixture(autouse=True)
def place(toy_place, predictor):
    predictor.save("predictor")
    return toy_place


def test_train_and_propose(capsys):
    said = run_json(capsys, *TRAIN, "--problems", "16", "--seed", "2")
    assert said["groups"] == [["work", "skew", "order", "behaviour"]]
    assert (said["training"]["problems"], said["training"]["seed"]) == (14, 2)
    assert said["learned_from"]["best"] >= said["learned_from"]["first"] > 1
    assert said["held_out"]["first"] > 1  # better than the median configuration
    proposed = run_json(capsys, "policy", "propose", "policy", "--problem", "n=70", "--top", "3")
    assert proposed["problem"] == {"n": 70, "dtype": "fp32"}
    first, *others = proposed["configs"]
    assert len(others) == 2
    assert first["probability"] >= others[0]["probability"]
    assert first["config"] in Toy().space(Toy().problem(n=70))


def test_people_see_tables(capsys):
    assert main([*TRAIN, "--problems", "n=20;n=40", "--factored"]) == 0
    said = capsys.readouterr().out
    assert "learned from" in said
    assert "held out" not in said  # of two problems none is spared
    assert main(["policy", "propose", "policy", "--problem", "n=70"]) == 0
    assert "work=" in capsys.readouterr().out


def test_what_cannot_be_done(capsys):
    assert "--updates 0" in fails(capsys, 2, *TRAIN, "--updates", "0")
    assert "cannot be used here" in fails(capsys, 2, "policy", "train", "none", "--out", "policy")
    assert "has not learned power" in fails(capsys, 1, *TRAIN, "--objective", "energy")
    assert "holds no policy" in fails(capsys, 1, "policy", "propose", ".", "--problem", "n=70")
    assert "Missing command" in fails(capsys, 2, "policy")
