"""Tests writing a file in one step: `atomic_write` in `foretune.support.files`."""

import pytest

from foretune.errors import OutputError, StoreError
from foretune.support.files import atomic_write


def test_atomic_write_replaces_file(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    for text in ("one", "two"):
        with atomic_write(path) as new:
            new.write_text(text)
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_atomic_write_failure_keeps_old_file(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")

    def write():
        with atomic_write(path) as new:
            new.write_text("ne")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_unwritable_path_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "below"
    with pytest.raises(OutputError, match=f"cannot write {path}: "), atomic_write(path):
        pass
    with (
        pytest.raises(StoreError, match=f"cannot write the notes {path}: "),
        atomic_write(path, StoreError, "the notes "),
    ):
        pass
