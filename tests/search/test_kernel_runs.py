"""Runs of any problems and configurations as points, and the similarity of problems."""

from foretune import Configuration, Measurement, Problem
from foretune.measurement import Status
from foretune.search.encoding import KernelRuns, nearest_first

CONFIGS = [Configuration(BLOCK_M=m, num_warps=w) for m in (16, 32, 64, 128) for w in (2, 4, 8)]


def test_nearest_first_sorts_by_size():
    runs = [
        Measurement("k", Problem(M=size), c, "d", Status.OK, 1.0)
        for size in (64, 4096, 1024)
        for c in CONFIGS[:4]
    ]
    assert [m.problem["M"] for m in nearest_first(runs, Problem(M=2048))[:8]] == [4096] * 4 + [
        1024
    ] * 4
    assert nearest_first(runs, Problem(M=64))[:4] == runs[:4]


def test_nearest_first_puts_another_word_after_another_size():
    here = Problem(M=64, dtype="fp16")
    runs = [
        Measurement("k", problem, CONFIGS[0], "d", Status.OK, 1.0)
        for problem in (Problem(M=64, dtype="fp32"), Problem(M=4096, dtype="fp16"), here)
    ]
    assert [m.problem["M"] for m in nearest_first(runs, here)] == [64, 4096, 64]


def test_kernel_runs_have_launch_axes_if_all_launches_are_known():
    problems = [Problem(M=64)] * 4
    programs = [64.0, 8.0, 8.0, 256.0]
    known = KernelRuns(problems, CONFIGS[:4], [{"programs": n} for n in programs])
    assert "programs" in known.points({"cores": 132.0})[1]
    unknown = KernelRuns(problems, CONFIGS[:4], [{"programs": 64.0}, {}, {}, {}])
    assert "programs" not in unknown.points({"cores": 132.0})[1]


def test_kernel_runs_without_launches_use_names():
    configs = [Configuration(block_size_x=x, tile_size_x=4) for x in (32, 48, 64)]
    rows = KernelRuns([Problem(size_0=4096)] * 3, configs, [{}] * 3)
    assert "warp_fill" in rows.points({})[1]


def test_kernel_runs_place_similar_problems_nearby():
    rows = KernelRuns([Problem(M=1000), Problem(M=1001)], CONFIGS[:1] * 2, [{}] * 2)
    points, axes = rows.points({})
    size = points[:, axes.index("problem.M")]
    assert abs(size[1] - size[0]) < 0.001
