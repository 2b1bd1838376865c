"""What runs in environments: `tune/gate/agent`."""

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from foretune.collect.printed_output import PrintedOutput
from foretune.tune.gate.agent.discovery import find_benchmarks, kinds_in
from foretune.tune.gate.agent.output_data import to_data
from foretune.tune.gate.agent.timed_call import TimedCall
from foretune.tune.gate.agent_process import (
    PACKAGE_FOLDER,
    START_FILE,
    AgentProcess,
    RequestFailed,
)
from foretune.tune.gate.environment import Environment

LIMIT_S = 60.0
AGENT_FILES = sorted(START_FILE.parent.glob("*.py"))


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.fixture
def agent(tmp_path):
    """Return a function that starts an agent, which loads a file with this text."""
    processes = []

    def start(text, name="bench_it.py", **request):
        write(tmp_path, f"benchmarks/{name}", text)
        environment = Environment(Path(sys.executable), tmp_path, "here")
        process = AgentProcess(environment, 0, PrintedOutput())
        processes.append(process)
        content = {"commands": [], "imports": [], "pytest": [], "keep_freed_memory": False}
        path = str(tmp_path / "benchmarks")
        answer = process.ask("load", limit_s=LIMIT_S, **{**content, "path": path, **request})
        return process, answer

    yield start
    for process in processes:
        process.end()


def test_agent_imports_the_standard_library_only():
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); import start\n"
        "before = set(sys.modules); start.load_agent(sys.argv[2])\n"
        "print(*{name.partition('.')[0] for name in set(sys.modules) - before})"
    )
    command = [sys.executable, "-I", "-S", "-c", program, START_FILE.parent, PACKAGE_FOLDER]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert loaded <= sys.stdlib_module_names
    assert "foretune" not in loaded, "a benchmark may import another one"


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("def bench_x(): pass", {"function"}),
        ("class Suite:\n    def time_x(self): pass", {"asv"}),
        ("def time_x(): pass", {"asv"}),
        ("def test_x(benchmark): pass", {"pytest"}),
        ("@pytest.mark.benchmark\ndef test_x(): pass", {"pytest"}),
        ("def test_x(): pass", set()),
        ("def helper(): pass", set()),
    ],
)
def test_kinds_in_file(text, kinds, tmp_path):
    assert kinds_in(str(write(tmp_path, "a.py", text))) == kinds


def test_find_benchmarks_file_that_cannot_be_read_is_left_out(tmp_path):
    write(tmp_path, "bench_bad.py", "def bench_x(:")
    found = find_benchmarks(str(tmp_path))
    assert found.left_out["bench_bad.py"].startswith("it cannot be read: SyntaxError")


def test_timed_call_inputs_are_made_outside_the_timed_part():
    events = []

    def make(seed):
        events.append(f"make {seed}")
        return (seed,), {}

    call = TimedCall(lambda x: events.append(x), make)
    turn = call.turn(calls=2, bursts=2, seed=7)
    assert events == ["make 7", 7, 7, 7, 7]
    assert len(turn["wall_ns"]) == len(turn["cpu_ns"]) == 2


def test_timed_call_fixed_calls_get_new_inputs_in_each_burst():
    seeds = []
    call = TimedCall(lambda: None, lambda seed: seeds.append(seed) or ((), {}), calls=1)
    call.turn(calls=1, bursts=3, seed=10)
    assert seeds == [10, 11, 12]


def test_agent_functions_with_inputs(agent):
    process, answer = agent(
        """
        def inputs_sort(seed):
            return [seed, 2, 1]

        def bench_sort(x):
            return sorted(x)

        def bench_needs(x):
            pass
        """
    )
    assert answer["benchmarks"] == ["bench_it.py::bench_sort"]
    assert "define inputs_needs(seed)" in answer["left_out"]["bench_it.py::bench_needs"]
    process.ask("open", limit_s=LIMIT_S, name="bench_it.py::bench_sort")
    count = process.ask("count", limit_s=LIMIT_S, seed=3)
    assert count["calls"] > 1
    output = process.ask("output", limit_s=LIMIT_S, seed=3)["output"]
    assert [item["plain"] for item in output["sequence"]] == [1, 2, 3]
    assert process.ask("close", limit_s=LIMIT_S) == {}


def test_agent_asv_class_with_setup_params_and_cache(agent):
    process, answer = agent(
        """
        class Suite:
            params = [[1, 2], ["a"]]
            param_names = ["n", "letter"]

            def setup_cache(self):
                open("cached.txt", "w").write("5")
                return 10

            def setup(self, cache, n, letter):
                self.sum = cache + n + int(open("cached.txt").read())

            def time_sum(self, cache, n, letter):
                return self.sum

            def track_x(self, cache, n, letter):
                return 0
        """
    )
    names = ["bench_it.py::Suite.time_sum(1, 'a')", "bench_it.py::Suite.time_sum(2, 'a')"]
    assert answer["benchmarks"] == names
    assert answer["left_out"]["bench_it.py::Suite.track_x"] == "it measures no time"
    process.ask("open", limit_s=LIMIT_S, name=names[1])
    output = process.ask("output", limit_s=LIMIT_S, seed=0)["output"]
    assert output["plain"] == 17  # 10 + 2 + 5
    assert process.ask("close", limit_s=LIMIT_S) == {}


def test_agent_asv_not_implemented_skips_parameters(agent):
    process, _ = agent(
        """
        class Suite:
            def setup(self):
                raise NotImplementedError("not here")

            def time_x(self):
                pass
        """
    )
    with pytest.raises(RequestFailed, match=r"Skipped: its setup does not support .* not here"):
        process.ask("open", limit_s=LIMIT_S, name="bench_it.py::Suite.time_x")


def test_agent_tests_with_the_fixture_and_markers(agent):
    process, answer = agent(
        """
        import pytest

        @pytest.fixture
        def numbers():
            return [3, 1, 2]

        @pytest.mark.parametrize("reverse", [False, True])
        def test_sorted(benchmark, numbers, reverse):
            result = benchmark(sorted, numbers, reverse=reverse)
            assert result[0] == (3 if reverse else 1)

        def test_pedantic(benchmark):
            benchmark.pedantic(list.sort, setup=lambda: (([3, 1],), {}), rounds=5)

        @pytest.mark.benchmark
        def test_marked(numbers):
            sorted(numbers)

        def test_wrong(benchmark):
            assert benchmark(len, []) == 1

        def test_other():
            raise AssertionError("it has no benchmark, so it does not run")
        """,
        name="test_it.py",
    )
    names = [name.partition("::")[2] for name in answer["benchmarks"]]
    assert names == [
        "test_sorted[False]",
        "test_sorted[True]",
        "test_pedantic",
        "test_marked",
        "test_wrong",
    ]
    for name in names[:4]:
        process.ask("open", limit_s=LIMIT_S, name=f"test_it.py::{name}")
        turn = process.ask("turn", limit_s=LIMIT_S, calls=1, bursts=2, seed=1)
        assert len(turn["wall_ns"]) == 2
        assert process.ask("close", limit_s=LIMIT_S) == {}
    process.ask("open", limit_s=LIMIT_S, name="test_it.py::test_wrong")
    with pytest.raises(RequestFailed, match="assert 0 == 1"):
        process.ask("close", limit_s=LIMIT_S)


def test_agent_command_and_import(agent):
    process, answer = agent("", commands=["echo hello", "exit 3"], imports=["calendar"])
    assert answer["benchmarks"] == ["echo hello", "exit 3", "import calendar"]
    process.ask("open", limit_s=LIMIT_S, name="echo hello")
    assert process.ask("output", limit_s=LIMIT_S, seed=0)["output"] == {"plain": "hello\n"}
    process.ask("close", limit_s=LIMIT_S)
    process.ask("open", limit_s=LIMIT_S, name="import calendar")
    turn = process.ask("turn", limit_s=LIMIT_S, calls=1, bursts=1, seed=0)
    assert 0 < turn["cpu_ns"][0] < 1e9
    process.ask("close", limit_s=LIMIT_S)


def test_agent_failing_call_is_a_failure_and_the_process_goes_on(agent):
    process, _ = agent(
        """
        def bench_bad():
            raise ValueError("no value")

        def bench_good():
            pass
        """
    )
    process.ask("open", limit_s=LIMIT_S, name="bench_it.py::bench_bad")
    with pytest.raises(RequestFailed, match="ValueError: no value"):
        process.ask("turn", limit_s=LIMIT_S, calls=1, bursts=1, seed=0)
    assert process.ask("open", limit_s=LIMIT_S, name="bench_it.py::bench_good") == {}


def test_agent_dying_process_says_its_cause(agent):
    process, _ = agent("import os\ndef bench_bad(): os._exit(7)")
    process.ask("open", limit_s=LIMIT_S, name="bench_it.py::bench_bad")
    with pytest.raises(RequestFailed, match="the process ended: exit code 7"):
        process.ask("turn", limit_s=LIMIT_S, calls=1, bursts=1, seed=0)
    assert not process.is_alive


def test_agent_peak_memory_of_a_call(agent):
    process, _ = agent("def bench_large(): return len(bytearray(64 << 20))")
    process.ask("open", limit_s=LIMIT_S, name="bench_it.py::bench_large")
    peak_mib = process.ask("memory", limit_s=LIMIT_S, seed=0)["peak_mib"]
    if peak_mib is None:
        pytest.skip("this system does not tell the peak of memory")
    assert peak_mib > 64


def test_agent_names_packages_and_files(agent):
    _, answer = agent("import numpy\ndef bench_x(): pass")
    environment = answer["environment"]
    assert "numpy" in environment["packages"]
    assert environment["files"]["numpy"].endswith("numpy/__init__.py")
    assert not [name for name in environment["files"] if name.startswith("foretune")]


@pytest.mark.parametrize(
    "value", [None, True, 3, "x", 1.5, float("nan"), [1, (2,)], {"a": {1, 2}}, b"x", object()]
)
def test_to_data_is_json(value):
    assert json.loads(json.dumps(to_data(value)))


def test_agent_does_not_search_what_was_loaded_for_garbage(agent):
    """With large packages that takes longer than the benchmark."""
    process, _ = agent(
        """
        import gc

        LOADED = [[number] for number in range(10_000)]

        def bench_count():
            return [gc.get_freeze_count() > len(LOADED), len(gc.get_objects()) < len(LOADED)]
        """
    )
    process.ask("open", limit_s=LIMIT_S, name="bench_it.py::bench_count")
    output = process.ask("output", limit_s=LIMIT_S, seed=0)["output"]
    assert output == to_data([True, True])
