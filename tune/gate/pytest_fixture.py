"""A plugin of pytest: tests with the fixture ``benchmark`` also run without a gate.

The entry point ``pytest11`` names it, so it is loaded wherever Foretune is installed. If no other
plugin has a fixture ``benchmark``, this one's calls the function once. pytest-benchmark's and
pytest-codspeed's fixtures stay as they are. A gate does not use this plugin: it brings its own
(`foretune.tune.gate.agent.pytest_items`), and its environments need not have Foretune.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

OTHER_PLUGINS = ("benchmark", "codspeed", "pytest_benchmark", "pytest_codspeed")
"""Names of plugins that have the fixture."""
FIXTURES = ("benchmark", "codspeed_benchmark")


class CallOnce:
    """The fixture without a gate: calls the function once, and returns its result."""

    def __init__(self) -> None:
        self.extra_info: dict[str, Any] = {}
        self.group: str | None = None

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return ``function(*args, **kwargs)``."""
        return function(*args, **kwargs)

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        **how_often: int,
    ) -> Any:
        """Call ``target`` once, after ``setup`` and before ``teardown``."""
        made = setup() if setup is not None else None
        used_args, used_kwargs = made if made is not None else (args, kwargs or {})
        result = target(*used_args, **used_kwargs)
        if teardown is not None:
            teardown(*used_args, **used_kwargs)
        return result


class Fixtures:
    """The fixtures, which are registered if nobody else has them."""

    @pytest.fixture
    def benchmark(self) -> CallOnce:
        """Call a function once."""
        return CallOnce()

    @pytest.fixture
    def codspeed_benchmark(self, benchmark: CallOnce) -> CallOnce:
        """Call a function once."""
        return benchmark


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Offer markers and fixtures, unless another plugin has them."""
    manager = config.pluginmanager
    if any(manager.hasplugin(name) for name in OTHER_PLUGINS):
        return
    for name in FIXTURES:
        config.addinivalue_line("markers", f"{name}: a benchmark for foretune gate")
    manager.register(Fixtures(), "foretune-call-once")
