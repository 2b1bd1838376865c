"""The gallery of cheats and accidents: none can become a verified win; honest functions can."""

from pathlib import Path

import pytest
from honest_caches import CACHES
from tampering_functions import TAMPERING
from toy_kernel import DEVICE
from wrong_functions import HONEST, WRONG

from foretune.collect import InProcessRunner, Timing, comparison
from foretune.collect.wrapped.function import FunctionKernel
from foretune.space import Configuration

TIMING = Timing(max_seconds=0.002, warmup_s=0.0)


def refusals(function, arguments, knob="wrong"):
    """Return why the other configuration fails in a search or a session; [] if it does not."""
    default = Configuration({knob: 0})
    other = Configuration({knob: 1})
    kernel = FunctionKernel(function, {knob: [0, 1]}, arguments)
    runner = InProcessRunner(DEVICE, TIMING)
    (measured,) = runner.run(kernel, kernel.problem(), [other])
    if not measured.ok:
        return [measured.error]
    rounds = runner.compare_interleaved(kernel, kernel.problem(), [default, other], 1.0, seed=0)
    assert default.id not in rounds.failures
    return list(rounds.failures.values())


@pytest.fixture(autouse=True)
def _few_rounds(monkeypatch):
    monkeypatch.setattr(comparison, "MAX_ROUNDS", 6)
    monkeypatch.setattr(comparison, "SPECIAL_SHARE", 100.0)  # checks all special values


@pytest.mark.parametrize("name", WRONG)
def test_wrong_function_is_refused(name):
    assert refusals(*WRONG[name])


@pytest.mark.parametrize("name", HONEST)
def test_honest_function_is_accepted(name):
    assert refusals(*HONEST[name]) == []


@pytest.mark.parametrize("name", CACHES)
def test_honest_cache_is_accepted(name):
    assert refusals(*CACHES[name], knob="cached") == []


def test_gallery_is_complete():
    assert len(CACHES) >= 10
    assert len(WRONG) >= 45
    assert len(HONEST) >= 10


def test_gallery_page_names_every_function():
    page = Path(__file__).parents[2].joinpath("docs", "judge.md").read_text(encoding="utf-8")
    assert [
        name for name in (*WRONG, *HONEST, *CACHES, *TAMPERING) if f"`{name}`" not in page
    ] == []
