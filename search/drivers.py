"""Drivers of the search loop: they measure its batches and send the measurements back."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

from foretune.errors import UsageError
from foretune.measurement import Measurement
from foretune.search.loop import SearchLoop, SearchResult

C = TypeVar("C", bound=Hashable)


def run(
    loop: SearchLoop[C], measure: Callable[[tuple[C, ...]], Iterable[Measurement]]
) -> SearchResult:
    """Drive a search batch by batch: ``measure`` returns one measurement per configuration."""
    try:
        batch = next(loop)
        while batch.start:
            batch = loop.send(list(measure(batch.start)))
    except StopIteration as end:
        result: SearchResult = end.value
        return result
    raise UsageError(f"{batch.pending} configurations have no measurement: return one for each")


def run_parallel(
    loop: SearchLoop[C], submit: Callable[[C], object], finished: Callable[[], Measurement]
) -> SearchResult:
    """Drive a search on several devices: ``finished`` waits for the next one that is done."""
    try:
        batch = next(loop)
        while True:
            for config in batch.start:
                submit(config)
            batch = loop.send([finished()])
    except StopIteration as end:
        result: SearchResult = end.value
        return result
