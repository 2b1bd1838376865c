"""The connection and the file of a store: `tune/store/database.py`."""

import os
import shutil
import sqlite3
import subprocess
import sys

import pytest
from stored import SMALL, SUBJECT, choice, measured

from foretune.errors import ForetuneWarning, StoreError
from foretune.space import Configuration
from foretune.tune.store import Store, database

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
    def test_database_is_opened_once(self, file, monkeypatch):
        opened = []
        connect = sqlite3.connect

        def count(*arguments, **options):
            opened.append(1)
            return connect(*arguments, **options)

        monkeypatch.setattr(sqlite3, "connect", count)
        store = Store(file)
        for x in range(5):
            store.put(SUBJECT, [measured(x=x)])
        assert len(store.measurements(SUBJECT)) == 5
        assert len(opened) == 1

    def test_put_is_in_file_at_once(self, file):
        store = Store(file)
        for x in range(3):
            store.put(SUBJECT, [measured(x=x)])
            assert len(Store(file, create=False).measurements(SUBJECT)) == x + 1

    def test_close_leaves_one_file(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        assert file.with_name("tuned.db-wal").exists()
        store.close()
        assert list(file.parent.iterdir()) == [file]
        store.put(SUBJECT, [measured(x=2)])
        del store
        assert list(file.parent.iterdir()) == [file]

    def test_replaced_file_is_opened_again(self, file):
        other = Store(file.with_name("other.db"))
        other.put(SUBJECT, [measured(x=9)])
        other.close()
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        file.with_name("other.db").replace(file)
        assert [m.config["x"] for m in store.measurements(SUBJECT)] == [9]
        store.put(SUBJECT, [measured(x=2)])
        assert [m.config["x"] for m in Store(file).measurements(SUBJECT)] == [9, 2]

    def test_file_deleted_by_other_process_is_opened_again(self, file):
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
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout.readline() == "ready\n"
            assert [s.kernel for s in store.subjects()] == ["a"]
            store.put(SUBJECT, [measured(x=1)])
        finally:
            said, _ = child.communicate("go\n")
        assert said == "2\n"
        assert len(Store(file).measurements(SUBJECT)) == 1

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
    def test_fork_parent_and_child_both_write(self, file):
        run = subprocess.run(
            [sys.executable, "-P", "-W", "ignore", "-c", FORKED, file],
            capture_output=True,
            text=True,
        )
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
    def test_interrupted_transaction_releases_lock(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=0)])
        database = store._database
        real = database._connection
        database._connection = Interrupted(database._connection)
        with pytest.raises(KeyboardInterrupt):
            store.put(SUBJECT, [measured(x=1)])
        database._connection = real
        Store(file).put(SUBJECT, [measured(x=2)])
        store.put(SUBJECT, [measured(x=3)])
        assert len(store.measurements(SUBJECT, SMALL)) == 3

    def test_sqlite_url_with_options_is_refused(self, file):
        with pytest.raises(StoreError, match="leave out what follows"):
            Store(f"sqlite:///{file}?mode=ro").put(SUBJECT, [measured()])

    def test_store_creates_file_on_first_use(self, file):
        Store(file)
        assert not file.exists()

    def test_default_location_is_variable_or_cache_folder(self, tmp_path, monkeypatch):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.delenv("FORETUNE_STORE", raising=False)
        assert Store().name.endswith("tuned.db")
        monkeypatch.setenv("FORETUNE_STORE", str(tmp_path / "mine.db"))
        assert Store().name == str(tmp_path / "mine.db")
        Store().put(SUBJECT, [measured(x=1)])
        assert len(Store(f"sqlite:///{tmp_path / 'mine.db'}").measurements(SUBJECT)) == 1

    def test_file_of_other_kind_is_refused_until_moved(self, file):
        file.write_bytes(b"no database at all " * 300)
        store = Store(file)
        message = r"tuned.db is not a store \(file is not a database\): name another .*, or move it"
        with pytest.raises(StoreError, match=message):
            store.choice(SUBJECT, SMALL)
        file.rename(file.with_suffix(".bad"))
        store.put(SUBJECT, [measured(x=1)])
        assert len(store.measurements(SUBJECT)) == 1

    def test_file_with_torn_pages_is_damaged(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=x) for x in range(200)])
        store.close()
        content = file.read_bytes()
        assert len(content) > 3 * 4096
        file.write_bytes(content[:4096] + b"\xff" * (len(content) - 4096))
        with pytest.raises(StoreError, match=r"is damaged .*malformed"):
            store.measurements(SUBJECT)

    def test_damaged_rows_are_skipped(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        store.choose(SUBJECT, SMALL, choice())
        raw = sqlite3.connect(file)
        raw.execute("UPDATE foretune_measurements SET record = '{\"status\": 3}'")
        raw.execute("UPDATE foretune_choices SET record = '{'")
        raw.commit()
        raw.close()
        with pytest.warns(ForetuneWarning, match=r"tuned.db: 1 damaged row skipped: they are"):
            assert store.measurements(SUBJECT) == []
        with pytest.warns(ForetuneWarning, match="1 damaged row skipped"):
            assert Store(file).choices(SUBJECT) == {}

    def test_locked_file_can_be_read(self, file):
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

    def test_new_file_that_is_locked_raises(self, file):
        holder = sqlite3.connect(file, isolation_level=None)
        holder.execute("BEGIN EXCLUSIVE")
        try:
            with pytest.raises(StoreError, match="is locked"):
                Store(file, patience_s=0.05).subjects()
        finally:
            holder.execute("ROLLBACK")
            holder.close()
        assert Store(file).subjects() == []

    def test_missing_tables_are_created(self, file):
        raw = sqlite3.connect(file)
        raw.execute("CREATE TABLE foretune_version (version INTEGER PRIMARY KEY)")
        raw.commit()
        raw.close()
        Store(file).put(SUBJECT, [measured(x=1)])
        assert len(Store(file).measurements(SUBJECT)) == 1

    def test_other_version_is_refused(self, file):
        Store(file).subjects()
        raw = sqlite3.connect(file)
        raw.execute("UPDATE foretune_version SET version = 9")
        raw.commit()
        raw.close()
        with pytest.raises(StoreError, match="version 9, this Foretune knows version 2: install a"):
            Store(file).subjects()

    def test_deleted_file_is_created_again(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        file.unlink()
        store.put(SUBJECT, [measured(x=2)])
        assert [m.config["x"] for m in store.measurements(SUBJECT)] == [2]
        file.unlink()
        assert store.measurements(SUBJECT) == []
        assert store.choose(SUBJECT, SMALL, choice(3)) == choice(3)

    def test_deleted_folder_is_created_again(self, tmp_path):
        file = tmp_path / "deep" / "tuned.db"
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        shutil.rmtree(file.parent)
        store.begin_measurement(SUBJECT, SMALL, Configuration(x=2))
        store.put(SUBJECT, [measured(x=2)])
        assert [m.config["x"] for m in Store(file).measurements(SUBJECT)] == [2]

    def test_reader_creates_no_file(self, tmp_path):
        for where in (tmp_path / "deep" / "tuned.db", f"sqlite:///{tmp_path}/t.db"):
            with pytest.raises(StoreError, match=r"does not exist: nothing has been tuned there"):
                Store(where, create=False).subjects()
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(StoreError, match="is not a store but a folder"):
            Store(tmp_path, create=False).subjects()

    def test_reader_leaves_other_database_unchanged(self, file):
        raw = sqlite3.connect(file)
        raw.execute("CREATE TABLE others (x INTEGER)")
        raw.close()
        before = file.read_bytes()
        with pytest.raises(StoreError, match=r"is not a store: it has no tables of Foretune's"):
            Store(file, create=False).subjects()
        assert file.read_bytes() == before

    def test_reader_finds_measurements(self, file):
        Store(file).put(SUBJECT, [measured(x=1)])
        assert len(Store(file, create=False).measurements(SUBJECT)) == 1

    def test_unwritable_location_raises(self, tmp_path):
        (tmp_path / "file").touch()
        with pytest.raises(StoreError, match=r"cannot write .*: set FORETUNE_STORE to a file"):
            Store(tmp_path / "file" / "tuned.db").subjects()
        with pytest.raises(StoreError, match=r"cannot write .*unable to open"):
            Store(tmp_path).subjects()

    def test_read_only_database_can_be_read(self, file):
        store = Store(file)
        store.put(SUBJECT, [measured(x=1)])
        store._database._connection.execute("PRAGMA query_only = 1")
        assert len(store.measurements(SUBJECT)) == 1
        with pytest.raises(StoreError, match=r"cannot write .*readonly database"):
            store.put(SUBJECT, [measured(x=2)])

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
    def test_read_only_folder_raises(self, tmp_path):
        tmp_path.chmod(0o500)
        try:
            with pytest.raises(StoreError, match="cannot write"):
                Store(tmp_path / "tuned.db").subjects()
        finally:
            tmp_path.chmod(0o700)

    @pytest.mark.parametrize(
        ("url", "message"),
        [
            ("sqlite://", "a database in memory keeps nothing"),
            ("nonsense://host/db", "a store is an SQLite file or a PostgreSQL URL"),
            ("mysql://me:secret@host/db", r"mysql://me:\*\*\*@host/db: a store is an SQLite file"),
        ],
    )
    def test_unsupported_url_raises(self, url, message):
        with pytest.raises(StoreError, match=message):
            Store(url).subjects()

    def test_name_hides_password(self):
        assert Store("postgresql://me:secret@host/db").name == "postgresql://me:***@host/db"

    @pytest.mark.parametrize(("kind", "journal"), [("ext4", "wal"), ("nfs4", "delete")])
    def test_network_file_system_has_no_write_ahead_log(self, file, monkeypatch, kind, journal):
        import psutil

        mounts = [type("Mount", (), {"mountpoint": "/", "fstype": kind})]
        monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)
        assert database.is_network_file_system(file) == (kind == "nfs4")
        Store(file).put(SUBJECT, [measured(x=1)])
        raw = sqlite3.connect(file)
        assert raw.execute("PRAGMA journal_mode").fetchone() == (journal,)
        raw.close()


def test_import_does_not_load_database_driver():
    code = "import sys, foretune.tune.store as s; s.Store(); print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )
    assert not set(run.stdout.split()) & {"triton", "torch", "psycopg"}
