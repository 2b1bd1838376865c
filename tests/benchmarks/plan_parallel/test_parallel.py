"""The check as a whole, on two real processes; and what it makes of times."""

import numpy as np
import pandas as pd
import plan_parallel.parallel as parallel
import pytest
from plan_parallel.arrangement import StepProblem
from plan_parallel.grid import Grid
from plan_parallel.parallel import (
    LayoutTimes,
    ParallelCheck,
    ProblemCheck,
    check_on_group,
    fit_coefficients,
    small_model,
)
from plan_parallel.ranks import RankGroup

from foretune.errors import MeasurementError

MODEL = small_model(128, 2, 2, 160)
PROBLEM = StepProblem(MODEL, 4, 6)
SMALL = Grid(
    rows=(1, 8),
    widths=(64, 192),
    requests=(1, 4),
    prompts=(4, 16),
    contexts=(8, 32),
    heads=(2,),
    message_kib=(0.3, 0.6, 1.2, 2.4, 5, 10, 20, 40),
)


MEASURED = pd.DataFrame(
    [
        {
            "kernel": "gemm",
            "device": "cpu",
            "time_ms": ms,
            "config.backend": busy,
            "config.format": "fp32",
            "problem.M": 2.0**m,
            "problem.N": 64.0,
            "problem.K": 64.0,
        }
        for m in range(8)
        for busy, ms in (("alone", 1.0), ("together", 2.0))
    ]
)


@pytest.fixture(scope="module")
def group():
    pytest.importorskip("torch")
    with RankGroup(2) as ranks:
        yield ranks


def test_layouts_compute_the_same_and_are_timed(group):
    problems = [PROBLEM, StepProblem(MODEL, 1, 1, 9)]
    lessons = [StepProblem(small_model(192, 2, 1, 96), 2, 3)]
    check = check_on_group(group, problems, lessons, SMALL, seconds=1.0)
    table = check.table()
    assert (table["error"] < 1e-4).all()
    assert table["layout"].tolist() == [
        "one rank",
        "tp2",
        "pp2",
        "dp2",
        "one rank",
        "tp2",
        "pp2",
    ]
    times = table[["operators_ms", "predicted_ms", "measured_ms"]].to_numpy()
    assert (np.isfinite(times) & (times > 0)).all()
    assert check.operators == 2 * len(SMALL.operators()) + 3 * len(SMALL.message_kib)
    assert check.seen_share < 0.5
    found = check.to_json()
    assert set(found["coefficients"]) == {"operators", "exchanges", "layers"}
    assert len(found["problems"]) == 2
    assert len(found["layouts"]) == len(table)


def test_a_layout_that_computes_something_else_is_found(group, monkeypatch):
    whole = group.call

    def spoiled(method, *arguments, ranks=()):
        answer = whole(method, *arguments, ranks=ranks)
        if method == "logits" and arguments[0].tp == 2:
            return [part if part is None else part + 1.0 for part in answer]
        return answer

    monkeypatch.setattr(group, "call", spoiled)
    monkeypatch.setattr(parallel, "measure_operators", lambda *_: MEASURED)
    with pytest.raises(MeasurementError, match="tp2 computes something else than one rank"):
        check_on_group(group, [PROBLEM], [], SMALL, seconds=0.1)


def layout(name, predicted, rounds):
    return LayoutTimes(name, predicted, predicted, np.array(rounds, dtype=float), 0.0)


def noisy(ms):
    return [ms * factor for factor in (1.0, 1.01, 0.99, 1.02, 1.0, 0.98, 1.01, 1.0)]


def checked(**predicted):
    """Return a check of layouts that take 10, 5 and 9.8 ms."""
    times = {"one": 10.0, "tp2": 5.0, "pp2": 9.8}
    return ProblemCheck(
        PROBLEM, [layout(name, predicted[name], noisy(ms)) for name, ms in times.items()]
    )


def test_only_pairs_that_are_apart_count():
    right = checked(one=8.0, tp2=4.0, pp2=9.0)  # 10 and 9.8 ms are no order
    assert [(fast.layout, slow.layout) for fast, slow in right.pairs] == [
        ("tp2", "one"),
        ("tp2", "pp2"),
    ]
    assert right.correct_pairs == 2
    assert right.passed
    assert right.regret == 0.0
    assert right.rank_correlation == pytest.approx(0.5)


def test_a_wrong_choice_costs():
    wrong = checked(one=4.0, tp2=6.0, pp2=7.0)
    assert wrong.regret == pytest.approx(1.0)  # 10 ms instead of 5
    assert wrong.correct_pairs == 1
    assert not wrong.passed


def test_where_nothing_is_apart_nothing_held():
    same = ProblemCheck(PROBLEM, [layout(name, 1.0, noisy(10.0)) for name in ("one", "tp2")])
    assert same.passed
    assert not ParallelCheck([same], 10, [1, 1, 0], 0.0, 2, 1.0).passed


def test_the_whole_check_holds_if_all_problems_do():
    good = checked(one=10.0, tp2=5.0, pp2=9.8)
    bad = checked(one=4.0, tp2=6.0, pp2=7.0)
    for problems, kept in (([good], 2), ([good, bad], 3)):
        check = ParallelCheck(problems, 10, [1.0, 1.0, 0.0], 0.0, 2, 1.0)
        assert check.passed == (len(problems) == 1)
        assert sum(each.correct_pairs for each in check.problems) == kept
    assert ParallelCheck([good], 1, [1, 1, 0], 0.0, 2, 1.0).median_error == pytest.approx(
        0, abs=0.01
    )


class Clock:
    """Steps of a millisecond per request, exchanges of four per rank."""

    def times(self, steps):
        exchanged = [4.0 * (step.layout.tp - 1 + step.layout.pp - 1) for step in steps]
        total = [1.0 * step.part.batch + more for step, more in zip(steps, exchanged, strict=True)]
        return pd.DataFrame({"total": total, "communication": exchanged})


def test_coefficients_are_found():
    from plan_parallel.arrangement import arrangements, step_terms

    clocks = {"alone": Clock(), "together": Clock()}
    truth = np.array([1.2, 3.0, 0.5])
    taught = []
    for problem in (
        PROBLEM,
        StepProblem(MODEL, 2, 1, 9),
        StepProblem(small_model(128, 6, 2, 96), 2, 2),
    ):
        layouts = [
            layout(each.name, 1.0, [step_terms(problem, each, clocks) @ truth] * 8)
            for each in arrangements(2)
        ]
        taught.append(ProblemCheck(problem, layouts))
    assert fit_coefficients(taught, clocks, 2) == pytest.approx(truth, rel=0.1)
    disturbed = ProblemCheck(
        taught[0].problem,
        [layout(each.layout, 1.0, each.rounds_ms * 20) for each in taught[0].layouts[:1]]
        + list(taught[0].layouts[1:]),
    )
    robust = fit_coefficients([disturbed, *taught[1:]], clocks, 2)
    assert robust == pytest.approx(truth, rel=0.25)
    assert fit_coefficients([], clocks, 2).tolist() == [1.0, 1.0, 0.0]
