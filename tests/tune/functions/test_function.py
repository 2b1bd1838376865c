"""Tuning functions and the decorator: `tune/functions/function.py`, `tunable.py`."""

import json
import subprocess
import warnings

import numpy as np
import pytest

import foretune as ft
from foretune.collect import Timing
from foretune.device import Device
from foretune.errors import ForetuneWarning, MeasurementError, OutputError, UsageError
from foretune.tune.functions import tunable as tunables
from foretune.tune.functions import tuning
from foretune.tune.functions.result import best as best_of

DEVICE = Device("This CPU", "cpu", specs={"cores": 2.0})
X = np.arange(20_000.0)
QUICK = {"isolated": False, "verify_s": 3.0, "progress": False, "budget": 3}


@pytest.fixture(autouse=True)
def _no_probe(monkeypatch):
    for module in (tuning, tunables):
        monkeypatch.setattr(module, "local_device", lambda name, measure: DEVICE)
    quick = Timing(max_seconds=0.02, warmup_s=0.001)
    monkeypatch.setattr(Timing, "__init__", lambda self, **_: vars(self).update(vars(quick)))
    tunables._device.cache_clear()


def doubled(x, block=100):
    """The more blocks, the slower, by much."""
    out = np.empty_like(x)
    for i in range(0, len(x), block):
        out[i : i + block] = x[i : i + block] * 2
    return out


def tune(**more):
    return ft.tune_function(doubled, {"block": [100, 1000, 20_000]}, args=(X,), **QUICK, **more)


def test_tune_function_finds_and_verifies_best():
    best = tune(check=lambda x: x + x)
    assert best.verified
    assert best.config == {"block": 20_000}
    assert best.default == {"block": 100}
    assert best.speedup == pytest.approx(best.default_ms / best.time_ms, rel=0.5)
    assert best.interval[0] > 1
    assert "× the default's speed" in best.report()
    assert best_of("doubled") == {"block": 20_000}
    again = tune(check=lambda x: x + x)
    assert again.measured == 0
    with pytest.raises(MeasurementError, match=r"wrong_result: relative error .* is above"):
        tune(check=lambda x: x + 1)


def test_tune_function_reports_progress_on_stderr(capsys):
    ft.tune_function(doubled, {"block": [100, 20_000]}, args=(X,), **{**QUICK, "progress": True})
    out, err = capsys.readouterr()
    assert out == ""
    first, *_, last = err.splitlines()
    assert first.startswith("doubled takes ")
    assert "best 0." in err
    assert "block=20000" not in last, "the result is what is returned, nothing is said twice"


def picky(x, block=100):
    if block == 3:
        raise ValueError("block 3 is not supported here")
    return x[: len(x) - (block == 7)]


def test_report_counts_failures_with_one_reason():
    knobs = {"block": [3, 7, 100]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        best = ft.tune_function(picky, knobs, args=(X,), **QUICK)
    assert best.result.failures in (
        "2 of 3 failed, like block=3: ValueError: block 3 is not supported here",
        "2 of 3 failed, like block=7: the output has shape (19999,), the expected one has (20000,)",
    )
    seen = []

    def verify(right, output):
        seen.append((type(right), type(output)))
        return {right.sum(): True}[output.sum()]

    ft.tune_function(picky, {"block": [100, 101]}, args=(X,), verify=verify, **QUICK)
    assert set(seen) == {(np.ndarray, np.ndarray)}
    with pytest.raises(MeasurementError, match="verify fails: KeyError: 3"):
        ft.tune_function(picky, knobs, args=(X,), verify=lambda a, b: {}[3], **QUICK)
    with pytest.raises(MeasurementError, match=r"has shape \(20000,\), the expected one has"):
        ft.tune_function(picky, knobs, args=(X,), check=lambda x: x[:1], **QUICK)


def test_tune_function_zero_budget_and_missing_report_folder_raise(tmp_path):
    with pytest.raises(UsageError, match="budget 0 leaves nothing to measure"):
        ft.tune_function(doubled, {"block": [100]}, args=(X,), **{**QUICK, "budget": 0})
    with pytest.raises(OutputError, match=r"there is no folder .*nope: create it"):
        tune().report(tmp_path / "nope" / "x.html")
    assert not (tmp_path / "nope").exists()


def test_export_writes_best_configuration(tmp_path):
    best = tune()
    header = best.export(tmp_path / "tuned.h")
    program = '#include "tuned.h"\nint main(void) { return block == 20000 ? 0 : 1; }\n'
    (tmp_path / "main.c").write_text(program)
    subprocess.run(["cc", "main.c", "-o", "main"], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0
    assert header.read_text().startswith("#ifndef DOUBLED_TUNED_H")
    content = json.loads(best.export(tmp_path / "tuned.json").read_text())
    assert content["config"] == {"block": 20_000}
    best.export(tmp_path / "tuned.env")
    shell = subprocess.run(
        ["sh", "-c", ". ./tuned.env; echo $DOUBLED_BLOCK"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert shell.stdout == "20000\n"
    with pytest.raises(UsageError, match=r"ends in \.h, \.json, \.env"):
        best.export(tmp_path / "tuned.toml")
    best.report(tmp_path / "tuned.html")
    assert "the default&#39;s speed" in (tmp_path / "tuned.html").read_text()


def test_best_returns_choice_of_nearest_problem():
    for n in (1000, 20_000):
        ft.tune_function(doubled, {"block": [100, n]}, args=(X[:n],), **QUICK)
    sizes = {n: best_of("doubled", x_0=n)["block"] for n in (1, 900, 15_000, 10**9)}
    assert sizes[1] == sizes[900]
    assert sizes[15_000] == sizes[10**9] == 20_000
    with pytest.raises(UsageError, match="did you mean 'x_0'"):
        best_of("doubled", x_1=3)
    with pytest.raises(UsageError, match="did you mean 'doubled'"):
        best_of("double")


def test_tune_function_failing_default_raises_one_line():
    def picky(x, block=1):
        if block == 1:
            raise ValueError("block 1 is too small")
        return x

    with pytest.raises(
        MeasurementError, match=r"default of picky, block=1, does not work: .*too small"
    ):
        ft.tune_function(picky, {"block": [1, 2]}, args=(X,), **QUICK)


def test_tune_function_without_default_tries_others():
    def picky(x, block):
        if block == 1:
            raise ValueError("block 1 is too small")
        return x

    assert ft.tune_function(picky, {"block": [1, 2]}, args=(X,), **QUICK).default == {"block": 2}

    def broken(x, block):
        raise ValueError(f"never with {block}")

    with pytest.raises(MeasurementError, match="none of 3 configurations of broken works; block=1"):
        ft.tune_function(broken, {"block": [1, 2, 3]}, args=(X,), **QUICK)


def test_tunable_chooses_at_first_call_of_shape():
    calls = []

    @ft.tunable(block=[100, 20_000], options=QUICK)
    def smooth(x, block=100, scale=2.0):
        calls.append(block)
        return doubled(x, block) * scale

    assert (smooth(X) == X * 4).all()
    assert calls[-1] == 20_000
    assert set(calls) == {100, 20_000}
    calls.clear()
    smooth(X + 1)
    smooth(X, block=100)
    assert calls == [20_000, 100]
    calls.clear()
    smooth(X[:100])
    assert len(calls) > 2, "another shape"
    assert smooth.__name__ == "smooth"


def test_tunable_takes_positional_knob_and_arrays_in_dictionary():
    calls = []

    @ft.tunable(block=[100, 20_000], options=QUICK)
    def smooth(given, block=100, scale=2.0):
        calls.append(block)
        return doubled(given["x"], block) * scale

    assert (smooth({"x": X}, 100, 1.0) == X * 2).all()
    assert calls == [100]
    smooth({"x": X})
    calls.clear()
    smooth({"x": X[:100]})
    assert len(calls) > 2, "another shape"


def test_tunable_recursive_call_uses_default_while_measured():
    @ft.tunable(block=[1, 2], options={**QUICK, "verify_s": 0.01})
    def total(x, block=1):
        return float(x[0]) if len(x) == 1 else total(x[:1]) + total(x[1:])

    assert total(X[:2]) == 1.0


def test_tune_function_in_measuring_process_returns_default(monkeypatch):
    calls = []

    @ft.tunable(block=[100, 20_000], options=QUICK)
    def inner(x, block=100):
        calls.append(block)
        return x

    monkeypatch.setenv("FORETUNE_SERVES", "1")
    inner(X)
    assert calls == [100]
    assert tune().headline.startswith("doubled: not tuned")


def test_tunable_method():
    class Filter:
        factor = 3

        @ft.tunable(block=[100, 20_000], options=QUICK)
        def apply(self, x, block=100):
            return doubled(x, block) * self.factor

    assert (Filter().apply(X) == X * 6).all()
    assert Filter.apply.kernel((Filter(), X)).problem()["self"] == "Filter"


def test_tunable_reuses_stored_choice():
    def decorated():
        calls = []

        @ft.tunable(block=[100, 20_000], options=QUICK, name="kept")
        def kept(x, block=100):
            return doubled(x, block)

        kept.tune = lambda *args: calls.append(args)
        return kept, calls

    first, _ = decorated()
    ft.tune_function(first.function, first.knobs, args=(X,), name="kept", **QUICK)
    second, calls = decorated()
    assert (second(X) == 2 * X).all()
    assert calls == []
    assert list(second._chosen.values()) == [{"block": 20_000}]


def test_tunable_failed_tuning_warns_and_runs_default():
    @ft.tunable(block=[1, 2], options=QUICK)
    def random(x, block=1):
        return np.random.default_rng().random() * x

    with pytest.warns(ForetuneWarning, match="runs with its default: .*fix its seed"):
        random(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        random(X)


def test_tunable_wrong_use_raises():
    with pytest.raises(UsageError, match="takes no argument 'tile'"):
        ft.tunable(tile=[1, 2])(doubled)
    with pytest.raises(UsageError, match="unknown objective 'tim': did you mean 'time'"):
        tune(objective="tim")


def summed(x, b=2):
    return np.concatenate([x[i : i + b].sum(1) for i in range(0, len(x), b)])


@pytest.mark.filterwarnings("ignore:summed with")  # other load may look like repeated arguments
@pytest.mark.parametrize(
    "later", [{"b": [1, 2, 400]}, {"b": [100, 400]}, {"b": [1, 2], "restrictions": ["b < 2"]}]
)
def test_tune_function_other_space_is_searched_again(later):
    x = np.ones((400, 50))
    options = {"args": (x,), **QUICK, "budget": 2}
    first = ft.tune_function(summed, {"b": [1, 2]}, **options)
    assert first.measured <= 2
    assert ft.tune_function(summed, {"b": [1, 2]}, **options).measured == 0
    rules = later.pop("restrictions", None)
    default = {"b": later["b"][0]}
    found = ft.tune_function(summed, later, restrictions=rules, default=default, **options)
    assert found.result.trace[0].config in found.kernel.space(found.kernel.problem())
    assert found.measured or rules
    assert best_of("summed") == found.config  # of several spaces, the last one's


def test_tune_function_other_check_measures_again():
    options = {**QUICK, "progress": False}
    with pytest.raises(MeasurementError, match="wrong_result"):
        ft.tune_function(doubled, {"block": [100, 20_000]}, args=(X,), check=X * 3, **options)
    found = ft.tune_function(doubled, {"block": [100, 20_000]}, args=(X,), check=X * 2, **options)
    assert {step.status for step in found.result.trace} == {"ok"}


def test_tune_function_unknown_option_raises():
    ways = (
        lambda: ft.tune_function(doubled, {"block": [100]}, args=(X,), budgte=3),
        lambda: ft.tunable(block=[100], options={"budgte": 3})(doubled),
    )
    for way in ways:
        with pytest.raises(UsageError, match=r"unknown option 'budgte'.*budget"):
            way()


def test_tune_function_misspelled_parameter_is_named():
    ways = (
        lambda **wrong: tune(**wrong),
        lambda **wrong: ft.tune_program(["true", "{x}"], {"x": [1, 2]}, **wrong),
        lambda **wrong: ft.tune_kernel("f", "void f() {}", 1, [], {"x": [1, 2]}, **wrong),
    )
    for way in ways:
        with pytest.raises(UsageError, match="'restriction': did you mean 'restrictions'"):
            way(restriction=["x < 2"])


def test_tune_function_takes_single_limit():
    with pytest.raises(UsageError, match="no_such"):
        ft.tune_function(doubled, {"block": [100]}, args=(X,), limits="no_such=3", **QUICK)
