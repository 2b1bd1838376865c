"""The tuning store: `tune/store/store.py`."""

import json
import math
import os
import platform
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from stored import LARGE, OTHER, SMALL, SUBJECT, choice, known, measured

from foretune.datasets import read_runs, write_runs
from foretune.errors import RunTableError, UnknownName, UsageError
from foretune.measurement import Measurement, Status
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.store import Choice, Store, StoreFile
from foretune.tune.store import store as store_module
from foretune.tune.store.measurement_record import measurement_to_record
from foretune.tune.store.process import Process, process_of, this_process
from foretune.tune.store.subject import Allowance


class TestMeasurements:
    def test_empty_store_has_nothing(self, store):
        assert store.subjects() == store.measurements(SUBJECT) == store.summary() == []
        assert store.choice(SUBJECT, SMALL) is None
        assert store.choices(SUBJECT) == {}
        assert store.crashed_configurations(SUBJECT, SMALL) == []
        assert len(store.runs()) == 0
        assert store.forget() == 0

    def test_put_is_visible_in_another_store_object(self, where):
        first = replace(
            measured(x=1),
            time_ms_samples=(1.0, 1.5),
            power_w=80.0,
            compile_s=0.25,
            static={"registers": 40.0},
            environment="triton 3.9.0",
            source="online",
        )
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

    def test_put_adds_one_row_per_configuration(self, store):
        store.put(SUBJECT, [measured(x=1), measured(x=2)])
        before = known(store)
        store.put(SUBJECT, [measured(x=3)])
        assert known(store) > before
        assert len(known(store)) == 3

    def test_put_last_written_measurement_counts(self, store):
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

    def test_measurements_equal_problems_are_one(self, store):
        store.put(SUBJECT, [measured(Problem(n=64.0, flag=True), x=1)])
        assert len(store.measurements(SUBJECT, Problem(flag=1, n=64))) == 1

    def test_measurements_of_subjects_are_separate(self, store):
        store.put(SUBJECT, [measured(x=1)])
        store.put(OTHER, [measured(x=1, time_ms=7.0)])
        store.choose(OTHER, SMALL, choice())
        assert store.subjects() == sorted([SUBJECT, OTHER])
        assert [m.time_ms for m in store.measurements(SUBJECT)] == [1.0]
        assert store.choice(SUBJECT, SMALL) is None

    def test_put_other_device_is_refused(self, store):
        with pytest.raises(UsageError, match="on Another is not of softmax on Toy GPU"):
            store.put(SUBJECT, [measured(x=1), replace(measured(x=2), device="Another")])
        assert store.measurements(SUBJECT) == []

    @pytest.mark.parametrize("time_ms", [0.0, -1.0, math.inf])
    def test_put_impossible_time_is_refused(self, store, time_ms):
        with pytest.raises(RunTableError, match="status is ok but time_ms"):
            store.put(SUBJECT, [measured(x=1), measured(time_ms=time_ms, x=2)])
        assert store.measurements(SUBJECT) == []

    def test_forget_deletes_problem_subject_or_everything(self, store):
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

    def test_runs_name_versions_and_code(self, store, tmp_path):
        store.put(SUBJECT, [measured(x=1), measured(time_ms=math.nan, x=2)])
        store.put(OTHER, [replace(measured(x=1), environment="mine")])
        write_runs(tmp_path / "runs.parquet", store.runs("softmax"))
        runs = read_runs(tmp_path / "runs.parquet")
        assert runs["problem.n"].tolist() == [64] * 3
        assert sorted(runs["environment"]) == [*[f"{SUBJECT.versions}, source 9f3a"] * 2, "mine"]
        assert sorted(runs["status"]) == ["compile_error", "ok", "ok"]
        with pytest.raises(UnknownName, match="unknown kernel in this store 'softmix'"):
            store.runs("softmix")

    def test_read_runs_of_store_says_how_to_export(self, file, tmp_path):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        store.export(tmp_path / "tuned.json")
        for path in (file, tmp_path / "tuned.json"):
            said = rf"is a tuning store, not a run table: .*store --store \S*{path.name} --export"
            with pytest.raises(RunTableError, match=said):
                read_runs(path)
        (tmp_path / "other.json").write_text("{}")
        with pytest.raises(RunTableError, match="is not a readable Parquet file"):
            read_runs(tmp_path / "other.json")

    def test_find_subjects_empty_store_raises(self, store):
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
        SUBJECT.kernel,
        Problem(problem),
        Configuration(config),
        SUBJECT.device,
        Status.OK if ok else Status.TIMEOUT,
        time_ms if ok else math.nan,
        time_ms_samples=tuple(samples),
        power_w=power_w,
        static=static,
        error=error,
    ),
    DESCRIBED,
    DESCRIBED.filter(bool),
    st.booleans(),
    POSITIVE,
    st.lists(POSITIVE, max_size=3),
    POSITIVE | st.just(math.nan),
    st.dictionaries(NAMES, POSITIVE, max_size=2),
    st.text(),
)


class TestRoundTrips:
    @settings(max_examples=12)  # each makes two databases
    @given(st.lists(MEASUREMENTS, max_size=4), DESCRIBED, POSITIVE | st.just(math.nan))
    def test_database_and_file_keep_everything(self, tmp_path_factory, found, config, regret):
        folder = tmp_path_factory.mktemp("store")
        first = Store(folder / "a.db")
        second = Store(folder / "b.db")
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
    def test_merge_order_does_not_matter(self, tmp_path_factory, entries):
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
    def test_choose_first_choice_stands(self, store):
        assert store.choose(SUBJECT, SMALL, choice(1)) == choice(1)
        assert store.choose(SUBJECT, SMALL, choice(2, regret=0.0)) == choice(1)
        assert store.choice(SUBJECT, SMALL) == choice(1)
        assert store.choose(SUBJECT, LARGE, choice(2)) == choice(2)
        assert store.choices(SUBJECT) == {SMALL: choice(1), LARGE: choice(2)}

    def test_choose_more_measurements_replace_named_choice(self, store):
        """However late or early its clock says it is."""
        early = "2020-01-01T00:00:00.000+00:00"
        first = store.choose(SUBJECT, SMALL, choice(1, measured=0))
        assert store.choose(SUBJECT, SMALL, choice(2)) == first
        assert store.choose(SUBJECT, SMALL, choice(2, measured=0), replacing=first) == first
        assert store.choose(SUBJECT, SMALL, choice(3, at=early), replacing=first) == choice(3)
        assert store.choose(SUBJECT, SMALL, choice(4, measured=99), replacing=first) == choice(3)
        assert store.choice(SUBJECT, SMALL) == choice(3)

    def test_choose_verified_again_is_newer(self, store):
        """So that it is the newest among those for other candidates."""
        again = replace(choice(1, at="2026-01-03T00:00:00.000+00:00"), how="verified")
        store.choose(SUBJECT, SMALL, choice(1))
        for other in (replace(again, config=Configuration(x=2)), replace(again, how="measured")):
            store.choose(SUBJECT, SMALL, other)
        assert store.choice(SUBJECT, SMALL).chosen_at == choice(1).chosen_at
        assert store.choose(SUBJECT, SMALL, again, replacing=choice(1)) == again
        assert store.choice(SUBJECT, SMALL).chosen_at == again.chosen_at

    def test_choose_refuted_winner_is_replaced_with_as_many_measurements(self, store):
        winner = replace(choice(1), how="verified")
        default = replace(choice(2), how="verified")
        store.choose(SUBJECT, SMALL, winner)
        assert store.choose(SUBJECT, SMALL, default, replacing=winner) == default

    def test_choice_remembers_allowance_and_verification(self, store):
        remembered = replace(
            choice(1), allowed=Allowance(8, seconds=1.5), verification={"processes": 5}
        )
        store.choose(SUBJECT, SMALL, remembered)
        stored = store.choice(SUBJECT, SMALL)
        assert stored.allowed == Allowance(measurements=8, seconds=1.5)
        assert stored.verification == {"processes": 5}

    def test_choose_unknown_method_raises(self, store):
        with pytest.raises(UsageError, match="or all or verified, not 'guessed'"):
            store.choose(SUBJECT, SMALL, replace(choice(), how="guessed"))

    def test_choose_threads_agree_on_one_choice(self, where):
        """Each with a store of its own, all at once."""
        start = threading.Barrier(6)
        found = []

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

    def test_put_threads_share_one_store(self, store):
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
    def test_processes_lose_no_row_if_one_is_killed(self, where, monkeypatch):
        """All rows are there, all choose the same, and only the dead one's last is abandoned."""
        described = json.dumps([SUBJECT.kernel, SUBJECT.source, SUBJECT.device, SUBJECT.versions])
        children = [
            subprocess.Popen(
                [sys.executable, "-P", "-c", CHILD, where, str(number), described],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(4)
        ]
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

    def test_crashed_configurations_exclude_own_marks(self, store):
        config = Configuration(x=1)
        store.begin_measurement(SUBJECT, SMALL, config)
        store.begin_measurement(SUBJECT, SMALL, config)
        assert store.crashed_configurations(SUBJECT, SMALL) == []
        store.put(SUBJECT, [measured(x=1)])
        assert store.crashed_configurations(SUBJECT, SMALL) == []

    def test_end_measurement_removes_own_mark_only(self, store, monkeypatch):
        """By the one who made it; those of other processes stay."""
        config = Configuration(x=1)
        me = this_process()
        first, earlier = (replace(me, pid=2**22 + i) for i in (1, 2))
        for who in (first, earlier, me):
            monkeypatch.setattr(store_module, "this_process", lambda who=who: who)
            store.begin_measurement(SUBJECT, SMALL, config)
        store.end_measurement(SUBJECT, SMALL, config)
        assert store.crashed_configurations(SUBJECT, SMALL) == [config]
        monkeypatch.setattr(store_module, "this_process", lambda: earlier)
        store.end_measurement(SUBJECT, SMALL, config)
        assert store.crashed_configurations(SUBJECT, SMALL) == []

    def test_crashed_configurations_count_this_host_until_forgotten(self, store, monkeypatch):
        me = this_process()
        config = Configuration(x=1)

        def die_measuring(host):
            for i in (1, 2):
                dead = replace(me, host=host, pid=2**22 + i)
                monkeypatch.setattr(store_module, "this_process", lambda dead=dead: dead)
                store.begin_measurement(SUBJECT, SMALL, config)
            monkeypatch.setattr(store_module, "this_process", lambda: me)

        die_measuring("elsewhere")
        assert store.crashed_configurations(SUBJECT, SMALL) == []
        die_measuring(me.host)
        assert store.crashed_configurations(SUBJECT, SMALL) == [config]
        store.forget(SUBJECT, SMALL)
        assert store.crashed_configurations(SUBJECT, SMALL) == []

    def test_try_claim_holds_while_process_lives(self, store, monkeypatch):
        me = this_process()
        config = Configuration(x=1)
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        other = process_of(child.pid)

        def claims(who, remeasure=False):
            monkeypatch.setattr(store_module, "this_process", lambda: who)
            return store.try_claim(SUBJECT, SMALL, config, remeasure)

        with child:
            assert [claims(other), claims(me), claims(other)] == [True, False, True]
            child.kill()
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked for it yet
            assert claims(me)
        store.put(SUBJECT, [measured(x=1)])
        assert [claims(other), claims(other, remeasure=True)] == [False, True]

    def test_process_is_alive_by_pid_and_start_time(self):
        me = this_process()
        assert me.is_alive
        assert replace(me, started=me.started - 60).is_alive is False, "another one with its number"
        assert Process(platform.node(), 2**22 + 1, me.started).is_alive is False
        assert replace(me, host="elsewhere").is_alive is None
