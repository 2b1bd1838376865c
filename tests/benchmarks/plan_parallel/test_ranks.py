"""Processes of a check: they answer, and none is left when one fails."""

import os
import subprocess
import sys
import time

import plan_parallel.ranks as ranks_module
import psutil
import pytest
from plan_parallel.ranks import RankGroup

from foretune.errors import MeasurementError, MissingExtra

TOY = """
import os, sys, time
from multiprocessing.connection import Connection
from foretune.errors import MeasurementError
with Connection(int(sys.argv[1])) as connection:
    rank = int(sys.argv[2])
    if os.environ.get("TOY_FAILS_AT_START") == sys.argv[2]:
        connection.send(MeasurementError("no gloo here"))
        sys.exit(0)
    connection.send(None)
    while True:
        method, arguments = connection.recv()
        if method == "add":
            connection.send(rank + sum(arguments))
        elif method == "threads":
            connection.send(os.environ["OMP_NUM_THREADS"])
        elif method == "fail" and rank == 1:
            connection.send(MeasurementError("as asked"))
        elif method == "die" and rank == 1:
            os._exit(3)
        else:
            time.sleep(60)
"""


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """Ranks that need no torch."""
    (tmp_path / "toy_rank.py").write_text(TOY)
    path = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    monkeypatch.setattr(ranks_module, "MODULE", "toy_rank")
    monkeypatch.setattr(ranks_module, "find_spec", lambda name: name)


def children():
    return {p.pid for p in psutil.Process().children() if p.status() != psutil.STATUS_ZOMBIE}


def test_all_ranks_answer_in_order(toy):
    with RankGroup(3) as group:
        assert group.call("add", 10, 5) == [15, 16, 17]
        assert group.call("add", 1, ranks=[2, 0]) == [3, 1]
        assert group.call("threads") == ["1", "1", "1"]


@pytest.mark.parametrize(
    ("method", "message"),
    [("fail", "as asked"), ("die", "rank 1 died: exit code 3"), ("hang", "do not answer after")],
)
def test_no_process_outlives_a_failure(toy, method, message):
    before = children()
    group = RankGroup(2, limit_s=0.5 if method == "hang" else 30.0)
    assert len(children() - before) == 2
    with pytest.raises(MeasurementError, match=message):
        group.call(method)
    assert children() == before


def test_ranks_that_cannot_join_say_why(toy, monkeypatch):
    monkeypatch.setenv("TOY_FAILS_AT_START", "1")
    before = children()
    with pytest.raises(MeasurementError, match="no gloo here"):
        RankGroup(2)
    assert children() == before


def test_without_torch_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setattr(ranks_module, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"torch.*pip install"):
        RankGroup(2)


ORPHAN = """
import os, subprocess, sys
from multiprocessing import Pipe
mine, theirs = Pipe()
command = [sys.executable, "-P", "-m", {module!r}, str(theirs.fileno()), "0", "2"]
child = subprocess.Popen(
    [*command, {meeting!r}, "60", str(os.getpid())], pass_fds=[theirs.fileno()],
    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
)
print(child.pid, flush=True)
os._exit(0)
"""


def test_ranks_end_with_their_parent(tmp_path):
    """The real process, orphaned: a parent that is killed cannot close anything."""
    pytest.importorskip("torch")
    code = ORPHAN.format(module=ranks_module.MODULE, meeting=str(tmp_path / "meeting"))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": ranks_module._module_path()},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    orphan = int(run.stdout)
    deadline = time.monotonic() + 30
    while psutil.pid_exists(orphan) and psutil.Process(orphan).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline, "an orphan goes on"
        time.sleep(0.1)
