"""Damaged stores: errors are Foretune's own, and readable rows stay readable."""

import sqlite3
import warnings

import numpy as np
import pytest
from stored import LARGE, SMALL, SUBJECT, choice, measured

from foretune.errors import ForetuneError, ForetuneWarning, StoreError
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Store

ROWS = 60
DAMAGED_COPIES = 100


@pytest.fixture
def sound(file):
    """A store with measurements, choices and marks, closed."""
    store = Store(file)
    store.put(SUBJECT, [measured(problem, x=x) for problem in (SMALL, LARGE) for x in range(ROWS)])
    store.choose(SUBJECT, SMALL, choice(1))
    store.begin_measurement(SUBJECT, SMALL, Configuration(x=ROWS))
    store.close()
    return file


def calls(store):
    """All ways in which Foretune reads and writes a store."""
    return {
        "subjects": store.subjects,
        "measurements": lambda: store.measurements(SUBJECT),
        "of a problem": lambda: store.measurements(SUBJECT, SMALL),
        "of others": lambda: store.other_measurements(SUBJECT, SMALL),
        "choice": lambda: store.choice(SUBJECT, SMALL),
        "choices": lambda: store.choices(SUBJECT),
        "crashed": lambda: store.crashed_configurations(SUBJECT, SMALL),
        "summary": store.summary,
        "newest": lambda: store.newest_subject(SUBJECT.kernel),
        "runs": store.runs,
        "claim": lambda: store.try_claim(SUBJECT, SMALL, Configuration(x=99)),
        "put": lambda: store.put(SUBJECT, [measured(x=1)]),
        "choose": lambda: store.choose(SUBJECT, SMALL, choice(2, measured=9), choice(1)),
        "forget": lambda: store.forget(SUBJECT, LARGE),
    }


def error_of(call):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ForetuneWarning)
        try:
            call()
        except Exception as e:
            return e
    return None


def one_line(error):
    return "\n" not in str(error)


def test_store_damaged_byte_never_raises_foreign_error(sound, tmp_path):
    content = sound.read_bytes()
    rng = np.random.default_rng(0)
    positions = rng.choice(len(content), DAMAGED_COPIES, replace=False)
    foreign = []
    for position in positions:
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        copy = tmp_path / "copy.db"
        copy.write_bytes(damaged)
        store = Store(copy, patience_s=0.1)
        for name, call in calls(store).items():
            error = error_of(call)
            if error is not None and not (isinstance(error, ForetuneError) and one_line(error)):
                foreign.append(f"byte {position}, {name}: {type(error).__name__}: {error}")
        store.close()
        for file in tmp_path.glob("copy.db*"):
            file.unlink()
    assert foreign == []


def damage(file, sql, *values):
    raw = sqlite3.connect(file)
    raw.execute(sql, values)
    raw.commit()
    raw.close()


@pytest.mark.parametrize(
    "value",
    ["{", "[]", "null", "[" * 5000, b"\xff\xfe", b"\xff", 3, 2.5, '{"config": {"x": 1e999}}'],
    ids=str,
)
def test_measurements_damaged_record_is_skipped_with_one_warning(sound, value):
    damage(
        sound,
        "UPDATE foretune_measurements SET record = ? WHERE config = ?",
        value,
        Configuration(x=3).id,
    )
    with pytest.warns(ForetuneWarning, match="2 damaged rows skipped") as caught:
        found = Store(sound).measurements(SUBJECT)
    assert len(caught) == 1
    assert len(found) == 2 * (ROWS - 1)


def test_measurements_other_configuration_than_its_key_is_skipped(sound):
    """A damaged byte turns one size into another."""
    change = """UPDATE foretune_measurements SET record = replace(record, '"x": 3}', '"x": 4}')"""
    damage(sound, change)
    with pytest.warns(ForetuneWarning, match="2 damaged rows skipped"):
        found = Store(sound).measurements(SUBJECT)
    assert [m.problem for m in found if m.config["x"] == 4] == [SMALL, LARGE]


def test_measurements_other_problem_than_its_key_is_skipped(sound):
    change = "UPDATE foretune_measurements SET described = ? WHERE problem = ?"
    damage(sound, change, '{"n": 65, "dtype": "fp16"}', SMALL.id)
    with pytest.warns(ForetuneWarning, match=f"{ROWS} damaged rows skipped"):
        found = Store(sound).measurements(SUBJECT)
    assert {m.problem for m in found} == {LARGE}


def test_measurements_torn_page_costs_only_its_rows(sound):
    """A page of rows is unreadable; the index, which lists the rows, is not."""
    raw = sqlite3.connect(sound)
    page_size = raw.execute("PRAGMA page_size").fetchone()[0]
    table = "foretune_measurements"
    first = "SELECT rootpage FROM sqlite_master WHERE name = ?"
    root = raw.execute(first, (table,)).fetchone()[0]
    raw.close()
    content = bytearray(sound.read_bytes())
    # The root page of a table ends with cells of four bytes of a page's number and a row's number.
    (cell,) = np.frombuffer(content, ">u2", 1, (root - 1) * page_size + 12)
    (leaf,) = np.frombuffer(content, ">u4", 1, (root - 1) * page_size + int(cell))
    start = (int(leaf) - 1) * page_size
    content[start : start + page_size] = b"\xff" * page_size
    sound.write_bytes(content)
    with pytest.warns(ForetuneWarning, match="damaged rows skipped"):
        found = Store(sound).measurements(SUBJECT)
    assert ROWS < len(found) < 2 * ROWS


def test_choose_replaces_damaged_choice(sound):
    damage(sound, "UPDATE foretune_choices SET record = '{'")
    with pytest.warns(ForetuneWarning, match="1 damaged row skipped"):
        Store(sound).choose(SUBJECT, SMALL, choice(5))
    assert Store(sound).choice(SUBJECT, SMALL) == choice(5)


def test_put_repairs_damaged_subject(sound):
    damage(sound, "UPDATE foretune_subjects SET kernel = 'saftmax'")
    store = Store(sound)
    with pytest.warns(ForetuneWarning, match="1 damaged row skipped"):
        assert store.subjects() == []
    store.put(SUBJECT, [measured(x=1)])
    assert store.subjects() == [SUBJECT]


def test_put_damaged_order_of_writing_begins_again(sound):
    damage(sound, "UPDATE foretune_measurements SET sequence = 'x' WHERE problem = ?", SMALL.id)
    store = Store(sound)
    store.put(SUBJECT, [measured(Problem(n=1), x=1)])
    assert len(store.measurements(SUBJECT)) == 2 * ROWS + 1


def test_store_damaged_version_says_what_to_do(sound):
    damage(sound, "UPDATE foretune_version SET version = -1")
    with pytest.raises(StoreError, match="version -1, this Foretune knows version 2: install"):
        Store(sound).subjects()


def test_try_claim_ignores_damaged_mark(sound):
    damage(sound, "UPDATE foretune_begun SET since = 'x', pid = -5")
    assert Store(sound).try_claim(SUBJECT, SMALL, Configuration(x=ROWS))
