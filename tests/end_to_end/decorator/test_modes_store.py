"""What `foretune.autotune` keeps in a store, and finds there."""

import dataclasses
import math

import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from replay_driver import ReplayDriver
from replayed_tuning import all_configs, by_problem, call, make, metered
from tuned_kernels import blocks_of, configs

import foretune
from foretune import Configuration
from foretune.errors import ForetuneWarning
from foretune.measurement import Status
from foretune.tune.store import Choice
from foretune.tune.store.cache import MeasurementCache


class TestStore:
    def test_store_serves_another_kernel_of_the_same_code(self, device, tensors, tmp_path):
        first = make(store=tmp_path / "tuned.db", budget=4)
        assert call(first, device, tensors, 1024) == 4
        second = make(store=tmp_path / "tuned.db", budget=4)
        assert call(second, device, tensors, 1024) == 0
        assert second.best_config == first.best_config

    def test_store_added_configuration_is_measured_alone(self, device, tensors, tmp_path):
        few = all_configs()[:10]
        assert call(make(few, store=tmp_path / "t.db", budget="all"), device, tensors, 1024) == 10
        more = make(all_configs()[:11], store=tmp_path / "t.db", budget="all")
        assert call(more, device, tensors, 1024) == 1
        assert len(more.configs_timings) == 11

    def test_store_larger_budget_continues(self, device, tensors, tmp_path):
        call(make(store=tmp_path / "t.db", budget=2), device, tensors, 1024)
        more = make(store=tmp_path / "t.db", budget=6, regret=1e-3)
        assert 0 < call(more, device, tensors, 1024) <= 6
        again = make(store=tmp_path / "t.db", budget=6, regret=1e-3)
        assert call(again, device, tensors, 1024) == 0
        assert again.best_config == more.best_config

    def test_store_other_device_starts_without_knowledge(self, device, tensors, tmp_path):
        call(make(store=tmp_path / "t.db", budget=2), device, tensors, 1024)
        with ReplayDriver(by_problem, device="NVIDIA A100-SXM4-80GB").active() as other:
            assert call(make(store=tmp_path / "t.db", budget=2), other, tensors, 1024) == 2

    def test_store_broken_warns_once(self, device, tensors, tmp_path):
        broken = tmp_path / "t.db"
        broken.write_bytes(b"no database" * 500)
        kernel = make(store=broken, budget=3)
        with pytest.warns(ForetuneWarning, match=r"t\.db") as caught:
            assert call(kernel, device, tensors, 1024) == 3
        assert len(caught) == 1
        assert call(kernel, device, tensors, 512) == 3
        assert broken.read_bytes().startswith(b"no database")

    def test_shipped_results_are_used(self, device, tensors, tmp_path):
        call(make(store=tmp_path / "t.db", budget="all"), device, tensors, 1024)
        foretune.Store(tmp_path / "t.db").export(tmp_path / "tuned.json")
        kernel = make(shipped=tmp_path / "tuned.json", budget=4)
        assert call(kernel, device, tensors, 1024) == 0
        assert kernel.best_config.kwargs["BLOCK"] == 256

    def test_shipped_results_yield_to_the_store(self, device, tensors, tmp_path):
        call(make(store=tmp_path / "t.db", budget=2), device, tensors, 1024)
        foretune.Store(tmp_path / "t.db").export(tmp_path / "tuned.json")
        own = {"store": tmp_path / "own.db", "shipped": tmp_path / "tuned.json", "budget": 6}
        own["regret"] = 1e-3
        more = make(**own)
        again = make(**own)
        assert 0 < call(more, device, tensors, 1024) <= 6
        assert call(again, device, tensors, 1024) == 0
        assert again.best_config == more.best_config

    def test_store_objective_has_its_choice(self, device, tensors, tmp_path, monkeypatch):
        metered(monkeypatch, device)
        listed = configs(64, 128, 256)
        saving = make(listed, store=tmp_path / "t.db", objective="energy", budget="all")
        fast = make(listed, store=tmp_path / "t.db", budget="all")
        call(saving, device, tensors, 1024)
        call(fast, device, tensors, 1024)
        assert blocks_of([saving.best_config, fast.best_config]) == [64, 256]

    def test_store_times_do_not_suffice_for_energy(self, device, tensors, tmp_path, monkeypatch):
        call(make(configs(64, 256), store=tmp_path / "t.db", budget="all"), device, tensors, 1024)
        metered(monkeypatch, device)
        saving = make(
            configs(64, 256, 512), store=tmp_path / "t.db", objective="energy", budget="all"
        )
        call(saving, device, tensors, 1024)
        assert saving.best_config.kwargs["BLOCK"] == 64

    def test_shipped_missing_file_leaves_the_store(self, device, tensors, tmp_path):
        kernel = make(configs(64, 256), store=tmp_path / "t.db", shipped=tmp_path / "none.json")
        with pytest.warns(ForetuneWarning, match="shipped results are not used"):
            call(kernel, device, tensors, 1024)
        assert len(foretune.Store(tmp_path / "t.db").runs()) == 2

    def test_store_refuted_choice_is_made_again(self, device, tensors, tmp_path):
        first = make(configs(64, 256), store=tmp_path / "t.db", budget=1)
        call(first, device, tensors, 1024)
        store = foretune.Store(tmp_path / "t.db")
        (subject,) = store.subjects()
        (run,) = store.measurements(subject)
        other = ({64, 256} - {run.config["BLOCK"]}).pop()
        config = Configuration({**run.config, "BLOCK": other})
        for time_ms, chosen in ((0.99, run.config["BLOCK"]), (0.5, other)):
            faster = dataclasses.replace(run, config=config, time_ms=time_ms * run.time_ms)
            store.put(subject, [faster])
            again = make(configs(64, 256), store=tmp_path / "t.db", budget=1)
            assert call(again, device, tensors, 1024) == 0
            assert again.best_config.kwargs["BLOCK"] == chosen

    def test_store_budget_all_measures_all_despite_a_choice(self, device, tensors, tmp_path):
        few = call(make(store=tmp_path / "t.db", budget="auto"), device, tensors, 1024)
        rest = call(make(store=tmp_path / "t.db", budget="all"), device, tensors, 1024)
        assert few + rest == len(all_configs())

    def test_store_unchecked_times_are_measured_again(self, device, tensors, tmp_path):
        how = {"store": tmp_path / "t.db", "budget": "all"}
        assert call(make(configs(64, 256), **how), device, tensors, 1024) == 2
        assert call(make(configs(64, 256), **how, check=1e-3), device, tensors, 1024) > 2
        assert call(make(configs(64, 256), **how, check=1e-3), device, tensors, 1024) == 0

    def test_store_verified_choice_counts_for_time_only(
        self, device, tensors, tmp_path, monkeypatch
    ):
        """Made elsewhere, for no list of candidates; times of another day do not refute it."""
        call(make(configs(64, 256), store=tmp_path / "t.db", budget="all"), device, tensors, 1024)
        store = foretune.Store(tmp_path / "t.db")
        (subject,) = store.subjects()
        slow, fast = sorted(store.measurements(subject), key=lambda m: -m.time_ms)
        assert slow.time_ms > fast.time_ms
        store.forget(subject)
        store.put(subject, [slow, fast])
        verified = Choice(slow.config, 0, math.nan, "verified")
        store.choose(subject, slow.problem, verified)
        kernel = make(configs(64, 256), store=tmp_path / "t.db")
        assert call(kernel, device, tensors, 1024) == 0
        assert kernel.best_config.kwargs["BLOCK"] == slow.config["BLOCK"]
        metered(monkeypatch, device)
        saving = make(configs(64, 256), store=tmp_path / "t.db", objective="energy", budget=2)
        assert call(saving, device, tensors, 1024) > 0

    def test_store_verified_choice_that_failed_is_made_again(self, device, tensors, tmp_path):
        call(make(configs(64, 256), store=tmp_path / "t.db", budget=1), device, tensors, 1024)
        store = foretune.Store(tmp_path / "t.db")
        (subject,) = store.subjects()
        ((problem, choice),) = store.choices(subject).items()
        store.choose(subject, problem, dataclasses.replace(choice, how="verified"), choice)
        (best,) = (m for m in store.measurements(subject) if m.config == choice.config)
        failed = {"status": Status.RUNTIME_ERROR, "time_ms": math.nan, "time_ms_samples": ()}
        store.put(subject, [dataclasses.replace(best, **failed)])
        again = make(configs(64, 256), store=tmp_path / "t.db", budget=1)
        call(again, device, tensors, 1024)
        assert again.best_config.kwargs["BLOCK"] != choice.config["BLOCK"]

    def test_store_concurrent_processes_agree(self, device, tensors, tmp_path, monkeypatch):
        first = make(configs(64, 128, 256), store=tmp_path / "t.db", budget=1)
        second = make(configs(64, 128, 256), store=tmp_path / "t.db", budget=3)
        monkeypatch.setattr(MeasurementCache, "choice", lambda *_, **__: None)  # it began before
        call(first, device, tensors, 1024)
        call(second, device, tensors, 1024)
        assert second.best_config == first.best_config
