"""Passwords and tokens do not get into what is shown or written."""

import pickle

import pytest

from foretune.errors import StoreError, UsageError, redact


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql+psycopg://ann:s3cret@db/tuned", "postgresql+psycopg://***@db/tuned"),
        ("https://token@mlflow.example/x?a=1&api_key=k1&b=2",
         "https://***@mlflow.example/x?a=1&api_key=***&b=2"),
        ("postgres://h/d?user=ann&password=p%40w", "postgres://h/d?user=ann&password=***"),
        ("host=h password=s3cret dbname=d", "host=h password=*** dbname=d"),
        ("sqlite:///tuned.db", "sqlite:///tuned.db"),
        ("/home/ann@work/tuned.db", "/home/ann@work/tuned.db"),
        ("BLOCK=64, tokens=128", "BLOCK=64, tokens=128"),
    ],
)  # fmt: skip
def test_what_is_hidden(text, shown):
    assert redact(text) == shown
    for kind in (StoreError, UsageError):
        error = kind(f"cannot open {text}: it is asleep")
        assert str(error) == f"cannot open {shown}: it is asleep"
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
