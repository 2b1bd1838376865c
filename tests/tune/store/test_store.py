"""The tuning store: nothing is lost, nothing is measured twice, everybody gets the same choice."""

import json
import math
import os
import platform
import shutil
import sqlite3
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretune.datasets import read_runs, write_runs
from foretune.errors import RunTableError, StoreError, UnknownName, UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Choice, MergeReport, Store, StoreFile, Subject, database
from foretune.tune.store import store as store_module
from foretune.tune.store.store import Process, this_process
from foretune.tune.store.subject import measurement_to_record

SUBJECT = Subject("softmax", "9f3a", "Toy GPU", "foretune 0.1.0, triton 3.9.0")
OTHER = replace(SUBJECT, versions="foretune 0.1.0, triton 3.6.0")
SMALL, LARGE = Problem(n=64, dtype="fp16"), Problem(n=4096, dtype="fp16")


def measured(problem=SMALL, time_ms=1.0, at="2026-01-01T00:00:00+00:00", subject=SUBJECT, **config):
    status = Status.OK if time_ms == time_ms else Status.COMPILE_ERROR
    return Measurement(
        subject.kernel, problem, Configuration(config), subject.device, status, time_ms,
        error="" if status is Status.OK else "out of registers", recorded_at=at,
    )  # fmt: skip


def choice(x=1, at="2026-01-01T00:00:00.000+00:00", regret=0.02, measured=3):
    return Choice(Configuration(x=x), measured, regret, "measured" if measured else "predicted", at)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def where(request, tmp_path):
    """An empty store's place."""
    if request.param == "sqlite":
        return str(tmp_path / "deep" / "tuned.db")
    url = os.environ["FORETUNE_TEST_POSTGRES"]
    Store(url).forget()
    return url


@pytest.fixture
def store(where):
    return Store(where, patience_s=5.0)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "tuned.db"


def known(tuned, subject=SUBJECT):
    """All measurements as comparable text: NaN does not equal NaN."""
    return {
        (m.problem.id, json.dumps(measurement_to_record(m), sort_keys=True))
        for m in tuned.measurements(subject)
    }


class TestMeasurements:
    def test_an_empty_store(self, store):
        assert store.subjects() == store.measurements(SUBJECT) == store.summary() == []
        assert store.choice(SUBJECT, SMALL) is None
        assert store.choices(SUBJECT) == {}
        assert store.crashed_configurations(SUBJECT, SMALL) == []
        assert len(store.runs()) == 0
        assert store.forget() == 0

    def test_what_is_put_is_found_again_by_another(self, where):
        first = replace(
            measured(x=1), time_ms_samples=(1.0, 1.5), power_w=80.0, compile_s=0.25,
            static={"registers": 40.0}, environment="triton 3.9.0", source="online",
        )  # fmt: skip
        later = measured(time_ms=math.nan, at="2026-01-02T00:00:00+00:00", x=2)
        Store(where).put(SUBJECT, [first, later, measured(LARGE, x=1)])
        again = Store(where)
        ok, failed = again.measurements(SUBJECT, SMALL)
        nan = {"energy_mj": ok.energy_mj, "relative_error": ok.relative_error}
        assert all(math.isnan(v) for v in nan.values())
        assert ok == replace(first, **nan)
        assert (failed.status, failed.error) == (Status.COMPILE_ERROR, "out of registers")
        assert len(again.measurements(SUBJECT)) == 3
        assert again.measurements(OTHER) == []

    def test_one_more_configuration_is_one_more_row(self, store):
        store.put(SUBJECT, [measured(x=1), measured(x=2)])
        before = known(store)
        store.put(SUBJECT, [measured(x=3)])
        assert known(store) > before
        assert len(known(store)) == 3

    def test_the_last_one_stays_whatever_its_clock_said(self, store):
        store.put(SUBJECT, [measured(time_ms=2.0, at="2030-01-02T00:00:00+00:00", x=1)])
        store.put(SUBJECT, [measured(time_ms=5.0, at="2026-01-02T00:00:00+00:00", x=2)])
        store.put(SUBJECT, [measured(time_ms=9.0, at="2026-01-01T00:00:00+00:00", x=1)])
        assert [m.time_ms for m in store.measurements(SUBJECT)] == [5.0, 9.0]
        store.put(SUBJECT, [measured(time_ms=math.nan, at="1999-01-03T00:00:00", x=1)])
        assert [m.status for m in store.measurements(SUBJECT)][1] == Status.COMPILE_ERROR
        first = store.choose(SUBJECT, SMALL, choice(1))
        assert first == store.choose(SUBJECT, SMALL, choice(2)) == choice(1)
        assert store.choose(SUBJECT, SMALL, choice(3, measured=9)) == choice(1)
        better = store.choose(SUBJECT, SMALL, choice(3, measured=9), replacing=choice(1))
        assert better.config["x"] == 3

    def test_equal_problems_are_one_problem(self, store):
        store.put(SUBJECT, [measured(Problem(n=64.0, flag=True), x=1)])
        assert len(store.measurements(SUBJECT, Problem(flag=1, n=64))) == 1

    def test_subjects_never_mix(self, store):
        store.put(SUBJECT, [measured(x=1)])
        store.put(OTHER, [measured(x=1, time_ms=7.0)])
        store.choose(OTHER, SMALL, choice())
        assert store.subjects() == sorted([SUBJECT, OTHER])
        assert [m.time_ms for m in store.measurements(SUBJECT)] == [1.0]
        assert store.choice(SUBJECT, SMALL) is None

    def test_a_measurement_of_something_else_is_refused(self, store):
        with pytest.raises(UsageError, match="on Another is none of softmax on Toy GPU"):
            store.put(SUBJECT, [measured(x=1), replace(measured(x=2), device="Another")])
        assert store.measurements(SUBJECT) == []

    @pytest.mark.parametrize("time_ms", [0.0, -1.0, math.inf])
    def test_an_impossible_time_is_refused(self, store, time_ms):
        with pytest.raises(RunTableError, match="status is ok but time_ms"):
            store.put(SUBJECT, [measured(x=1), measured(time_ms=time_ms, x=2)])
        assert store.measurements(SUBJECT) == []

    def test_forgetting(self, store):
        store.put(SUBJECT, [measured(x=1), measured(x=2), measured(LARGE, x=1)])
        store.choose(SUBJECT, SMALL, choice())
        store.begin_measurement(SUBJECT, SMALL, Configuration(x=9))
        store.put(OTHER, [measured(x=1)])
        assert store.forget(SUBJECT, SMALL) == 3
        assert [m.problem for m in store.measurements(SUBJECT)] == [LARGE]
        assert store.forget(SUBJECT) == 1
        assert store.subjects() == [OTHER]
        with pytest.raises(UsageError, match="name it"):
            store.forget(problem=SMALL)
        assert store.forget() == 1
        assert store.subjects() == []

    def test_summary_counts(self, store):
        store.put(SUBJECT, [measured(x=1), measured(time_ms=math.nan, x=2), measured(LARGE, x=1)])
        store.choose(SUBJECT, Problem(n=1), choice())
        [found] = store.summary()
        assert found.subject == SUBJECT
        assert (found.problems, found.measurements, found.failed, found.choices) == (3, 3, 1, 1)

    def test_runs_are_a_run_table_that_says_its_code(self, store, tmp_path):
        store.put(SUBJECT, [measured(x=1), measured(time_ms=math.nan, x=2)])
        store.put(OTHER, [replace(measured(x=1), environment="mine")])
        write_runs(tmp_path / "runs.parquet", store.runs("softmax"))
        runs = read_runs(tmp_path / "runs.parquet")
        assert runs["problem.n"].tolist() == [64] * 3
        assert sorted(runs["environment"]) == [*[f"{SUBJECT.versions}, source 9f3a"] * 2, "mine"]
        assert sorted(runs["status"]) == ["compile_error", "ok", "ok"]
        with pytest.raises(UnknownName, match="unknown kernel in this store 'softmix'"):
            store.runs("softmix")

    def test_a_store_is_no_run_table_and_says_how_to_make_one(self, file, tmp_path):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        store.export(tmp_path / "tuned.json")
        for path in (file, tmp_path / "tuned.json"):
            said = rf"is a tuning store, no run table: .*store --store \S*{path.name} --export"
            with pytest.raises(RunTableError, match=said):
                read_runs(path)
        (tmp_path / "other.json").write_text("{}")
        with pytest.raises(RunTableError, match="is not a readable Parquet file"):
            read_runs(tmp_path / "other.json")

    def test_an_empty_store_knows_no_kernel(self, store):
        with pytest.raises(UsageError, match="knows no kernel 'softmax': nothing has been tuned"):
            store.find_subjects("softmax")
        assert store.find_subjects(None) == []


NAMES = st.text(min_size=1, max_size=5)
VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=8)
)
DESCRIBED = st.dictionaries(NAMES, VALUES, max_size=4)
POSITIVE = st.floats(1e-9, 1e9)
MEASUREMENTS = st.builds(
    lambda problem, config, ok, time_ms, samples, power_w, static, error: Measurement(
        SUBJECT.kernel, Problem(problem), Configuration(config), SUBJECT.device,
        Status.OK if ok else Status.TIMEOUT, time_ms if ok else math.nan,
        time_ms_samples=tuple(samples), power_w=power_w, static=static, error=error,
    ),
    DESCRIBED, DESCRIBED.filter(bool), st.booleans(), POSITIVE, st.lists(POSITIVE, max_size=3),
    POSITIVE | st.just(math.nan), st.dictionaries(NAMES, POSITIVE, max_size=2), st.text(),
)  # fmt: skip


class TestRoundTrips:
    @settings(max_examples=12)  # each makes two databases
    @given(st.lists(MEASUREMENTS, max_size=4), DESCRIBED, POSITIVE | st.just(math.nan))
    def test_through_a_database_and_a_file(self, tmp_path_factory, found, config, regret):
        folder = tmp_path_factory.mktemp("store")
        first, second = Store(folder / "a.db"), Store(folder / "b.db")
        first.put(SUBJECT, found)
        chosen = Choice(Configuration(config), 2, regret, "predicted")
        first.choose(SUBJECT, LARGE, chosen)
        first.export(folder / "one.json")
        second.merge(folder / "one.json")
        second.export(folder / "two.json")
        shipped = StoreFile(folder / "one.json")
        last = {(m.problem, m.config): m for m in found}
        wanted = {
            (p.id, json.dumps(measurement_to_record(m), sort_keys=True))
            for (p, _), m in last.items()
        }
        for tuned in (first, second, shipped):
            assert known(tuned) == wanted
            assert tuned.subjects() == [SUBJECT]
            stands = tuned.choice(SUBJECT, LARGE)
            assert (stands.config, stands.how, stands.measured) == (chosen.config, "predicted", 2)
            assert stands.regret == regret or (math.isnan(stands.regret) and math.isnan(regret))
        assert (folder / "one.json").read_bytes() == (folder / "two.json").read_bytes()

    @settings(max_examples=12)
    @given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(0, 5)), max_size=8))
    def test_merging_two_stores_either_way_is_the_same(self, tmp_path_factory, entries):
        """Newest wins; one moment never has two results here."""
        folder = tmp_path_factory.mktemp("store")
        stores = [Store(folder / "a.db"), Store(folder / "b.db")]
        for i, (x, time_ms, second) in enumerate(entries):
            at = f"2026-01-01T00:{second:02d}:{i:02d}+00:00"
            stores[i % 2].put(SUBJECT, [measured(time_ms=float(time_ms), at=at, x=x)])
        for one, name in zip(stores, "ab", strict=True):
            one.export(folder / f"{name}.json")
        stores[0].merge(folder / "b.json")
        stores[1].merge(folder / "a.json")
        assert known(stores[0]) == known(stores[1])


class TestChoices:
    def test_the_first_one_stands(self, store):
        assert store.choose(SUBJECT, SMALL, choice(1)) == choice(1)
        assert store.choose(SUBJECT, SMALL, choice(2, regret=0.0)) == choice(1)
        assert store.choice(SUBJECT, SMALL) == choice(1)
        assert store.choose(SUBJECT, LARGE, choice(2)) == choice(2)
        assert store.choices(SUBJECT) == {SMALL: choice(1), LARGE: choice(2)}

    def test_who_knew_it_and_measured_more_replaces_it(self, store):
        """However late or early its clock says it is."""
        early = "2020-01-01T00:00:00.000+00:00"
        first = store.choose(SUBJECT, SMALL, choice(1, measured=0))
        assert store.choose(SUBJECT, SMALL, choice(2)) == first
        assert store.choose(SUBJECT, SMALL, choice(2, measured=0), replacing=first) == first
        assert store.choose(SUBJECT, SMALL, choice(3, at=early), replacing=first) == choice(3)
        assert store.choose(SUBJECT, SMALL, choice(4, measured=99), replacing=first) == choice(3)
        assert store.choice(SUBJECT, SMALL) == choice(3)

    def test_it_is_made_in_a_way_that_exists(self, store):
        with pytest.raises(UsageError, match="or all or verified, not 'guessed'"):
            store.choose(SUBJECT, SMALL, replace(choice(), how="guessed"))

    def test_threads_agree(self, where):
        """Each with a store of its own, all at once."""
        start, found = threading.Barrier(6), []

        def propose(x):
            mine = Store(where)
            start.wait()
            found.append(mine.choose(SUBJECT, SMALL, choice(x)))

        threads = [threading.Thread(target=propose, args=(x,)) for x in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 6
        assert set(found) == {Store(where).choice(SUBJECT, SMALL)}

    def test_threads_share_one_store(self, store):
        start = threading.Barrier(4)

        def fill(thread):
            start.wait()
            for x in range(10):
                store.put(SUBJECT, [measured(x=x, thread=thread)])

        threads = [threading.Thread(target=fill, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(store.measurements(SUBJECT, SMALL)) == 40


CHILD = """
import json, os, signal, sys
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import store as store_module
from foretune.tune.store import Choice, Store, Subject

place, number, subject = sys.argv[1], int(sys.argv[2]), Subject(*json.loads(sys.argv[3]))
problem, store = Problem(n=64, dtype="fp16"), Store(place)
print("ready", flush=True)
sys.stdin.readline()
for x in range(30):
    config = Configuration(x=x, process=number)
    store.begin_measurement(subject, problem, config)
    row = Measurement(subject.kernel, problem, config, subject.device, Status.OK, 1.0 + x)
    store.put(subject, [row])
mine = Choice(Configuration(x=number), 30, 0.0, "measured")
print(store.choose(subject, problem, mine).config["x"], flush=True)
store.begin_measurement(subject, problem, Configuration(x="crash", process=number))
if number == 0:
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.readline()
"""


class TestProcesses:
    def test_many_at_once_one_of_which_is_killed(self, where, monkeypatch):
        """All rows are there, all choose the same, and only the dead one's last is abandoned."""
        described = json.dumps([SUBJECT.kernel, SUBJECT.source, SUBJECT.device, SUBJECT.versions])
        children = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", CHILD, where, str(number), described],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )
            for number in range(4)
        ]  # fmt: skip
        try:
            for child in children:
                assert child.stdout.readline() == "ready\n"
            for child in children:
                child.stdin.write("go\n")
                child.stdin.flush()
            chosen = {child.stdout.readline() for child in children}
            children[0].wait()
            store = Store(where)
            assert len(chosen) == 1
            assert store.choice(SUBJECT, SMALL).config["x"] == int(chosen.pop())
            assert len(store.measurements(SUBJECT, SMALL)) == 120
            crashed = Configuration(x="crash", process=0)
            assert store.crashed_configurations(SUBJECT, SMALL) == [], "it may have been chance"
            with monkeypatch.context() as other:
                dead = Process(platform.node(), 2**22 + 1, 0.0)
                other.setattr(store_module, "this_process", lambda: dead)
                store.begin_measurement(SUBJECT, SMALL, crashed)
            assert store.crashed_configurations(SUBJECT, SMALL) == [crashed]
        finally:
            for child in children:
                child.communicate("end\n")
        dead = replace(measured(), config=crashed, status=Status.RUNTIME_ERROR, time_ms=math.nan)
        store.put(SUBJECT, [dead])
        assert crashed not in store.crashed_configurations(SUBJECT, SMALL), "it has its row now"

    def test_what_this_process_measures_is_not_abandoned(self, store):
        config = Configuration(x=1)
        store.begin_measurement(SUBJECT, SMALL, config)
        store.begin_measurement(SUBJECT, SMALL, config)
        assert store.crashed_configurations(SUBJECT, SMALL) == []
        store.put(SUBJECT, [measured(x=1)])
        assert store.crashed_configurations(SUBJECT, SMALL) == []

    def test_a_mark_can_be_taken_away_without_a_result(self, store, monkeypatch):
        """By the one who made it; those of other processes stay."""
        config, me = Configuration(x=1), this_process()
        first, earlier = (replace(me, pid=2**22 + i) for i in (1, 2))
        for who in (first, earlier, me):
            monkeypatch.setattr(store_module, "this_process", lambda who=who: who)
            store.begin_measurement(SUBJECT, SMALL, config)
        store.end_measurement(SUBJECT, SMALL, config)
        assert store.crashed_configurations(SUBJECT, SMALL) == [config]
        monkeypatch.setattr(store_module, "this_process", lambda: earlier)
        store.end_measurement(SUBJECT, SMALL, config)
        assert store.crashed_configurations(SUBJECT, SMALL) == []

    def test_who_lives(self):
        me = this_process()
        assert me.is_alive
        assert replace(me, started=me.started - 60).is_alive is False, "another one with its number"
        assert Process(platform.node(), 2**22 + 1, me.started).is_alive is False
        assert replace(me, host="elsewhere").is_alive is None


class TestFiles:
    @pytest.fixture
    def filled(self, store):
        store.put(SUBJECT, [measured(x=2), measured(x=1), measured(LARGE, x=1)])
        store.put(OTHER, [measured(time_ms=math.nan, x=1)])
        store.choose(SUBJECT, SMALL, choice())
        return store

    def test_one_line_per_measurement(self, filled, tmp_path):
        filled.export(tmp_path / "a.json", kernel="softmax")
        text = (tmp_path / "a.json").read_text()
        assert sum('"status": ' in line for line in text.splitlines()) == 4
        filled.put(SUBJECT, [measured(x=3)])
        filled.export(tmp_path / "b.json")
        new = set((tmp_path / "b.json").read_text().splitlines()) - set(text.splitlines())
        assert len([line for line in new if '"x": 3' in line]) == 1
        assert json.loads(text)["version"] == 1

    def test_merging_brings_news_once(self, filled, tmp_path):
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

    def test_a_shipped_file_is_read_without_a_database(self, filled, tmp_path):
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

    def test_an_empty_one(self, store, tmp_path):
        store.export(tmp_path / "a.json")
        assert store.merge(tmp_path / "a.json") == MergeReport(0, 0, 0, 0)

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", "is no exported store"),
            ("[1, 2]", "is no exported store"),
            ('{"format": "other"}', "is no exported store"),
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
    def test_what_is_no_export_is_refused(self, store, tmp_path, text, message):
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(StoreError, match=message):
            store.merge(tmp_path / "a.json")

    @pytest.mark.parametrize(
        ("damage", "becomes"),
        [('"ok"', '"great"'), ('"time_ms": 1.0', '"time_ms": -1.0'), ('"how": "m', '"how": "x'),
         ('{"x": 1}', '{"x": []}'), ('"device"', '"devise"')],
    )  # fmt: skip
    def test_a_damaged_export_changes_nothing(self, filled, tmp_path, damage, becomes):
        filled.export(tmp_path / "a.json")
        text = (tmp_path / "a.json").read_text()
        (tmp_path / "a.json").write_text(text.replace(damage, becomes, 1))
        empty = Store(tmp_path / "empty.db")
        with pytest.raises(StoreError, match="is damaged"):
            empty.merge(tmp_path / "a.json")
        assert empty.subjects() == []

    def test_files_that_cannot_be_read_or_written(self, filled, tmp_path):
        with pytest.raises(StoreError, match=r"cannot read .*nothing.json"):
            filled.merge(tmp_path / "nothing.json")
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match="cannot write"):
            filled.export(tmp_path / "file" / "a.json")
        with pytest.raises(UnknownName, match="did you mean 'softmax'"):
            filled.export(tmp_path / "a.json", kernel="softmix")


FORKED = """
import os, sys
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Store, Subject

subject, store = Subject("k", "s", "d", "v"), Store(sys.argv[1])

def put(x):
    row = Measurement("k", Problem(n=1), Configuration(x=x), "d", Status.OK, 1.0 + x)
    store.put(subject, [row])

put(0)
child = os.fork()
for x in range(20):
    put(1000 * (child == 0) + x)
if child:
    assert os.waitpid(child, 0)[1] == 0
    print(len(store.measurements(subject)), flush=True)
"""


class TestOpenConnection:
    def test_it_is_opened_once(self, file, monkeypatch):
        opened, connect = [], sqlite3.connect

        def count(*arguments, **options):
            opened.append(1)
            return connect(*arguments, **options)

        monkeypatch.setattr(sqlite3, "connect", count)
        store = Store(file)
        for x in range(5):
            store.put(SUBJECT, [measured(x=x)])
        assert len(store.measurements(SUBJECT)) == 5
        assert len(opened) == 1

    def test_what_was_put_is_in_the_file_at_once(self, file):
        store = Store(file)
        for x in range(3):
            store.put(SUBJECT, [measured(x=x)])
            assert len(Store(file, create=False).measurements(SUBJECT)) == x + 1

    def test_closing_leaves_one_file(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        assert file.with_name("tuned.db-wal").exists()
        store.close()
        assert list(file.parent.iterdir()) == [file]
        store.put(SUBJECT, [measured(x=2)])
        del store
        assert list(file.parent.iterdir()) == [file]

    def test_a_replaced_file_is_noticed(self, file):
        other = Store(file.with_name("other.db"))
        other.put(SUBJECT, [measured(x=9)])
        other.close()
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        file.with_name("other.db").replace(file)
        assert [m.config["x"] for m in store.measurements(SUBJECT)] == [9]
        store.put(SUBJECT, [measured(x=2)])
        assert [m.config["x"] for m in Store(file).measurements(SUBJECT)] == [9, 2]

    def test_another_process_deletes_and_makes_it_again(self, file):
        """The log of the deleted file is not mixed with that of the new one."""
        store = Store(file)
        store.put(SUBJECT, [measured(x=x) for x in range(50)])
        code = (
            "import os, sys; from foretune.tune.store import Store, Subject;"
            "os.unlink(sys.argv[1]);"
            "store = Store(sys.argv[1]); store.put(Subject('a', 'b', 'c', 'd'), []);"
            "print('ready', flush=True); sys.stdin.readline(); print(len(store.subjects()))"
        )
        child = subprocess.Popen(
            [sys.executable, "-P", "-c", code, file],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            assert child.stdout.readline() == "ready\n"
            assert [s.kernel for s in store.subjects()] == ["a"]
            store.put(SUBJECT, [measured(x=1)])
        finally:
            said, _ = child.communicate("go\n")
        assert said == "2\n"
        assert len(Store(file).measurements(SUBJECT)) == 1

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_parent_and_child_of_a_fork(self, file):
        run = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-c", FORKED, file],
            capture_output=True, text=True,
        )  # fmt: skip
        assert (run.stdout, run.stderr) == ("40\n", "")
        raw = sqlite3.connect(file)
        assert raw.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        raw.close()


class Interrupted:
    """A connection that is interrupted as it begins a transaction."""

    def __init__(self, connection):
        self._connection = connection

    def __getattr__(self, name):
        return getattr(self._connection, name)

    def execute(self, statement):
        self._connection.execute(statement)
        raise KeyboardInterrupt


class TestTrouble:
    def test_an_interrupted_transaction_locks_nobody_out(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=0)])
        database = store._database
        real, database._connection = database._connection, Interrupted(database._connection)
        with pytest.raises(KeyboardInterrupt):
            store.put(SUBJECT, [measured(x=1)])
        database._connection = real
        Store(file).put(SUBJECT, [measured(x=2)])
        store.put(SUBJECT, [measured(x=3)])
        assert len(store.measurements(SUBJECT, SMALL)) == 3

    def test_an_address_has_no_options(self, file):
        with pytest.raises(StoreError, match="leave out what follows"):
            Store(f"sqlite:///{file}?mode=ro").put(SUBJECT, [measured()])

    def test_nothing_is_opened_before_it_is_used(self, file):
        Store(file)
        assert not file.exists()

    def test_where_it_is_by_default(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("FORETUNE_STORE", raising=False)
        assert Store().name.endswith("tuned.db")
        monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "mine.db"))
        assert Store().name == str(tmp_path / "mine.db")
        Store().put(SUBJECT, [measured(x=1)])
        assert len(Store(f"sqlite:///{tmp_path / 'mine.db'}").measurements(SUBJECT)) == 1

    def test_a_file_that_is_something_else(self, file):
        file.write_bytes(b"no database at all " * 300)
        store = Store(file)
        message = r"tuned.db is not a store \(file is not a database\): name another .*, or move it"
        with pytest.raises(StoreError, match=message):
            store.choice(SUBJECT, SMALL)
        file.rename(file.with_suffix(".bad"))
        store.put(SUBJECT, [measured(x=1)])
        assert len(store.measurements(SUBJECT)) == 1

    def test_a_file_with_torn_pages(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=x) for x in range(200)])
        store.close()
        content = file.read_bytes()
        assert len(content) > 3 * 4096
        file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
        with pytest.raises(StoreError, match=r"is damaged .*malformed"):
            store.measurements(SUBJECT)

    def test_a_row_with_nonsense(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        store.choose(SUBJECT, SMALL, choice())
        raw = sqlite3.connect(file)
        raw.execute("UPDATE foretune_measurements SET record = '{\"status\": 3}'")
        raw.execute("UPDATE foretune_choices SET record = '{'")
        raw.commit()
        raw.close()
        for ask in (store.measurements, store.choices):
            with pytest.raises(StoreError, match="holds a damaged row"):
                ask(SUBJECT)

    def test_a_locked_file_can_still_be_read(self, file):
        store = Store(file, patience_s=0.05)
        store.put(SUBJECT, [measured(x=1)])
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            with pytest.raises(StoreError, match="is locked by another process: wait for it, or"):
                store.put(SUBJECT, [measured(x=2)])
            assert len(store.measurements(SUBJECT)) == 1
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        store.put(SUBJECT, [measured(x=2)])
        assert len(store.measurements(SUBJECT)) == 2

    def test_a_new_file_that_somebody_holds(self, file):
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        try:
            with pytest.raises(StoreError, match="is locked"):
                Store(file, patience_s=0.05).subjects()
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        assert Store(file).subjects() == []

    def test_half_made_tables_are_completed(self, file):
        raw = sqlite3.connect(file)
        raw.execute("CREATE TABLE foretune_version (version INTEGER PRIMARY KEY)")
        raw.commit()
        raw.close()
        Store(file).put(SUBJECT, [measured(x=1)])
        assert len(Store(file).measurements(SUBJECT)) == 1

    def test_a_newer_version(self, file):
        Store(file).subjects()
        raw = sqlite3.connect(file)
        raw.execute("UPDATE foretune_version SET version = 9")
        raw.commit()
        raw.close()
        with pytest.raises(StoreError, match="version 9, this Foretune knows version 2: install a"):
            Store(file).subjects()

    def test_a_file_that_vanished_is_made_again(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        file.unlink()
        store.put(SUBJECT, [measured(x=2)])
        assert [m.config["x"] for m in store.measurements(SUBJECT)] == [2]
        file.unlink()
        assert store.measurements(SUBJECT) == []
        assert store.choose(SUBJECT, SMALL, choice(3)) == choice(3)

    @pytest.mark.parametrize("how", ["its folder went", "it was emptied"])
    def test_what_else_may_happen_to_a_file_in_use(self, tmp_path, how):
        file = tmp_path / "deep" / "tuned.db"
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        if how == "it was emptied":
            file.write_bytes(b"")
        else:
            shutil.rmtree(file.parent)
        store.begin_measurement(SUBJECT, SMALL, Configuration(x=2))
        store.put(SUBJECT, [measured(x=2)])
        assert [m.config["x"] for m in Store(file).measurements(SUBJECT)] == [2]

    def test_who_only_reads_makes_nothing(self, tmp_path):
        for where in (tmp_path / "deep" / "tuned.db", f"sqlite:///{tmp_path}/t.db"):
            with pytest.raises(StoreError, match=r"does not exist: nothing has been tuned there"):
                Store(where, create=False).subjects()
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(StoreError, match="is not a store but a folder"):
            Store(tmp_path, create=False).subjects()

    def test_another_programs_database_gets_no_tables_from_who_only_reads(self, file):
        raw = sqlite3.connect(file)
        raw.execute("CREATE TABLE others (x INTEGER)")
        raw.close()
        before = file.read_bytes()
        with pytest.raises(StoreError, match=r"is not a store: it has no tables of Foretune's"):
            Store(file, create=False).subjects()
        assert file.read_bytes() == before

    def test_who_only_reads_finds_what_is_there(self, file):
        Store(file).put(SUBJECT, [measured(x=1)])
        assert len(Store(file, create=False).measurements(SUBJECT)) == 1

    def test_places_that_cannot_be_written(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match=r"cannot write .*: set FORETUNE_STORE to a file"):
            Store(tmp_path / "file" / "tuned.db").subjects()
        with pytest.raises(StoreError, match=r"cannot write .*unable to open"):
            Store(tmp_path).subjects()

    def test_a_read_only_database(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        store._database._connection.execute("PRAGMA query_only = 1")
        assert len(store.measurements(SUBJECT)) == 1
        with pytest.raises(StoreError, match=r"cannot write .*readonly database"):
            store.put(SUBJECT, [measured(x=2)])

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
    def test_a_read_only_folder(self, tmp_path):
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(StoreError, match="cannot write"):
                Store(tmp_path / "tuned.db").subjects()
        finally:
            tmp_path.chmod(0o700)

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("sqlite://", "a database in memory forgets everything"),
            ("nonsense://host/db", "a store is an SQLite file or in PostgreSQL"),
            ("mysql://me:secret@host/db", r"mysql://me:\*\*\*@host/db: a store is an SQLite file"),
        ],
    )
    def test_urls_that_lead_nowhere(self, url, message):
        with pytest.raises(StoreError, match=message):
            Store(url).subjects()

    def test_a_password_is_never_shown(self):
        assert Store("postgresql://me:secret@host/db").name == "postgresql://me:***@host/db"

    @pytest.mark.parametrize(("kind", "journal"), [("ext4", "wal"), ("nfs4", "delete")])
    def test_no_shared_memory_on_a_file_system_of_several_machines(
        self, file, monkeypatch, kind, journal
    ):
        import psutil

        mounts = [type("Mount", (), {"mountpoint": "/", "fstype": kind})]
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
        assert database.is_network_file_system(file) == (kind == "nfs4")
        Store(file).put(SUBJECT, [measured(x=1)])
        raw = sqlite3.connect(file)
        assert raw.execute("PRAGMA journal_mode").fetchone() == (journal,)
        raw.close()


def test_importing_it_does_not_load_the_database():
    code = "import sys, foretune.tune.store as s; s.Store(); print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert not set(run.stdout.split()) & {"triton", "torch", "psycopg"}
