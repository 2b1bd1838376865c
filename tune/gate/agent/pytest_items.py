"""Benchmarks that are tests with the fixture ``benchmark`` of pytest-benchmark or pytest-codspeed.

pytest collects the tests as usual, with their fixtures and parameters. Instead of running them in
order, it waits for requests. When a test calls its fixture, the fixture serves the call.
"""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from foretune.tune.gate.agent.functions import Serve
from foretune.tune.gate.agent.timed_call import NO_ARGUMENTS, Arguments, TimedCall

FIXTURES = ("benchmark", "codspeed_benchmark")
"""Names of the fixture, and of the markers of tests that are timed as a whole."""
IGNORED_PLUGINS = (
    "cacheprovider",
    "xdist",
    "randomly",
    "random_order",
    "timeout",
    "rerunfailures",
    "foretune_gate",
)
"""Plugins that would run the tests in another way."""
MAX_CHARACTERS = 300
"""Characters of a failure that are kept."""


class TestFailed(Exception):
    """A test with a benchmark failed or was skipped; the message is the reason."""

    __test__ = False


class GateFixture:
    """The fixture: times a call, and returns its result.

    It has the parts of pytest-benchmark's fixture that do not read statistics.
    """

    def __init__(self, serve: Serve, name: str) -> None:
        self._serve = serve
        self._is_used = False
        self.name = name
        self.group: str | None = None
        self.extra_info: dict[str, Any] = {}
        self.disabled = False
        self.enabled = True

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Time ``function(*args, **kwargs)``."""
        given: Arguments = (args, kwargs)
        return self._time(TimedCall(function, lambda seed: given))

    def pedantic(
        self,
        target: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        setup: Callable[[], Any] | None = None,
        teardown: Callable[..., Any] | None = None,
        rounds: int = 1,
        warmup_rounds: int = 0,
        iterations: int = 1,
    ) -> Any:
        """Time ``target``; ``setup`` makes its arguments before each burst of ``iterations``.

        The gate chooses the rounds.
        """

        def make(seed: int) -> Arguments:
            made = setup() if setup is not None else None
            return made if made is not None else (args, kwargs or {})

        is_fixed = setup is not None or teardown is not None
        call = TimedCall(target, make, iterations if is_fixed else None, teardown)
        return self._time(call)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"the gate's fixture has no {name}: times are compared by the gate, not in the test"
        )

    def _time(self, call: TimedCall) -> Any:
        if self._is_used:
            raise RuntimeError("a test can use the fixture benchmark once")
        self._is_used = True
        self._serve(call)
        return call.result(0)


class ItemBenchmark:
    """A test."""

    def __init__(self, item: Any, plugin: "ServingPlugin") -> None:
        self._item = item
        self._plugin = plugin

    def run(self, serve: Serve) -> None:
        """Run the test, whose fixture serves its call; raise TestFailed if it fails."""
        from _pytest.runner import runtestprotocol

        self._plugin.serve = serve
        for report in runtestprotocol(self._item, log=False, nextitem=None):
            if report.failed:
                raise TestFailed(_reason(report))
            if report.skipped:
                raise TestFailed(f"skipped: {_reason(report)}")


class ServingPlugin:
    """A plugin of pytest that offers the collected tests, and then answers requests.

    Args:
        folder: the names of benchmarks are relative to it.
        answer_requests: called with benchmarks by name, and with the reasons why files were left
            out; returns when no more requests will come.
    """

    def __init__(
        self,
        folder: str,
        answer_requests: Callable[[dict[str, Any], dict[str, str]], None],
    ) -> None:
        self._folder = folder
        self._answer_requests = answer_requests
        self._left_out: dict[str, str] = {}
        self.serve: Serve | None = None
        self.has_served = False

    def make_fixture(self, name: str) -> GateFixture:
        """Return the fixture of one test."""
        assert self.serve is not None
        return GateFixture(self.serve, name)

    def pytest_configure(self, config: Any) -> None:
        """Know the markers, and offer the fixture after all other plugins have offered theirs."""
        for name in FIXTURES:
            config.addinivalue_line("markers", f"{name}: timed by foretune gate")
        config.pluginmanager.register(_fixtures_of(self), "foretune-gate-fixtures")

    def pytest_collectreport(self, report: Any) -> None:
        """Note which files cannot be collected."""
        if report.failed:
            self._left_out[report.nodeid or "pytest"] = _reason(report)

    def pytest_runtestloop(self, session: Any) -> bool:
        """Answer requests instead of running all tests."""
        benchmarks = {}
        for item in session.items:
            is_marked = any(item.get_closest_marker(name) for name in FIXTURES)
            if is_marked or not set(FIXTURES).isdisjoint(getattr(item, "fixturenames", ())):
                benchmarks[self._name(item)] = ItemBenchmark(item, self)
        self.has_served = True
        self._answer_requests(benchmarks, self._left_out)
        return True

    def pytest_pyfunc_call(self, pyfuncitem: Any) -> bool | None:
        """Time a marked test as a whole."""
        names = set(pyfuncitem.fixturenames)
        is_marked = any(pyfuncitem.get_closest_marker(name) for name in FIXTURES)
        if not is_marked or not names.isdisjoint(FIXTURES) or self.serve is None:
            return None
        arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
        given: Arguments = ((), arguments) if arguments else NO_ARGUMENTS
        self.serve(TimedCall(pyfuncitem.obj, lambda seed: given))
        return True

    def _name(self, item: Any) -> str:
        path = os.path.relpath(str(item.path), self._folder).replace(os.sep, "/")
        return "::".join([path, *item.nodeid.split("::")[1:]])


# pytest calls the hook after those of other plugins: their fixtures are overridden.
ServingPlugin.pytest_configure.pytest_impl = {"trylast": True}  # type: ignore[attr-defined]
ServingPlugin.pytest_runtestloop.pytest_impl = {"tryfirst": True}  # type: ignore[attr-defined]
ServingPlugin.pytest_pyfunc_call.pytest_impl = {"tryfirst": True}  # type: ignore[attr-defined]


def _fixtures_of(plugin: ServingPlugin) -> Any:
    """Return an object with the fixtures, made here because pytest may not be installed."""
    import pytest

    class Fixtures:
        @pytest.fixture
        def benchmark(self, request: Any) -> GateFixture:
            return plugin.make_fixture(request.node.name)

        @pytest.fixture
        def codspeed_benchmark(self, benchmark: GateFixture) -> GateFixture:
            return benchmark

    return Fixtures()


def run_pytest(files: Sequence[str], options: Sequence[str], plugin: ServingPlugin) -> str:
    """Let pytest collect files and answer requests; return why it did not come to that, or ""."""
    try:
        import pytest
    except ImportError:
        return "pytest is not installed in the environment: give --with pytest"
    ignored = [word for name in IGNORED_PLUGINS for word in ("-p", f"no:{name}")]
    words = ["-q", "-o", "addopts=", *ignored, *options, *files]
    with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
        code = pytest.main(words, plugins=[plugin])
    if plugin.has_served:
        return ""
    return f"pytest ended with exit code {int(code)} before it ran a test"


def _reason(report: Any) -> str:
    """Return the last line of a report, which names the error."""
    longrepr = report.longrepr
    crash = getattr(longrepr, "reprcrash", None)
    if crash is not None:
        text = str(crash.message)
    elif isinstance(longrepr, tuple):  # file, line and reason of a skipped test
        text = str(longrepr[2])
    else:
        lines = [line for line in str(longrepr).splitlines() if line.strip()]
        text = lines[-1] if lines else "unknown reason"
    return text.splitlines()[0][:MAX_CHARACTERS] if text else "unknown reason"
