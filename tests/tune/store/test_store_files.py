"""Measurements and choices in files: what is exported is merged, shipped, and never damaged."""

import json
import math

import pytest
from stored import LARGE, OTHER, SMALL, SUBJECT, choice, measured

from foretune.errors import StoreError, UnknownName
from foretune.tune.store import MergeReport, Store, StoreFile


class TestFiles:
    @pytest.fixture
    def filled(self, store):
        store.put(SUBJECT, [measured(x=2), measured(x=1), measured(LARGE, x=1)])
        store.put(OTHER, [measured(time_ms=math.nan, x=1)])
        store.choose(SUBJECT, SMALL, choice())
        return store

    def test_export_has_one_line_per_measurement(self, filled, tmp_path):
        filled.export(tmp_path / "a.json", kernel="softmax")
        text = (tmp_path / "a.json").read_text()
        assert sum('"status": ' in line for line in text.splitlines()) == 4
        filled.put(SUBJECT, [measured(x=3)])
        filled.export(tmp_path / "b.json")
        new = set((tmp_path / "b.json").read_text().splitlines()) - set(text.splitlines())
        assert len([line for line in new if '"x": 3' in line]) == 1
        assert json.loads(text)["version"] == 1

    def test_merge_twice_changes_nothing(self, filled, tmp_path):
        filled.export(tmp_path / "a.json")
        new = Store(tmp_path / "other.db")
        new.put(SUBJECT, [measured(x=1, time_ms=5.0, at="2026-06-01T00:00:00+00:00")])
        new.choose(SUBJECT, SMALL, choice(7, at="2020-01-01T00:00:00+00:00"))
        merged = new.merge(tmp_path / "a.json")
        assert merged == MergeReport(1, 3, 1, 1)
        assert new.merge(tmp_path / "a.json") == MergeReport(0, 0, 0, 5)
        assert {m.time_ms for m in new.measurements(SUBJECT, SMALL)} == {5.0, 1.0}
        assert new.choice(SUBJECT, SMALL) == choice(1), "chosen later"
        more = choice(8, measured=9, at="2020-01-01T00:00:00.000+00:00")
        new.choose(SUBJECT, SMALL, more, replacing=choice(1))
        assert new.merge(tmp_path / "a.json").choices == 0
        assert new.choice(SUBJECT, SMALL) == choice(8, measured=9), "rests on more"

    def test_merge_ignores_times_in_the_future(self, store, tmp_path):
        store.put(SUBJECT, [measured(x=1, time_ms=9.0, at="2999-01-01T00:00:00+00:00")])
        store.choose(SUBJECT, SMALL, choice(9, at="2999-01-01T00:00:00+00:00"))
        store.export(tmp_path / "a.json")
        new = Store(tmp_path / "other.db")
        new.put(SUBJECT, [measured(x=1)])
        new.choose(SUBJECT, SMALL, choice(1))
        assert new.merge(tmp_path / "a.json") == MergeReport(0, 0, 0, 2)

    def test_store_file_is_read_without_database(self, filled, tmp_path):
        filled.export(tmp_path / "a.json")
        shipped = StoreFile(tmp_path / "a.json")
        assert isinstance(shipped, StoreFile)
        assert shipped.name == str(tmp_path / "a.json")
        assert shipped.summary() == filled.summary()
        assert shipped.choice(SUBJECT, SMALL) == choice()
        assert shipped.choice(OTHER, SMALL) is None
        assert len(shipped.measurements(SUBJECT, SMALL)) == 2
        assert len(shipped.runs()) == 4
        shipped.export(tmp_path / "b.json")
        assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()

    def test_merge_empty_export(self, store, tmp_path):
        store.export(tmp_path / "a.json")
        assert store.merge(tmp_path / "a.json") == MergeReport(0, 0, 0, 0)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is not an exported store"),
            ("[1, 2]", "is not an exported store"),
            ('{"format": "other"}', "is not an exported store"),
            (
                '{"format": "foretune tuned results", "version": 2}',
                "reads up to 1: install a newer",
            ),
            (
                '{"format": "foretune tuned results", "version": 1, "rows": 0}',
                r"damaged \('subjects' is missing",
            ),
        ],
    )
    def test_merge_other_file_is_refused(self, store, tmp_path, text, message):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(StoreError, match=message):
            store.merge(tmp_path / "a.json")

    @pytest.mark.parametrize(
        ("damage", "becomes"),
        [
            ('"ok"', '"great"'),
            ('"time_ms": 1.0', '"time_ms": -1.0'),
            ('"how": "m', '"how": "x'),
            ('{"x": 1}', '{"x": []}'),
            ('"device"', '"devise"'),
            ('{"x": 2}', '{"x": 1}'),
            ('"n": 4096', '"n": 64'),
            ('"rows"', '"more": 1, "rows"'),
        ],
    )
    def test_merge_damaged_export_changes_nothing(self, filled, tmp_path, damage, becomes):
        filled.export(tmp_path / "a.json")
        text = (tmp_path / "a.json").read_text()
        (tmp_path / "a.json").write_text(text.replace(damage, becomes, 1))
        empty = Store(tmp_path / "empty.db")
        with pytest.raises(StoreError, match="is damaged"):
            empty.merge(tmp_path / "a.json")
        assert empty.subjects() == []

    def test_unreadable_and_unwritable_files_raise(self, filled, tmp_path):
        with pytest.raises(StoreError, match=r"cannot read .*nothing.json"):
            filled.merge(tmp_path / "nothing.json")
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match="cannot write"):
            filled.export(tmp_path / "file" / "a.json")
        with pytest.raises(UnknownName, match="did you mean 'softmax'"):
            filled.export(tmp_path / "a.json", kernel="softmix")
