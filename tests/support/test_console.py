"""Progress where there is no terminal: a line per stage, or one live line in a notebook."""

import sys
import time

import pytest

from foretune.support import console
from foretune.support.console import progress_bar


def work():
    with progress_bar() as progress:
        progress.start("profiling", 2)
        progress.advance("3 ms")
        progress.advance()
        progress.say("done")


def test_console_prints_line_per_stage(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # other tests may import it
    work()
    assert capsys.readouterr().err == "profiling …\ndone\n"


def test_console_has_one_live_line_in_notebook(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    work()
    err = capsys.readouterr().err
    assert "\n" not in err
    assert [line.strip() for line in err.split("\r")[1:]] == [
        "profiling 0/2",
        "profiling 1/2 3 ms",
        "profiling 2/2",
        "done",
    ]


def test_terminal_shows_time_left_when_known(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar() as progress:
        progress.start("profiling", 3)
        progress.advance()
        progress.advance()
        progress.advance()
    shown = capsys.readouterr().err
    assert "-:--:--" not in shown
    assert "0:00:00" in shown


def last_screen(shown: str) -> str:
    """Return the last state of the bars; each state begins with the first stage."""
    return shown.rpartition("tuning")[2]


def test_stage_that_stops_early_ends_with_what_was_done(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar() as progress:
        progress.start("tuning", 5)
        for _ in range(4):
            progress.advance("best 3 ms")
        progress.start("verifying", 2)
        progress.advance()
        progress.advance()

    shown = last_screen(capsys.readouterr().err)
    assert "4/4" in shown
    assert "4/5" not in shown
    assert "2/2" in shown


@pytest.mark.parametrize("total", [0, 5])
def test_stage_without_steps_leaves_no_bar(capsys, monkeypatch, total):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar() as progress:
        progress.start("profiling", total)
        progress.start("tuning", 1)
        progress.advance()
    shown = capsys.readouterr().err
    assert "0/0" not in shown
    assert "profiling" not in shown.splitlines()[-1]


def test_outer_stage_goes_on_after_nested_one(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar() as outer:
        outer.start("tuning", 2)
        outer.advance()
        with progress_bar() as inner:
            inner.start("training", 1)
            inner.advance()
        outer.advance()
    shown = last_screen(capsys.readouterr().err)
    assert "2/2" in shown
    assert "training" in shown


def test_lines_say_what_runs_after_silence(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    monkeypatch.setattr(console, "MAX_SILENCE_S", 0.01)
    with progress_bar() as progress:
        progress.start("profiling", 3)
        progress.advance("3 ms")
        wait_for(lambda: "profiling: 1 of 3, 0 s, 3 ms" in said(capsys))


def said(capsys) -> str:
    """Return what was printed to stderr since the last call."""
    return capsys.readouterr().err


def wait_for(condition) -> None:
    """Wait until a condition holds; a test that waits forever ends by its timeout."""
    while not condition():
        time.sleep(0.005)


def test_console_repeated_stage_reuses_bar(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar() as progress:
        progress.start("tuning", 1)
        progress.advance()
        for _ in range(30):
            progress.start("verifying", 2)
            progress.advance()
            progress.advance()
    shown = capsys.readouterr().err.rpartition("tuning")[2]
    assert shown.count("verifying") == 1


def test_console_long_name_leaves_room_for_bar(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar() as progress:
        progress.start("tuning a=float64,a_0=256,a_1=256,b=float64,b_0=256,b_1=256", 1)
        progress.advance("best 0.123 ms")
    shown = capsys.readouterr().err
    assert "tuning a=float64,a_0=256,…" in shown
    assert "1/1" in shown
    assert "best 0.123 ms" in shown
