"""Tests that secrets are not shown, stored or tracked: `foretune.redaction`."""

import json
import os
import pickle
import sys

import pytest
from toy_kernel import DEVICE, Toy, config

from foretune.cli import doctor, main
from foretune.collect.wrapped.program import Program, ProgramKernel
from foretune.datasets import RunLog
from foretune.errors import ForetuneWarning, StoreError, UsageError
from foretune.measurement import Measurement, Status
from foretune.redaction import redact, redact_command
from foretune.tune import tuner
from foretune.tune.campaign.folder import open_folder
from foretune.tune.functions import tuning
from foretune.tune.store.store import Store

SCRIPT = "import sys; print('took', 8 / int(sys.argv[1]), 'us'); sys.exit(' '.join(sys.argv[1:]))"
SECRETS = ("hunter22", "tok-abcdef", "k3y-from-env", "given-by-env")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://ann:s3cret@db/tuned", "postgresql+psycopg://ann:***@db/tuned"),
        ("postgresql://ann:a/b@c@db:5432/tuned", "postgresql://ann:***@db:5432/tuned"),
        (
            "https://token@mlflow.example/x?a=1&api_key=k1&b=2",
            "https://***@mlflow.example/x?a=1&api_key=***&b=2",
        ),
        ("postgres://h/d?user=ann&password=p%40w", "postgres://h/d?user=ann&password=***"),
        ("host=h password=s3cret dbname=d", "host=h password=*** dbname=d"),
        ("prog --token abc --api-key 'a b' -n 3", "prog --token *** --api-key *** -n 3"),
        ("sh -c 'PASSWORD=x prog --secret y'", "sh -c 'PASSWORD=*** prog --secret ***'"),
        ("-H 'Authorization: Bearer abc.def'", "-H 'Authorization: Bearer ***'"),
        ('{"token": "abc", "n": 3}', '{"token": ***, "n": 3}'),
        ("sqlite:///tuned.db", "sqlite:///tuned.db"),
        ("/home/ann@work/tuned.db", "/home/ann@work/tuned.db"),
        ("BLOCK=64, tokens=128", "BLOCK=64, tokens=128"),
        ("prog --max-token 128 --token={tile}", "prog --max-token 128 --token={tile}"),
        ("error: unexpected token: ';'", "error: unexpected token: ';'"),
    ],
)
def test_redact_hides_secrets_in_text_and_errors(text, shown):
    assert redact(text) == shown
    for kind in (StoreError, UsageError, ForetuneWarning):
        error = kind(f"cannot open {text}: it is asleep")
        assert str(error) == f"cannot open {shown}: it is asleep"
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_redact_hides_values_of_secret_environment_variables(monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "k3y-from-env")
    monkeypatch.setenv("SHORT_TOKEN", "abc")
    monkeypatch.setenv("PWD", "/home/ann")
    assert redact("login k3y-from-env! abc in /home/ann") == "login ***! abc in /home/ann"


@pytest.mark.parametrize(
    ("words", "shown", "secrets"),
    [
        (["p", "--password=a b", "{n}"], ["p", "--password=***", "{n}"], {"a b"}),
        (["p", "--token", "x", "--secret", "-v"], ["p", "--token", "***", "--secret", "-v"], {"x"}),
        (
            ["env", "API_KEY=abcdef", "p", "-abcdef"],
            ["env", "API_KEY=***", "p", "-***"],
            {"abcdef"},
        ),
        (
            ["sh", "-c", "PASSWORD='a b' p --secret yyyyyy; echo yyyyyy {n}"],
            ["sh", "-c", "PASSWORD=*** p --secret ***; echo *** {n}"],
            {"a b", "yyyyyy"},
        ),
        (["sh", "-c", "echo 'not ended"], ["sh", "-c", "echo 'not ended"], set()),
        (
            ["p", "--token", "{n}", "--max_token=64"],
            ["p", "--token", "{n}", "--max_token=64"],
            set(),
        ),
    ],
)
def test_redact_command_hides_options_that_hold_secrets(words, shown, secrets):
    assert redact_command(words) == (shown, secrets)


def test_program_hash_ignores_secrets():
    """Nobody can guess a password from the hash, and a new one keeps what was measured."""

    def made(password, **more):
        words = ("program", "{n}", "--password", password)
        return ProgramKernel(Program(words, **more), {"n": (1, 2)}, "scratch")

    one = made("abc", environment={"T": "1"})
    other = made("xyz", environment={"T": "1"})
    assert one.source_hash == other.source_hash
    assert one.problem() == other.problem() == {"command": "program {n} --password ***"}
    assert one.program.words[3] == "abc"
    token = {"MY_TOKEN": "abcdefgh"}
    assert made("abc", environment=token, build="build abcdefgh").source_hash == (
        made("abc", environment={"MY_TOKEN": "stuvwxyz"}, build="build stuvwxyz").source_hash
    )
    assert made("abc", build="make").source_hash != made("abc", build="make all").source_hash


def test_program_secrets_are_not_printed_stored_or_exported(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SOME_API_KEY", "k3y-from-env")
    monkeypatch.setattr(tuner, "MIN_VERIFY_S", 0.05)
    monkeypatch.setattr(tuning, "local_device", lambda name, measure: DEVICE)
    words = (
        sys.executable,
        "-S",
        "-c",
        SCRIPT,
        "{tile}",
        "--password=hunter22",
        "--token",
        "tok-abcdef",
        "k3y-from-env",
        "given-by-env",
    )
    options = ("--param", "tile=1,2", "--env", "APP_SECRET=given-by-env", "--repeats", "1")
    tune = ("tune", "--json", "--store", "s.db", *options, "--export", "b.json", "--name", "mine")
    assert main([*tune, "--", *words]) == 1  # it says its words and fails
    assert main([*tune, "--", *(w.replace("; sys.exit(", "; print(") for w in words)]) == 0
    assert main(["store", "--store", "s.db", "--export", "s.json"]) == 0
    assert main(["store", "--store", "s.db", "--export", "s.parquet"]) == 0
    written = {p.name: p.read_bytes() for p in tmp_path.iterdir() if p.is_file()}
    assert {"s.db", "b.json", "s.json", "s.parquet"} <= {*written}
    assert "--password=*** --token ***" in written["s.json"].decode()
    assert "runtime_error" in written["s.json"].decode()
    for secret in SECRETS:
        assert not [name for name, content in written.items() if secret.encode() in content]
        assert secret not in "".join(capfd.readouterr())


def test_main_hides_secrets_of_unexpected_errors(monkeypatch, capsys):
    def fail(*_, **__):
        raise ZeroDivisionError("https://ann:hunter22@host")

    monkeypatch.setattr("foretune.cli.app.app", fail)
    assert main(["doctor", "--debug"]) == 1
    printed = capsys.readouterr().err
    assert "unexpected ZeroDivisionError: https://ann:***@host" in printed
    assert "Traceback" in printed
    assert "hunter22" not in printed


def test_commands_hide_passwords_of_addresses(monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://ann:hunter22@host")
    assert doctor._mlflow().note == "https://ann:***@host"
    assert main(["store", "--store", "postgresql://ann:hunter22@no-such-host/d"]) == 1
    printed = "".join(capsys.readouterr())
    assert "ann:***@no-such-host" in printed or "needs psycopg" in printed
    assert "hunter22" not in printed


def test_mlflow_tags_hide_passwords(monkeypatch):
    registry = pytest.importorskip("mlflow.tracking.context.registry")
    from foretune.tune.mlflow.tracking import provenance

    tags = {"mlflow.source.git.repoURL": "https://ann:hunter22@host/x.git"}
    monkeypatch.setattr(registry, "resolve_tags", lambda: tags)
    assert provenance()["mlflow.source.git.repoURL"] == "https://ann:***@host/x.git"


def mode(path):
    return path.stat().st_mode & 0o777


@pytest.fixture
def _open_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("_open_umask")
def test_logs_stores_and_states_are_readable_by_owner_only(tmp_path):
    log = RunLog(tmp_path / "runs.parquet")
    failed = Measurement(
        "toy",
        Toy().problem(n=20),
        config(),
        DEVICE.name,
        Status.RUNTIME_ERROR,
        error="pwd=hunter22",
    )
    log.append(failed)
    journal = tmp_path / "runs.parquet.journal"
    assert mode(journal) == 0o600
    assert json.loads(journal.read_text())["error"] == "pwd=***"
    log.close()
    assert mode(log.path) == 0o600
    log.path.chmod(0o644)  # shared on purpose
    with RunLog(log.path) as log:
        log.append(failed)
    assert mode(log.path) == 0o644

    Store(tmp_path / "state" / "s.db").subjects()
    assert mode(tmp_path / "state") == 0o700
    assert {mode(p) for p in (tmp_path / "state").iterdir()} == {0o600}
    Store(f"sqlite+pysqlite:///{tmp_path}/url.db").subjects()
    assert mode(tmp_path / "url.db") == 0o600

    folder = open_folder(tmp_path / "campaigns", {"kernel": "toy"})
    assert mode(folder.path / "campaign.json") == 0o600


@pytest.mark.usefixtures("_open_umask")
def test_reports_are_readable_by_others(tmp_path):
    from foretune.support.files import atomic_write

    with atomic_write(tmp_path / "report.html") as new:
        new.write_text("")
    assert mode(tmp_path / "report.html") == 0o644
