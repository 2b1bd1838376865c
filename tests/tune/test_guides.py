"""Models of users guide everything that tunes, in Python and on the command line."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import fails, run_json
from sklearn.ensemble import RandomForestRegressor
from toy_kernel import DEVICE, FakeRunner, MeteredRunner, Toy, config, power_w, time_ms

import foretune as ft
from foretune.cli import main
from foretune.collect import Timing
from foretune.errors import PredictorError, UsageError
from foretune.models.saved.lookup import read_predictor
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.search.encoding import KernelRuns
from foretune.space import Configuration
from foretune.tune import tuner
from foretune.tune.campaign.campaign import Preset, run_campaign
from foretune.tune.functions import tuning

KERNEL = Toy()
PROBLEM = KERNEL.problem(n=100)
BEST = config()
SCRIPT = "import sys; print(f'took {8.0 / int(sys.argv[1])} us')"
PROGRAM = ("--", sys.executable, "-S", "-c", SCRIPT, "{tile}")
FAST = ("--repeats", "1", "--time", r"took (\S+) us", "--time-unit", "us")
FILE = """
import numpy as np

def guess(config):
    fails = config.get("behaviour", "ok") != "ok"
    return np.nan if fails else config["work"] * config["skew"] * (1 + (config["order"] == "ba"))

def larger_is_faster(table):
    return 1 / table["tile"]

def broken(table):
    return table["blok"]
"""


def guess(config):
    """Predict the time in seconds, not milliseconds: only the order counts."""
    return time_ms(PROBLEM, config) * 1e-3 if config["behaviour"] == "ok" else np.nan


def tune(predictor, runner=None, **how):
    return ft.tune_problem(KERNEL, PROBLEM, runner or FakeRunner(), predictor, **how)


@pytest.mark.parametrize("searcher", ["surrogate", "tpe"])
def test_guide_function_for_tuner(searcher):
    result = tune(guess, budget=2, searcher=searcher)
    assert result.trace[0].config == BEST
    assert np.isnan(result.trace[0].predicted_ms)  # these might be seconds, and they are
    assert tune(None, budget=2, searcher=searcher, store=False).trace[0].config != BEST


def test_power_is_needed_for_energy(monkeypatch):
    monkeypatch.setattr("foretune.tune.job.find_meter", lambda kind, index: object())

    def with_power(config):
        return {"time_ms": guess(config), "power_w": power_w(config)}

    energy = {"objective": Objective.ENERGY, "budget": 1, "store": False}
    runner = MeteredRunner()
    with pytest.raises(PredictorError, match="has not learned power"):
        tune(guess, runner, **energy)
    assert not runner.measured
    (step,) = tune(with_power, runner, **energy).trace
    space = [c for c in KERNEL.space(PROBLEM) if c["behaviour"] == "ok"]
    assert step.config == min(space, key=lambda c: power_w(c) * time_ms(PROBLEM, c))


def profile(runner, predictor, out):
    preset = Preset(
        train_problems=2,
        random_configs=6,
        guided_configs=2,
        tune_problems=1,
        budget=2,
        profile_s=60.0,
        box_s=0.01,
        verify_s=0.1,
    )
    how = {"out": out, "observers": (), "validate": "none"}
    run_campaign(KERNEL, runner, preset, predictor=predictor, **how)


def test_guide_model_chooses_what_campaign_profiles(tmp_path):
    runner = FakeRunner()
    profile(runner, guess, tmp_path)
    profiled = [c for p, c in runner.measured[:16]]
    assert all(c["behaviour"] == "ok" and c["work"] * c["skew"] <= 4 for c in profiled[12:])


def test_guide_interrupted_campaign_needs_same_function(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        profile(FakeRunner(interrupt_after=14), lambda config: guess(config), tmp_path)
    profile(FakeRunner(), lambda config: guess(config), tmp_path)  # as another process would
    assert len([*tmp_path.glob("toy-*")]) == 1


def test_guide_forest_for_function(monkeypatch):
    monkeypatch.setattr(tuning, "local_device", lambda name, measure: DEVICE)
    table = pd.DataFrame({"parts": [1, 2, 4, 8, 16, 32]})
    model = RandomForestRegressor(5, random_state=0, bootstrap=False).fit(table, range(6, 0, -1))

    def sums(x, parts=1):
        return np.concatenate([p.sum(1) for p in np.split(x, parts)])

    best = ft.tune_function(
        sums,
        {"parts": [1, 2, 4, 8, 16, 32]},
        args=(np.ones((64, 8)),),
        predictor=model,
        problem={},
        budget=2,
        default={"parts": 1},
        isolated=False,
        verify_s=0.01,
        progress=False,
    )
    known = [step.config["parts"] for step in best.result.trace]
    assert known == [1, 32]  # the default, then the forest's favorite


def test_guide_function_for_decorated_kernel():
    pytest.importorskip("triton")
    from foretune.tune.triton.options import Options
    from foretune.tune.triton.prior import PriorFactory
    from foretune.tune.triton.problem_key import Call

    blocks = (16, 64, 256)
    rows = KernelRuns([Problem(n=9)] * 3, [Configuration(BLOCK=b) for b in blocks], [{}] * 3)
    options = Options(predictor=lambda config: config["n"] / config["BLOCK"])
    call = Call("copy", "0" * 16, Problem(n=9), {}, DEVICE, None)
    prior = PriorFactory("copy", "0" * 16, DEVICE, options).make_prior(call, rows)
    assert np.allclose(np.exp(prior.log_mean), [9 / b for b in blocks])
    assert prior.foreign


class TestCommandLine:
    @pytest.fixture(autouse=True)
    def _place(self, toy_place, monkeypatch):
        class Quick(ft.collect.IsolatedRunner):
            def __init__(self, device, timing=None):
                super().__init__(device, Timing(max_seconds=0.02, warmup_s=0.001), 1.0)

        monkeypatch.setattr(ft.collect, "IsolatedRunner", Quick)
        monkeypatch.setattr(tuner, "MIN_VERIFY_S", 0.05)
        monkeypatch.setattr(tuning, "local_device", lambda name, measure: DEVICE)
        monkeypatch.setattr(sys, "path", [*sys.path])
        Path("own_guides.py").write_text(FILE)
        yield
        sys.modules.pop("own_guides", None)

    def tune(self, capsys, predictor, *more):
        return run_json(
            capsys,
            "tune",
            "toy",
            "--problem",
            "n=20",
            "--budget",
            "1",
            "--predictor",
            predictor,
            *more,
        )

    def test_guide_function_in_file(self, capsys):
        (step,) = self.tune(capsys, "own_guides.py:guess")["trace"]
        assert step["config"] == dict(BEST)

    def test_and_a_program(self, capsys):
        words = ("--param", "tile=1..8", *FAST, "--budget", "2")
        name = ("--predictor", "own_guides.py:larger_is_faster")
        assert main(["tune", "--json", *words, *name, *PROGRAM]) == 0
        done = json.loads(capsys.readouterr().out)
        assert [step["config"] for step in done["trace"]] == [{"tile": 1}, {"tile": 8}]

    @pytest.mark.parametrize(
        ("name", "code", "message"),
        [
            ("own_guides.py:broken", 1, "cannot predict this space: KeyError: 'blok'"),
            ("own_guides.py:gues", 2, "did you mean 'guess'"),
            ("own_guides.py", 2, "write own_guides.py:NAME"),
            ("forest.joblib", 2, "would run code when it is loaded"),
            ("nowhere", 1, "holds no predictor"),
        ],
    )
    def test_guide_unusable_object_is_one_line(self, capsys, name, code, message):
        asked = ("tune", "toy", "--problem", "n=20", "--predictor", name)
        assert message in fails(capsys, code, *asked)


def test_guide_other_commands_need_predictor():
    with pytest.raises(UsageError, match=r"predictor .* give a Predictor"):
        read_predictor(guess)
