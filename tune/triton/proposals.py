"""Proposes a short list of configurations for a GPU that is not at hand.

An author's list suits the GPU on which it was written. Here, every tile, number of warps and number
of stages is a candidate. The orders of launches (`launch_order`) say how fast each is expected to
be on each problem. They may be wrong, so the list is a portfolio: times are drawn around the
expected ones, and each entry is the candidate that raises the mean best speed of the list the most
(the greedy choice is within 1 - 1/e of the best list: Nemhauser, Wolsey and Fisher, Mathematical
Programming 14, 1978).
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from foretune.collect.compiled.foretelling import foretell
from foretune.collect.compiled.gpu_targets import get_target
from foretune.device import Device
from foretune.errors import UsageError
from foretune.features.launches import TileLaunch, launch_features
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.triton.launch_order import ERROR_FREEDOM, LaunchOrders, shipped_orders
from foretune.tune.triton.parameters import undecorated_kernel
from foretune.tune.triton.prior import launch_prior
from foretune.tune.triton.problem_key import Call
from foretune.tune.triton.tiles import shape_law, tile_launches
from foretune.tune.triton.tiles.edges import Edges, named_size
from foretune.tune.triton.tiles.operands import find_operands

CLASSES = {
    "sm_80": "NVIDIA A100-SXM4-80GB",
    "sm_86": "NVIDIA GeForce RTX 3090",
    "sm_89": "NVIDIA GeForce RTX 4090",
    "sm_90": "NVIDIA H100 80GB HBM3",
    "sm_100": "NVIDIA B200",
    "sm_120": "NVIDIA GeForce RTX 5090",
}
"""The GPU that stands for each architecture. The orders learned nothing of sm_75 and AMD's."""
EDGES = (16, 32, 64, 128, 256)
WARPS = (2, 4, 8, 16)
STAGES = (1, 2, 3, 4, 5, 6)
"""Values of the candidates. All other parameters keep their value in the author's first entry."""
MAX_CANDIDATES = 20_000
PROMISING = 60
"""Candidates of each problem from which the list is chosen."""
SPREAD = 0.1
"""Standard deviation of the smooth part of the log error of an expected time.

Chosen on recorded lists of products and attention that were left out when the orders were learned
(`benchmarks/proposed_lists.py` judges it on another table).
"""
INDEPENDENT_VARIANCE = 0.36
"""Variance of the error that each configuration has of its own, in units of the smooth one's."""
LENGTH = 1.1
"""Length of the smooth error, in standard deviations of the logarithm of each parameter."""
MIN_DEVIATION = 1e-6
DRAWS = 400
"""Draws of all times of each problem."""
MIN_P_VALID = 1e-3


def propose(
    function: Any,
    problems: Sequence[Mapping[str, Any]],
    listed: Sequence[Configuration],
    device: Device,
    *,
    count: int,
    orders: LaunchOrders | None = None,
    seed: int = 0,
) -> list[Configuration]:
    """Return ``count`` configurations for a GPU, at most; the most useful one comes first.

    ``function`` is the kernel, ``problems`` the arguments of its calls, in which tensors have
    shapes; ``listed`` is the author's list, which tells the parameters. Without a candidate that
    may run, as of a type that the GPU lacks, the list is empty. Raises UsageError if the kernel
    does not multiply tiles, if it is attention, or if sizes are missing.
    """
    calls = [_call(function, arguments, device) for arguments in problems]
    target = get_target(device.architecture)
    names = undecorated_kernel(function).arg_names
    arguments = {name: value for name, value in problems[0].items() if name in names}

    # A broken entry, or one for another GPU, tells nothing of the parameters.
    reasons = foretell(function, arguments, listed, [target])[target.name]
    may_run = [config for config, reason in zip(listed, reasons, strict=True) if not reason]
    listed = may_run or listed
    candidates = candidates_of(calls[0], listed)
    log_times = np.array(
        [
            _expected_log_times(call, candidates, orders or shipped_orders(), example=listed[0])
            for call in calls
        ]
    )
    varied = [name for name in candidates[0] if candidates[0][name] != candidates[-1][name]]
    points = np.log2([[float(config[name]) for name in varied] for config in candidates])

    # Code that exceeds the GPU's limits is only seen by generating it, which takes a while: it is
    # done for the configurations of the list alone, and those that cannot run are replaced.
    fits: dict[int, bool] = {}
    while True:
        allowed = np.array([fits.get(i, True) for i in range(len(candidates))])
        if not allowed.any():
            return []
        chosen = portfolio(log_times, points, allowed, count=count, seed=seed)
        unknown = [i for i in chosen if i not in fits]
        if not unknown:
            return [candidates[i] for i in chosen]
        configs = [candidates[i] for i in unknown]
        reasons = foretell(function, arguments, configs, [target])[target.name]
        fits.update({i: not reason for i, reason in zip(unknown, reasons, strict=True)})


def candidates_of(call: Call, listed: Sequence[Configuration]) -> list[Configuration]:
    """Return every tile, number of warps and of stages, as entries of an author's list."""
    edges = sorted(Edges.find(call, listed).output_sizes)
    if not edges:
        raise UsageError(f"{call.kernel} has no tile to choose: no parameter is an edge of one")
    if len(EDGES) ** len(edges) * len(WARPS) * len(STAGES) > MAX_CANDIDATES:
        raise UsageError(f"{call.kernel} has {len(edges)} edges, which is more than a tile has")
    values = [*itertools.repeat(EDGES, len(edges)), WARPS, STAGES]
    names = [*edges, "num_warps", "num_stages"]
    return [
        Configuration({**listed[0], **dict(zip(names, entry, strict=True))})
        for entry in itertools.product(*values)
    ]


def portfolio(
    log_times: np.ndarray, points: np.ndarray, allowed: np.ndarray, *, count: int, seed: int
) -> list[int]:
    """Return the numbers of the candidates whose list has the best expected speed, greedily.

    ``log_times`` are the expected ones, with a row per problem; ``points`` has a row of numbers per
    candidate, and near candidates have similar errors.
    """
    expected = np.where(allowed, log_times, np.inf)
    promising = np.unique(np.argsort(expected, axis=1, kind="stable")[:, :PROMISING])
    promising = promising[allowed[promising]]
    speeds = _drawn_speeds(log_times[:, promising], points[promising], seed)

    chosen: list[int] = []
    best_speed = np.zeros(len(speeds))
    for _ in range(min(count, len(promising))):
        gain = np.maximum(speeds, best_speed[:, None]).mean(axis=0)
        gain[chosen] = -np.inf
        best = int(np.argmax(gain))
        chosen.append(best)
        best_speed = np.maximum(best_speed, speeds[:, best])
    return [int(promising[i]) for i in chosen]


def _drawn_speeds(log_times: np.ndarray, points: np.ndarray, seed: int) -> np.ndarray:
    """Return drawn speeds relative to the best of each draw; shape (draws, candidates)."""
    # Near candidates err alike, and each has an error of its own.
    scaled = points / (LENGTH * np.maximum(points.std(axis=0), MIN_DEVIATION))
    squared_distances = ((scaled[:, None] - scaled[None]) ** 2).sum(axis=-1)
    covariance = np.exp(-squared_distances / 2) + INDEPENDENT_VARIANCE * np.eye(len(points))
    factor = np.linalg.cholesky(covariance)

    # Errors of each problem follow a Student law, as in a search (`search.ordered`).
    rng = np.random.default_rng(seed)
    draws = []
    for of_problem in log_times:
        errors = rng.standard_normal((DRAWS, len(points))) @ factor.T
        scale = np.sqrt(ERROR_FREEDOM / rng.chisquare(ERROR_FREEDOM, (DRAWS, 1)))
        draws.append(of_problem + SPREAD * scale * errors)
    drawn = np.concatenate(draws)
    return np.exp(drawn.min(axis=1, keepdims=True) - drawn)


def _call(function: Any, arguments: Mapping[str, Any], device: Device) -> Call:
    """Return the call of one problem; UsageError if its sizes are not known."""
    kernel = undecorated_kernel(function)
    missing = [letter for letter in "MNK" if not named_size(arguments, letter)]
    if missing:
        raise UsageError(
            f"sizes are missing: give {', '.join(missing)} with --problem, under the names that "
            "the kernel's arguments have"
        )
    if any(tensor.numel() <= 1 for tensor in find_operands(arguments)):
        raise UsageError("tensors need shapes: give --arg a=fp16[M,K] instead of a=fp16*")
    return Call(
        kernel=kernel.__name__,
        source="",
        problem=Problem(),
        arguments=arguments,
        device=device,
        grid=None,
        function=kernel,
    )


def _expected_log_times(
    call: Call, candidates: Sequence[Configuration], orders: LaunchOrders, example: Configuration
) -> np.ndarray:
    """Return the log of each candidate's expected time, up to a constant."""
    law = shape_law(call, [example, *candidates])
    launches = tile_launches(call, candidates, law)
    if launches is None:
        raise UsageError(f"{call.kernel} does not multiply tiles: no entries are proposed")
    if _is_attention(launches):
        raise UsageError(
            f"{call.kernel} is attention: proposals were no better there than random ones"
        )
    prior = launch_prior(launch_features(launches, call.device), orders)
    return prior.log_mean - np.log(np.maximum(prior.p_valid, MIN_P_VALID))


def _is_attention(launches: Sequence[TileLaunch]) -> bool:
    return any(launch.kept_bytes > 0 for launch in launches)
