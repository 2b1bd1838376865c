"""Foretune's search in Helion, with kernels that Pallas interprets: times say nothing here."""

import os
from math import inf

import pytest

pytest.importorskip("helion")
pytest.importorskip("jax")
if not os.environ.get("HELION_PALLAS_INTERPRET") or os.environ.get("HELION_BACKEND") != "pallas":
    pytest.skip("needs HELION_BACKEND=pallas HELION_PALLAS_INTERPRET=1", allow_module_level=True)

import helion
import helion.language as hl
import torch
from helion.autotuner import base_search
from helion.autotuner.base_search import BaseSearch

from foretune.errors import UsageError
from foretune.tune.doors.helion import helion_autotuner

pytestmark = pytest.mark.filterwarnings("default")
USERS = helion.Config(block_sizes=[128, 128, 128])


def distance(config):
    return abs(config["block_sizes"][0] - 32) + 1.0


@pytest.fixture
def measured(monkeypatch):
    """The configurations that Helion runs, in order; their times are replaced."""
    found = []
    real = BaseSearch.benchmark_batch

    def benchmark_batch(self, configs, **named):
        found.extend(configs)
        results = real(self, configs, **named)
        return [r._replace(perf=distance(r.config) if r.perf < inf else inf) for r in results]

    monkeypatch.setenv("HELION_SKIP_CACHE", "1")
    monkeypatch.setattr(BaseSearch, "benchmark_batch", benchmark_batch)
    return found


def matmul(**options):
    @helion.kernel(static_shapes=True, autotune_random_seed=1, **options)
    def kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = torch.empty([x.size(0), y.size(1)], dtype=x.dtype, device=x.device)
        for rows, columns in hl.tile([x.size(0), y.size(1)]):
            total = hl.zeros([rows, columns], dtype=torch.float32)
            for k in hl.tile(x.size(1)):
                total = torch.addmm(total, x[rows, k], y[k, columns])
            out[rows, columns] = total
        return out

    return kernel


def test_helion_seeds_come_first_and_the_budget_holds(measured):
    x = torch.randn(128, 128)
    y = torch.randn(128, 128)
    tuner = helion_autotuner(budget=7)
    kernel = matmul(autotuner_fn=tuner, autotune_seed_configs=[USERS])
    assert torch.allclose(kernel(x, y), x @ y, atol=1e-3)
    default = kernel.bind((x, y)).config_spec.default_config()
    assert measured[0] == default
    assert measured[1]["block_sizes"] == USERS["block_sizes"]
    assert len(measured) == len(set(measured)) == 7


def test_helion_chooses_the_best_measured(measured):
    x = torch.randn(128, 128)
    y = torch.randn(128, 128)
    kernel = matmul(autotuner_fn=helion_autotuner(budget=6, searcher="random"))
    chosen = kernel.bind((x, y)).autotune((x, y))
    assert distance(chosen) == min(map(distance, measured))


@pytest.mark.parametrize("moved", ["benchmark_batch", "normalize_autotune_seed_configs"])
def test_helion_other_version_is_an_error(monkeypatch, moved):
    home = base_search if hasattr(base_search, moved) else BaseSearch
    monkeypatch.delattr(home, moved)
    x = torch.randn(128, 128)
    with pytest.raises(UsageError, match=r"needs Helion 1\.5\.1"):
        matmul(autotuner_fn=helion_autotuner(budget=2)).bind((x, x)).autotune((x, x))
