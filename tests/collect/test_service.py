"""An object in a process of its own: what counts against its limits."""

import time

import pytest

from foretune.collect.service import WorkerProcess


class Slow:
    """Takes a moment to arrive, and arrives as None."""

    def __reduce__(self):
        return time.sleep, (1.5,)


@pytest.fixture
def service():
    class Sleeper:  # local: the other process cannot import tests
        def sleep(self, seconds):
            time.sleep(seconds or 0)
            return "awake"

    service = WorkerProcess(Sleeper, ("it", "nothing"))
    yield service
    service.close()


def test_starting_and_importing_do_not_count(service):
    assert service.ask(1.0, "sleep", Slow()) == "awake"


def test_hanging_does(service):
    with pytest.raises(TimeoutError):
        service.ask(0.5, "sleep", 30)
    assert service.ask(20.0, "sleep", 0) == "awake"  # of a new process
