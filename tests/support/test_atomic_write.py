"""Writing in one step: the old file or the new one, and nothing beside them."""

import pytest

from foretune.errors import OutputError, StoreError
from foretune.support.files import atomic_write


def test_the_new_file_is_there_when_all_is_written(tmp_path):
    path = tmp_path / "deep" / "file.txt"
    for text in ("one", "two"):
        with atomic_write(path) as new:
            new.write_text(text)
        assert path.read_text() == text
    assert list(path.parent.iterdir()) == [path]


def test_what_fails_half_way_leaves_the_old_one(tmp_path):
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


def test_what_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "below"
    with pytest.raises(OutputError, match=f"cannot write {path}: "), atomic_write(path):
        pass
    with (
        pytest.raises(StoreError, match=f"cannot write the notes {path}: "),
        atomic_write(path, StoreError, "the notes "),
    ):
        pass
