"""Whether a stored choice suffices: `tune/triton/choice.py`."""

import pytest

pytest.importorskip("triton")

from foretune import Configuration, Device, Problem
from foretune.objective import ConstrainedObjective, Objective
from foretune.tune.store.cache import MeasurementCache
from foretune.tune.store.subject import Choice
from foretune.tune.triton.call_search import CallSearch
from foretune.tune.triton.candidate_features import CandidateFeatures
from foretune.tune.triton.choice import ChoiceRule
from foretune.tune.triton.history import CallHistory
from foretune.tune.triton.options import Options
from foretune.tune.triton.prior import PriorFactory
from foretune.tune.triton.problem_key import Call

CALL = Call("kernel", "", Problem(n=1024), {}, Device("NVIDIA H200", "gpu"), None)
UNMETERED = Configuration(BLOCK=16)
FRUGAL = Configuration(BLOCK=64)
HUNGRY = Configuration(BLOCK=256)


def make_rule(store=False):
    """Return the rule for the energy of three candidates; the meter missed the first one."""
    options = Options(objective="energy", predictor=None, store=store)
    cache = MeasurementCache(CALL.subject, store)
    cache.append(
        CALL.success(UNMETERED, 1.0, [1.0]),
        CALL.success(FRUGAL, 1.0, [1.0], power_w=100.0, energy_mj=100.0),
        CALL.success(HUNGRY, 1.0, [1.0], power_w=200.0, energy_mj=200.0),
    )
    features = CandidateFeatures(CALL)
    history = CallHistory(
        call=CALL,
        candidates=[UNMETERED, FRUGAL, HUNGRY],
        cache=cache,
        objective=ConstrainedObjective(Objective.ENERGY, ()),
        check=None,
        features=features.of,
    )
    priors = PriorFactory(CALL.kernel, CALL.source, CALL.device, options)
    search = CallSearch(history, features, options=options, priors=priors)
    return ChoiceRule(history, search, options)


@pytest.mark.parametrize(
    ("config", "suffices"),
    [
        (HUNGRY, False),  # twice the energy of the best one, far more than the promised 1 %
        (FRUGAL, True),
        (UNMETERED, True),  # no measurement speaks against it
    ],
    ids=["hungry", "frugal", "unmetered"],
)
def test_choice_rule_compares_with_metered_runs_only(config, suffices):
    stored = Choice(config, measured=3, regret=0.01, how="measured")

    assert make_rule().suffices(stored) is suffices


def test_choice_rule_replaces_only_the_choice_that_was_read(tmp_path):
    rule = make_rule(tmp_path / "tuned.db")
    of_other_process = Choice(HUNGRY, measured=1, regret=0.01, how="measured")
    make_rule(tmp_path / "tuned.db").store_choice(of_other_process, replacing=None)

    assert rule.choose_best(replacing=None) == of_other_process
    assert rule.choose_best(replacing=of_other_process).config == FRUGAL
