"""Tests locks between processes: `Lock` in `foretune.support.files`."""

import subprocess
import sys

import pytest

from foretune.errors import OutputError
from foretune.support.files import Lock

RACE = """
import sys
from pathlib import Path
from foretune.errors import OutputError
from foretune.support.files import Lock
path, count = Path(sys.argv[1]), 0
while count < 200:
    try:
        lock = Lock(path)
    except OutputError:
        continue
    path.write_text(str(int(path.read_text()) + 1))
    lock.release()
    count += 1
"""


def test_lock_is_held_once(tmp_path):
    lock = Lock(tmp_path / "x")
    with pytest.raises(OutputError, match="in use by another process"):
        Lock(tmp_path / "x")
    lock.release()
    lock.release()
    assert list(tmp_path.iterdir()) == []
    Lock(tmp_path / "x").release()


def test_lock_removed_while_waiting_is_not_held(tmp_path):
    path = tmp_path / "x"
    path.write_text("0")
    run = [sys.executable, "-c", RACE, str(path)]
    processes = [subprocess.Popen(run) for _ in range(3)]
    assert [p.wait(60) for p in processes] == [0, 0, 0]
    assert path.read_text() == "600"


def test_lock_unwritable_path_is_output_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write to"):
        Lock(tmp_path / "file" / "x")
