"""What is known of one call: `tune/triton/history.py`."""

import pytest

pytest.importorskip("triton")

from foretune import Configuration, Device, Problem
from foretune.measurement import Status
from foretune.objective import ConstrainedObjective, Objective
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.triton.history import CallHistory
from foretune.tune.triton.problem_key import Call

CALL = Call("kernel", "", Problem(n=1024), {}, Device("NVIDIA H200", "gpu"), None)
SMALL = Configuration(BLOCK=16)
MIDDLE = Configuration(BLOCK=64)
LARGE = Configuration(BLOCK=256)


def make_history(cache=None, check=None, objective=Objective.TIME):
    return CallHistory(
        call=CALL,
        candidates=[SMALL, MIDDLE, LARGE],
        cache=cache or MeasurementCache(CALL.subject, store=False),
        objective=ConstrainedObjective(objective, ()),
        check=check,
        features=lambda config: {"programs": 1024 / config["BLOCK"]},
    )


def success(config, time_ms, **more):
    return CALL.success(config, time_ms, [time_ms], **more)


def failure(config):
    return CALL.failure(config, Status.RUNTIME_ERROR, "illegal address")


def test_history_failures_are_recorded_after_the_first_success():
    history = make_history()

    history.add([failure(SMALL)])
    assert history.cache.known(CALL.problem) == []
    assert [m.config for m in history.measured()] == [SMALL]  # held back, but known here

    history.add([success(LARGE, 2.0)])
    recorded = history.cache.known(CALL.problem)
    assert {m.config: m.ok for m in recorded} == {SMALL: False, LARGE: True}
    assert history.new_count == 2


def test_history_adds_features_to_measurements():
    history = make_history()

    history.add([success(MIDDLE, 1.0)])

    (recorded,) = history.cache.known(CALL.problem)
    assert recorded.static == {"programs": 1024 / 64}


@pytest.mark.parametrize(
    ("failed", "fallback"), [((), SMALL), ((SMALL,), MIDDLE), ((SMALL, MIDDLE, LARGE), SMALL)]
)
def test_history_fallback_is_the_first_that_did_not_crash(failed, fallback):
    history = make_history()
    history.add([failure(config) for config in failed])

    assert history.fallback_configuration() == fallback
    assert history.all_failed is (len(failed) == 3)


def test_history_with_check_ignores_runs_that_were_not_compared():
    cache = MeasurementCache(CALL.subject, store=False)
    cache.append(success(SMALL, 1.0), success(MIDDLE, 2.0, relative_error=1e-3))
    history = make_history(cache, check=1e-2)

    assert history.best_measured() == MIDDLE
    assert history.unmeasured() == [SMALL, LARGE]
    assert history.was_measured(SMALL)


def test_history_with_energy_objective_counts_unmetered_runs_as_unmeasured():
    history = make_history(objective=Objective.ENERGY)
    history.add([success(SMALL, 1.0), success(MIDDLE, 1.0, power_w=100.0, energy_mj=100.0)])

    assert history.needs_power
    assert history.unmeasured() == [SMALL, LARGE]


def test_history_expects_results_of_candidates_that_others_claimed(tmp_path):
    store = tmp_path / "tuned.db"
    here = make_history(MeasurementCache(CALL.subject, store))
    here.claimed_by_others = [SMALL, LARGE]
    assert here.results_of_others() == []

    make_history(MeasurementCache(CALL.subject, store)).add([success(LARGE, 3.0)])
    (result,) = here.results_of_others()
    assert (result.config, result.time_ms) == (LARGE, 3.0)

    here.add_reported([result])
    assert here.claimed_by_others == [SMALL]
    assert here.new_count == 0  # measured by another process
