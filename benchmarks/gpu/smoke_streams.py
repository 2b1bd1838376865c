"""Items of `smoke.py`: tuning in a graph capture and in another stream."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import triton
from smoke_cases import CASES
from smoke_rows import REAL, Run


@contextmanager
def capturing(run: Run) -> Iterator[Callable[[], None]]:
    """Capture the block into a graph; yield what replays it."""
    if REAL:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            yield graph.replay
        return
    run.driver.device_interface.capturing = True
    try:
        yield lambda: None
    finally:
        run.driver.device_interface.capturing = False


def capture(run: Run) -> None:
    """Call new kernels in a capture, replay it, and tune them afterwards."""
    for name in ("softmax", "elementwise", "gemm", "attention"):
        with run.checking(name):
            call, tuner, measured = CASES[name].tuned(store=run.store(f"capture-{name}"))
            with capturing(run) as replay:
                call.launch(tuner)
            during = len(measured)
            errors = []
            for again in (replay, replay, partial(call.launch, tuner)):
                call.spoil()
                again()
                errors.append(call.error())
            del replay, again  # a graph would else be destroyed while the next one is captured
            later = len(measured) - during
            run.check(
                name,
                during == 0 and later > 0 and max(errors) <= call.limit,
                f"{during} measured in the capture, {later} in the next call; errors of two "
                f"replays and of that call {', '.join(f'{e:.2g}' for e in errors)}",
            )


def other_stream(run: Run) -> None:
    """Tune in another stream, with an input that arrives late in it."""
    for name in ("softmax", "elementwise"):
        with run.checking(name):
            call, tuner, measured = CASES[name].tuned(store=False)
            if not REAL:
                call.launch(tuner)
                run.check(name, bool(measured), f"{len(measured)} measured")
                continue
            stream = torch.cuda.Stream()
            x = call.args[0]
            late = x.clone()
            x.zero_()
            call.spoil()
            torch.cuda.synchronize()
            with _streams() as streams, torch.cuda.stream(stream):
                torch.cuda._sleep(60_000_000)
                x.copy_(late)
                call.launch(tuner)
            error = call.error()
            alone = streams == {stream.cuda_stream}
            run.check(
                name,
                error <= call.limit and alone and bool(measured),
                f"{len(measured)} measured, error {error:.2g}, launched in "
                f"{'this stream only' if alone else sorted(streams)}",
            )


@contextmanager
def _streams() -> Iterator[set[int]]:
    """Collect the streams that this thread launches in."""
    driver = triton.runtime.driver.active
    thread = threading.get_ident()
    seen = set[int]()
    before = driver.get_current_stream

    def noted(device: Any) -> int:
        found = before(device)
        if threading.get_ident() == thread:
            seen.add(found)
        return found

    driver.get_current_stream = noted
    try:
        yield seen
    finally:
        driver.get_current_stream = before
