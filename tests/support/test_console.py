"""Progress where there is no terminal: a line per stage, or one live line in a notebook."""

import sys

from foretune.support.console import progress_bar


def work():
    with progress_bar() as progress:
        progress.start("profiling", 2)
        progress.advance("3 ms")
        progress.advance()
        progress.say("done")


def test_a_line_per_stage(capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # other tests may import it
    work()
    assert capsys.readouterr().err == "profiling …\ndone\n"


def test_one_live_line_in_a_notebook(capsys, monkeypatch):
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


def test_a_terminal_shows_the_time_left(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar() as progress:
        progress.start("profiling", 2)
        progress.advance()
    assert "-:--:--" in capsys.readouterr().err, "unknown yet; the time gone is 0:00:00"


def test_a_stage_that_comes_again_takes_its_bar(capsys, monkeypatch):
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


def test_a_long_name_leaves_room_for_the_bar(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress_bar() as progress:
        progress.start("tuning a=float64,a_0=256,a_1=256,b=float64,b_0=256,b_1=256", 10)
        progress.advance("best 0.123 ms")
    shown = capsys.readouterr().err
    assert "tuning a=float64,a_0=256,…" in shown
    assert "1/10" in shown
    assert "best 0.123 ms" in shown
