"""Empty stores: a file, and where there is one, a database of PostgreSQL."""

import os

import pytest

from foretune.tune.store import Store


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
