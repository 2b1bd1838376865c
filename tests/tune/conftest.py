import pytest

from foretune import registry


@pytest.fixture
def toy_registered(monkeypatch):
    """Register the toy kernel under its name."""
    monkeypatch.setitem(registry._OURS["kernels"], "toy", "toy_kernel:Toy")
    registry.registered.cache_clear()
    yield
    registry.registered.cache_clear()
