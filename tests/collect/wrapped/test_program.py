"""Programs as kernels: where knobs go, what a run is judged by, what is made before it."""

import math
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.collect import InProcessRunner, Timing, benchmark, power
from foretune.collect.comparison import DEFAULT_REPEATED, MIN_ROUNDS
from foretune.collect.power import PowerMeter
from foretune.collect.wrapped.program import Program, ProgramKernel
from foretune.collect.wrapped.source import substitute
from foretune.device import Device
from foretune.errors import UsageError
from foretune.measurement import Status
from foretune.space import Configuration

DEVICE = Device("This CPU", "cpu", specs={"cores": 2.0})
ONCE = Timing(math.inf, 0.0, 0.0, 1, 1)
SCRIPT = """
import os, sys
tile = int(sys.argv[1])
print("mode", os.environ.get("MODE"))
print(f"elapsed: {0.01 / tile} ms" if tile < 100 else "elapsed: soon")
sys.exit(tile == 13)
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)


def kernel(words, knobs=None, **more):
    own = {n: more.pop(n) for n in ("default", "restrictions", "name") if n in more}
    words = tuple(w if w != "python" else sys.executable for w in words)
    return ProgramKernel(Program(words, **more), knobs or {"tile": (1, 2)}, "scratch", **own)


def measured(made, timing=ONCE, **config):
    runner = InProcessRunner(DEVICE, timing)
    (m,) = runner.run(made, made.problem(), [Configuration(config)])
    return m


ELAPSED = r"elapsed: (\S+) ms"


def test_wall_time_or_a_time_in_the_output():
    wall = measured(kernel(["python", "-S", "script.py", "{tile}"]), tile=2)
    assert wall.ok, wall.error
    assert 1 < wall.time_ms < 10_000
    for unit, factor in (("ms", 1), ("s", 1000), ("us", 1e-3)):
        said = kernel(["python", "-S", "script.py", "{tile}"], time=ELAPSED, time_unit=unit)
        assert measured(said, tile=2).time_ms == pytest.approx(0.005 * factor)


def test_knobs_go_into_the_environment(tmp_path):
    made = kernel(
        ["python", "-S", "script.py", "1"],
        {"mode": ("fast", "slow")},
        environment={"MODE": "very {mode}"},
        check="^mode very fast$",
    )
    assert measured(made, mode="fast").ok
    wrong = measured(made, mode="slow")
    assert wrong.status is Status.WRONG_RESULT
    assert "does not match '^mode very fast$': it ends with 'elapsed: 0.01 ms'" in wrong.error


@pytest.mark.parametrize("target", ["run.conf", "{dir}/run.conf"])
def test_files_are_made_from_templates(tmp_path, target):
    (tmp_path / "run.conf.in").write_text("{tile} {other} {")
    made = kernel(["cat", target], templates={"run.conf.in": target}, check=r"^2 \{other\} \{$")
    assert measured(made, tile=2).ok
    assert measured(made, tile=1).status is Status.WRONG_RESULT
    runner = InProcessRunner(DEVICE, ONCE)
    two = Configuration(tile=2)
    one = Configuration(tile=1)
    rounds = runner.compare_interleaved(made, made.problem(), [two, one], 0.0)
    assert rounds.time_ms.keys() == {two.id, DEFAULT_REPEATED}, "each finds its own file, in turn"
    assert rounds.failures.keys() == {one.id}


@pytest.mark.parametrize("folder", [".", "{dir}"])
def test_a_build_runs_once_per_configuration_where_it_can(tmp_path, folder):
    build = f"sh -c 'echo {{tile}} >> builds; echo {{tile}} > {folder}/made'"
    made = kernel(["cat", f"{folder}/made"], build=build)
    runner = InProcessRunner(DEVICE, ONCE)
    configs = [Configuration(tile=t) for t in (1, 2)]
    assert all(m.ok for m in runner.run(made, made.problem(), configs))
    rounds = runner.compare_interleaved(made, made.problem(), configs, 0.0)
    assert all(len(times) >= MIN_ROUNDS for times in rounds.time_ms.values())
    builds = (tmp_path / "builds").read_text().split()
    assert len(builds) == 2 if folder == "{dir}" else len(builds) > 5


def test_what_was_left_behind_is_compared(tmp_path):
    made = kernel(["sh", "-c", "echo {tile} > {dir}/out"], compare="grep -q 2 {dir}/out")
    assert measured(made, tile=2).ok
    wrong = measured(made, tile=1)
    assert wrong.status is Status.WRONG_RESULT
    assert "the comparison ends with exit code 1: it printed nothing" in wrong.error


@pytest.mark.parametrize(
    ("words", "more", "tile", "status", "reason"),
    [
        (["python", "-S", "script.py", "{tile}"], {}, 13, "runtime_error", "exit code 1"),
        (["./nothing", "{tile}"], {}, 1, "runtime_error", "cannot be started"),
        (["true", "{tile}"], {"build": "false"}, 1, "compile_error", "the build ends with exit"),
        (["true", "{tile}"], {"build": "cc nosuch.c -o {dir}/a"}, 1, "compile_error", "nosuch.c"),
        (["echo", "{tile}"], {"time": r"took (\d+)"}, 1, "runtime_error", "finds no time in its"),
        (["echo", "{tile}"], {"time": r"^(\d)"}, 0, "runtime_error", "0 ms is impossible"),
        (["echo", "-{tile}"], {"time": r"^(\S+)"}, 1, "runtime_error", "-1 ms is impossible"),
        (["echo", "nan{tile}"], {"time": r"^(nan)"}, 1, "runtime_error", "nan ms is impossible"),
        (
            ["echo", "{tile}e9"],
            {"time": r"^(\S+)"},
            1,
            "runtime_error",
            "1e+09 ms is impossible, it ran for",
        ),
        (
            ["python", "-S", "script.py", "{tile}"],
            {"time": r"elapsed: (\S+)"},
            100,
            "runtime_error",
            "finds 'soon': not a number",
        ),
    ],
)
def test_each_failure_is_a_row_with_its_reason(words, more, tile, status, reason):
    m = measured(kernel(words, {"tile": (0, 1, 13, 100)}, **more), tile=tile)
    assert (m.status.value, reason in m.error) == (status, True), m.error


def test_a_program_that_hangs_ends_with_all_it_started():
    made = kernel(["sh", "-c", "sleep {tile}; echo done"], {"tile": (30, 31)}, limit_s=0.3)
    start = time.perf_counter()
    m = measured(made, tile=30)
    assert m.status is Status.TIMEOUT
    assert time.perf_counter() - start < 10


def test_what_stays_in_the_background_with_the_output_is_not_waited_for():
    start = time.perf_counter()
    m = measured(kernel(["sh", "-c", "sleep 11 & echo {tile}"], limit_s=0.3), tile=1)
    assert time.perf_counter() - start < 10
    assert "holds its output open after 0.3 s" in m.error


def test_a_word_may_be_longer_than_any_path():
    assert measured(kernel(["true", "x" * 5000, "{tile}"]), tile=1).ok


def test_a_program_without_a_limit():
    assert measured(kernel(["true", "{tile}"], limit_s=math.inf), tile=1).ok


def test_no_shell_unless_asked_for():
    knobs = {"text": ("$(echo hi)", "a b; echo c", "'")}
    for text in knobs["text"]:
        plain = kernel(
            ["printf", "%s\n", "{text}"],
            knobs,
            check=f"^{text}$".replace("$(", r"\$\(").replace("hi)", r"hi\)"),
        )
        assert measured(plain, text=text).ok
    shell = kernel(["printf '%s\\n' {text} | cat"], knobs, check="^a b; echo c$", shell=True)
    assert measured(shell, text="a b; echo c").ok


@pytest.mark.parametrize(
    ("words", "more", "message"),
    [
        ([], {}, "no program"),
        (["./a"], {}, r"knob 'tile' is used nowhere: write \{tile\}"),
        (["./a", "{tile}"], {"time": "([0-9]"}, "not a regular expression"),
        (["./a", "{tile}"], {"time": "ms"}, "around the number"),
        (["./a", "{tile}"], {"time_unit": "h"}, "choose one of ns, us, ms, s"),
        (["./a", "{tile}"], {"templates": {"no.in": "no"}}, r"template no\.in cannot be read"),
        (["./a", "{tile}"], {"sources": ("no.c",)}, r"there is no file no\.c"),
        (["./a", "{tile}"], {"knobs": {"dir": (1,)}}, "rename that knob"),
        (["./a", "{tile}"], {"build": "cc 'a"}, "the build command .* cannot be read"),
        (["./a", "{tile}"], {"compare": 'sh "x'}, "the compare command .* cannot be read"),
        (["./a", "{tile}"], {"default": {"tile": 3}}, "tile=3 is not in the space"),
    ],
)
def test_what_cannot_be_meant_is_refused(words, more, message):
    with pytest.raises(UsageError, match=message):
        kernel(words, **more)


def test_another_program_has_another_hash(tmp_path):
    words = ["python", "script.py", "{tile}"]
    before = kernel(words).source_hash
    assert kernel(words).source_hash == before
    (tmp_path / "script.py").write_text(SCRIPT + "#")
    changed = kernel(words).source_hash
    assert changed != before
    (tmp_path / "made").write_text("a build wrote this")
    build = {"build": "cp script.py made"}
    first = kernel(["./made", "{tile}"], **build).source_hash
    (tmp_path / "made").write_text("and another one that")
    assert kernel(["./made", "{tile}"], **build).source_hash == first


def test_energy_is_that_of_runs(monkeypatch):
    """A launch that only says again what the first run gave would be metered for nothing."""

    class TenWatts(PowerMeter):
        name, device_kind = "ten", "cpu"

        def unavailable_because(self):
            return None

        def start(self):
            self.began, self.runs = time.perf_counter(), len(runs())

        def stop(self):
            joules = 10.0 * (time.perf_counter() - self.began)
            per_run_mj.append(1e3 * joules / (len(runs()) - self.runs))
            return joules

    def runs():
        return Path("ran").read_text().split()

    per_run_mj = []
    monkeypatch.setattr(benchmark, "find_meter", lambda kind, index: TenWatts())
    monkeypatch.setattr(power, "WINDOW_S", 0.1)
    monkeypatch.setattr(power, "RAMP_S", 0.01)
    m = measured(kernel(["sh", "-c", "echo {tile} >> ran"]), tile=1)
    assert m.power_w == pytest.approx(10, rel=0.05)
    assert m.energy_mj == pytest.approx(per_run_mj[-1])
    assert len(runs()) > 5


@given(st.text(), st.integers())
def test_only_known_names_in_braces_are_filled(text, value):
    filled = substitute(text, {"knob": value})
    assert filled == text.replace("{knob}", str(value))
    assert np.all([part in filled for part in text.split("{knob}")])
