"""Printed lines, listeners, and Triton's file of timings."""

import json

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

import tuned_kernels
from triton import knobs
from tuned_kernels import NEWEST, best_is, blocks_of, configs, failing

KEY = (64, "torch.float16", "torch.float32")
needs_listener = pytest.mark.skipif(
    not hasattr(knobs.autotuning, "listener"), reason="this Triton tells no listener"
)


@pytest.fixture
def tuned(autotune):
    return autotune(configs(128, 256), ["n"])(triton.jit(tuned_kernels.copy))


def normal(text):
    """Return printed lines with the time replaced."""
    lines = text.splitlines()
    return [f"finished after {line[-2:]}" if "finished after" in line else line for line in lines]


class TestPrinting:
    @pytest.fixture(autouse=True)
    def printing(self, monkeypatch):
        monkeypatch.setenv("TRITON_PRINT_AUTOTUNING", "1")

    def printed(self, tuned, driver, tensors, capsys, calls=1):
        for _ in range(calls):
            tuned[(1,)](*tensors, 64)
        return capsys.readouterr().out

    def test_each_trial_and_the_winner(self, tuned, driver, tensors, capsys):
        one, two = tuned.configs
        out = self.printed(tuned, driver, tensors, capsys)
        assert normal(out) == [
            f"Autotuning kernel copy with config {one}",
            f"Autotuning kernel copy with config {two}",
            "Triton autotuning for function copy,",
            f"with key as {KEY},",
            "finished after s,",
            f"best config selected: {two};",
        ]

    def test_a_failure_says_why(self, tuned, driver, tensors, capsys):
        driver.times = failing(128, best=256)
        out = self.printed(tuned, driver, tensors, capsys)
        assert "Autotuning failed with out of resource: shared memory" in out.splitlines()[1]

    def test_a_known_problem_prints_nothing(self, tuned, driver, tensors, capsys):
        self.printed(tuned, driver, tensors, capsys)
        assert self.printed(tuned, driver, tensors, capsys, calls=2) == ""

    def test_a_single_configuration_prints_nothing(self, autotune, driver, tensors, capsys):
        tuned = autotune(configs(128), ["n"])(triton.jit(tuned_kernels.copy))
        assert self.printed(tuned, driver, tensors, capsys) == ""

    def test_one_survivor_prints_what_it_does_in_triton(self, autotune, driver, tensors, capsys):
        def out(decorator):
            rules = {"early_config_prune": lambda configs, named, **kwargs: configs[1:]}
            tuned = decorator(configs(128, 256), ["n"], prune_configs_by=rules)(
                triton.jit(tuned_kernels.copy)
            )
            return normal(self.printed(tuned, driver, tensors, capsys))

        if NEWEST:
            assert out(triton.autotune) == []
        assert out(autotune) in ([], out(triton.autotune))


def test_without_being_asked_nothing_is_printed(tuned, driver, tensors, capsys):
    tuned[(1,)](*tensors, 64)
    assert capsys.readouterr() == ("", "")


@needs_listener
class TestListener:
    @pytest.fixture
    def heard(self, monkeypatch):
        calls = []
        monkeypatch.setattr(knobs.autotuning, "listener", lambda **kwargs: calls.append(kwargs))
        return calls

    def test_listener_is_called_once_per_problem(self, tuned, driver, tensors, heard):
        for n in (64, 64, 65, 64):
            tuned[(1,)](*tensors, n)
        first, second = heard
        assert set(first) == {
            "fn",
            "key",
            "best_config",
            "configs_timings",
            "duration",
            "cache_hit",
        }
        assert first["fn"] is tuned.fn
        assert (first["key"], second["key"]) == (KEY, (65, *KEY[1:]))
        assert first["best_config"] is tuned.configs[1]
        assert list(first["configs_timings"]) == tuned.configs
        assert first["cache_hit"] is False
        assert first["duration"] >= 0

    def test_listener_gets_the_kernel_below_heuristics(self, autotune, driver, tensors, heard):
        kernel = triton.jit(tuned_kernels.copy)
        heuristic = triton.heuristics({"m": lambda args: 2})(kernel)
        autotune(configs(128, 256), ["n"])(heuristic)[(1,)](*tensors, 64)
        assert heard[0]["fn"] is kernel

    @pytest.mark.parametrize("kept", [slice(1), slice(2)])
    def test_listener_after_pruning_is_called_as_by_triton(
        self, autotune, driver, tensors, heard, kept
    ):
        def told(decorator):
            heard.clear()
            rules = {"early_config_prune": lambda configs, named, **kwargs: configs[kept]}
            tuned = decorator(configs(128, 256), ["n"], prune_configs_by=rules)(
                triton.jit(tuned_kernels.copy)
            )
            tuned[(1,)](*tensors, 64)
            return [(call["best_config"], call["cache_hit"]) for call in heard]

        assert told(autotune) == told(triton.autotune)

    def test_listener_is_not_called_for_a_prefilled_problem(self, tuned, driver, tensors, heard):
        tuned.cache[KEY] = tuned.configs[0]
        tuned[(1,)](*tensors, 64)
        assert heard == []

    def test_listener_of_a_read_file_gets_a_hit_without_duration(
        self, autotune, driver, tensors, heard
    ):
        for _ in range(2):
            autotune(configs(128, 256), ["n"], cache_results=True)(triton.jit(tuned_kernels.copy))[
                (1,)
            ](*tensors, 64)
        first, second = heard
        assert (first["cache_hit"], second["cache_hit"]) == (False, True)
        assert second["duration"] is None
        assert second["best_config"] == first["best_config"]


class TestFileOfTimings:
    """What ``cache_results`` keeps is Triton's, so either decorator reads the other's."""

    @pytest.fixture
    def files(self, tmp_path):
        return lambda: sorted((tmp_path / "triton").rglob("*.autotune.json"))

    def decorate(self, decorator, function=tuned_kernels.copy, both=None, **arguments):
        return decorator(both or configs(128, 256), ["n"], cache_results=True, **arguments)(
            triton.jit(function)
        )

    def test_it_holds_key_and_timings(self, autotune, driver, tensors, files):
        tuned = self.decorate(autotune)
        tuned[(1,)](*tensors, 64)
        (path,) = files()
        assert path.name == "copy.autotune.json"
        held = json.loads(path.read_text())
        assert held["key"] == list(KEY)
        assert [config["kwargs"] for config, _ in held["configs_timings"]] == [
            {"BLOCK": 128},
            {"BLOCK": 256},
        ]
        assert [list(t) for _, t in held["configs_timings"]] == [[4.0] * 3, [1.0] * 3]

    @pytest.mark.parametrize("direction", ["reads", "is read by", "itself"])
    def test_what_one_wrote_the_other_reads(self, autotune, driver, tensors, direction):
        one, other = {
            "reads": (triton.autotune, autotune),
            "is read by": (autotune, triton.autotune),
            "itself": (autotune, autotune),
        }[direction]
        self.decorate(one)[(1,)](*tensors, 64)
        driver.launches.clear()
        driver.times = best_is(128)
        tuned = self.decorate(other)
        tuned[(1,)](*tensors, 64)
        assert blocks_of(driver.launches) == [256]
        assert tuned.best_config.kwargs == {"BLOCK": 256}
        assert list(tuned.configs_timings.values()) == [[4.0] * 3, [1.0] * 3]
        assert list(tuned.cache) == [KEY]

    def test_other_configurations_are_measured(self, autotune, driver, tensors, files):
        self.decorate(autotune)[(1,)](*tensors, 64)
        driver.launches.clear()
        self.decorate(autotune, both=configs(128, 512))[(1,)](*tensors, 64)
        assert set(blocks_of(driver.launches)) == {128, 512}
        assert len(files()) == 2

    def test_with_hooks_there_is_none(self, autotune, driver, tensors, files):
        self.decorate(autotune, both=configs(128, 256, pre_hook=lambda a: None))[(1,)](*tensors, 64)
        assert files() == []

    def test_without_a_key_there_is_none(self, autotune, driver, files):
        both = configs(128, 256)
        tuned = autotune(both, [], cache_results=True)(triton.jit(tuned_kernels.count))
        tuned[(1,)](64)
        assert list(tuned.cache) == [()]
        assert files() == []

    def test_not_asked_for_there_is_none(self, tuned, driver, tensors, files):
        tuned[(1,)](*tensors, 64)
        assert files() == []
