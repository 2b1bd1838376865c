"""Contract of drivers of the search loop."""

from collections import Counter
from collections.abc import Callable, Generator, Sequence

from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.search.loop import Batch, SearchLoop, SearchResult, search
from foretune.search.searcher import RandomSearcher
from foretune.search.stopping import Stopping
from foretune.space import Configuration
from foretune.testing.contract import ContractViolation, ensure
from foretune.testing.searchers import SMALL, TINY, make_measurement

MAX_IDLE_SENDS = 10_000  # empty reports in a row after which a driver is taken to hang

Measure = Callable[[Configuration], Measurement]
Driver = Callable[[SearchLoop[Configuration], Measure], SearchResult]


def check_loop_driver(drive: Driver) -> None:
    """Drive searches one by one and three at a time, with failures and until nothing is left.

    ``drive`` gets a `foretune.search.search` loop and a function that measures one configuration;
    it drives the loop to its end and returns the loop's result. Raises ContractViolation if it does
    not, or if anything is not measured, or not sent, exactly once.
    """
    for space, budget, parallel in ((SMALL, 9, 1), (SMALL, 11, 3), (TINY, 99, 2), (SMALL, 0, 1)):
        when = f"with {parallel} at a time of {len(space)}"
        started: list[Configuration] = []
        measured: list[Configuration] = []
        reported: list[Measurement] = []
        loop = search(RandomSearcher(space), Stopping(budget), parallel=parallel)

        def measure(config: Configuration, measured: list[Configuration] = measured) -> Measurement:
            measured.append(config)
            return make_measurement(config, lambda c: float(c["tile"]), lambda c: c["tile"] == 1)

        try:
            result = drive(_observe(loop, started, reported), measure)
        except UsageError as e:
            raise ContractViolation(str(e)) from e
        except StopIteration as e:
            raise ContractViolation(
                f"{when}, the driver raised the loop's StopIteration: return its value, also that "
                "of a loop that ends at once"
            ) from e
        expected = min(budget, len(space))
        _ensure_once(measured, started, f"{when}, is measured")
        _ensure_once([m.config for m in reported], started, f"{when}, is reported")
        ensure(len(started) == expected, f"{when}, the driver ended before the search")
        ensure(
            isinstance(result, SearchResult) and result.measured == expected,
            f"{when}, the driver returned {result!r}: return the loop's result",
        )


def _observe(
    loop: SearchLoop[Configuration], started: list[Configuration], reported: list[Measurement]
) -> Generator[Batch[Configuration], Sequence[Measurement], SearchResult]:
    idle = 0
    try:
        batch = next(loop)
        while True:
            started += batch.start
            measurements = yield batch
            if not isinstance(measurements, Sequence):
                raise ContractViolation(f"{measurements!r} was sent: send a list of measurements")
            reported += measurements
            idle = 0 if measurements else idle + 1
            if idle > MAX_IDLE_SENDS:
                raise ContractViolation(f"{batch.pending} started configurations are not reported")
            batch = loop.send(measurements)
    except StopIteration as end:
        return end.value


def _ensure_once(
    configs: Sequence[Configuration], started: Sequence[Configuration], what: str
) -> None:
    times = Counter(configs)
    for config in dict.fromkeys([*started, *configs]):
        ensure(times[config] == started.count(config), f"{config}, {what} {times[config]} times")
