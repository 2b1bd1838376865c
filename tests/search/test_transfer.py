"""Judging configurations: what was measured is known, what is like it is guessed, and how well."""

import math

import numpy as np
import pytest

pytest.importorskip("triton")

from foretune import Configuration, Device, Measurement, Objective, Problem, Status
from foretune.tune.triton.estimate import estimate, tile_edges
from foretune.tune.triton.knowledge import Knowledge, nearest
from foretune.tune.triton.rows import Rows

NOBODY = np.zeros(36, dtype=bool)
DEVICE = Device("NVIDIA H200", "gpu", specs={"cores": 132.0})
CONFIGS = [
    Configuration(BLOCK_M=m, BLOCK_N=n, num_warps=w)
    for m in (16, 32, 64, 128) for n in (32, 64, 128) for w in (2, 4, 8)
]  # fmt: skip


def time_of(size, config):
    """A valley whose bottom moves with the size."""
    wanted = math.log2(size) - 4
    off = (math.log2(config["BLOCK_M"]) - wanted) ** 2 + (math.log2(config["num_warps"]) - 2) ** 2
    return size**2 * 1e-5 * (1 + 0.2 * off + 0.05 * (math.log2(config["BLOCK_N"]) - 6) ** 2)


def run(size, config, status=Status.OK):
    time_ms = time_of(size, config) if status is Status.OK else math.nan
    return Measurement("k", Problem(M=size), config, DEVICE.name, status, time_ms)


def rows(size, configs=CONFIGS):
    return Rows([Problem(M=size)] * len(configs), list(configs), [{}] * len(configs))


class Nothing:
    """Believes that all configurations are alike."""

    spread = 0.5

    def log_value(self, rows):
        return np.zeros(len(rows))


@pytest.fixture
def knowledge():
    return Knowledge(DEVICE, Objective.TIME, Nothing())


def judge(knowledge, size, runs, configs=CONFIGS):
    return knowledge.judge(rows(size, configs), np.ones(len(configs)), runs)


def test_nothing_known_is_much_to_lose(knowledge):
    judgement = judge(knowledge, 1024, [])
    assert judgement.measured == 0
    assert judgement.regret > 0.2


def test_the_more_is_measured_the_less_there_is_to_lose(knowledge):
    runs, regrets = [], []
    for _ in range(20):
        judgement = judge(knowledge, 1024, runs)
        regrets.append(judgement.regret)
        runs.append(run(1024, CONFIGS[judgement.next(NOBODY)]))
    assert min(regrets[15:]) < 0.2 * regrets[0]
    best = min(time_of(1024, c) for c in CONFIGS)
    assert time_of(1024, CONFIGS[judge(knowledge, 1024, runs).best]) <= 1.05 * best


def test_other_problems_teach(knowledge):
    rng = np.random.default_rng(0)
    runs = [
        run(size, CONFIGS[i])
        for size in (256, 512, 2048, 4096)
        for i in rng.choice(len(CONFIGS), 12, replace=False)
    ]
    taught = judge(knowledge, 1024, runs)
    best = min(time_of(1024, c) for c in CONFIGS)
    assert time_of(1024, CONFIGS[taught.best]) <= 1.25 * best
    assert taught.regret < judge(knowledge, 1024, []).regret


def test_all_measured_is_nothing_to_lose(knowledge):
    judgement = judge(knowledge, 1024, [run(1024, c) for c in CONFIGS])
    assert judgement.regret < 0.02
    assert judgement.next(NOBODY) is None


def test_failures_are_avoided_and_never_chosen(knowledge):
    failing = [c for c in CONFIGS if c["BLOCK_M"] == 64]
    runs = [run(size, c, Status.INVALID) for size in (512, 1024) for c in failing[:5]]
    runs += [run(512, c) for c in CONFIGS[:6]]
    judgement = judge(knowledge, 1024, runs)
    assert CONFIGS[judgement.best] not in failing[:5]
    assert np.isposinf(judgement.expected[[CONFIGS.index(c) for c in failing[:5]]]).all()


def test_nothing_runs(knowledge):
    judgement = judge(knowledge, 1024, [run(1024, c, Status.INVALID) for c in CONFIGS])
    assert judgement.next(NOBODY) is None
    assert np.isinf(judgement.regret)


def test_it_is_deterministic():
    runs = [run(size, c) for size in (512, 2048) for c in CONFIGS[::3]]
    found = [judge(Knowledge(DEVICE, Objective.TIME, Nothing()), 1024, runs) for _ in range(2)]
    assert np.array_equal(found[0].expected, found[1].expected)
    assert found[0].best == found[1].best


def test_one_knob_without_variation_and_one_configuration(knowledge):
    one = [Configuration(BLOCK=64)]
    assert judge(knowledge, 64, [], one).best == 0


def test_the_most_similar_problems_come_first():
    runs = [run(size, c) for size in (64, 4096, 1024) for c in CONFIGS[:4]]
    assert {m.problem["M"] for m in nearest(runs, Problem(M=2048), 8)} == {4096, 1024}
    assert nearest(runs, Problem(M=64), 4) == runs[:4]


class TestEstimate:
    def order(self, configs, programs):
        found = Rows([Problem()] * len(configs), configs, [{"programs": p} for p in programs])
        return np.argsort(estimate(found, DEVICE.specs), kind="stable").tolist()

    def test_tiny_tiles_of_a_product_load_too_much(self):
        small, large = (Configuration(BLOCK_M=b, BLOCK_N=b, num_warps=4) for b in (16, 128))
        assert self.order([small, large], [65536, 1024]) == [1, 0]

    def test_tiles_that_spill_are_bad(self):
        fits, spills = (Configuration(BLOCK_M=256, BLOCK_N=256, num_warps=w) for w in (16, 4))
        assert self.order([spills, fits], [256, 256]) == [1, 0]

    def test_idle_multiprocessors_are_bad(self):
        configs = [Configuration(BLOCK=b, num_warps=4) for b in (2048, 1024)]
        assert self.order(configs, [540, 1056]) == [1, 0]

    @pytest.mark.parametrize(
        ("name", "edge"),
        [("BLOCK_M", "M"), ("BLOCK_SIZE_N", "N"), ("BLOCK", ""), ("BLOCK_SIZE", ""),
         ("TILE_K", "K"), ("BM", "M"), ("GROUP_M", None), ("num_warps", None)],
    )  # fmt: skip
    def test_tiles_are_known_by_their_names(self, name, edge):
        assert tile_edges(Configuration({name: 64})) == ({} if edge is None else {edge: 64.0})
