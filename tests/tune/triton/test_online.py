"""Online tuning: `tune/triton/online.py`. Searches are tested in `test_modes.py`."""

import os
import threading

import pytest

pytest.importorskip("triton")

from foretune.tune.triton import online
from foretune.tune.triton.online import StepSlots


def enters_in_time(slots, seconds):
    """Whether another thread gets a slot."""
    entered = threading.Event()

    def enter():
        with slots.hold_one():
            entered.set()

    threading.Thread(target=enter, daemon=True).start()
    return entered.wait(seconds)


def test_step_slots_limit_concurrent_steps():
    slots = StepSlots(1)
    with slots.hold_one():
        assert not enters_in_time(slots, seconds=0.05)
    assert enters_in_time(slots, seconds=30)


def test_step_slots_reset_frees_all():
    slots = StepSlots(1)
    with slots.hold_one():
        slots.reset()
        assert enters_in_time(slots, seconds=30)
    assert enters_in_time(slots, seconds=30)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # of threads, from Python 3.12 on
def test_step_slots_are_free_in_a_forked_process():
    held = [online._slots.hold_one() for _ in range(online.MAX_STEPS)]
    for slot in held:
        slot.__enter__()
    try:
        child = os.fork()
        if child == 0:
            os._exit(0 if enters_in_time(online._slots, seconds=30) else 1)
        _, status = os.waitpid(child, 0)
    finally:
        for slot in held:
            slot.__exit__(None, None, None)

    assert os.waitstatus_to_exitcode(status) == 0
