"""How many evaluations do searchers need on recorded spaces of real devices?

    python benchmarks/search.py SPACES --out search-runs [--searchers tpe,random] [--json]

SPACES holds run tables of whole spaces and, optionally, ``manifest.json``: a space that it calls
incomplete is only learned from. Every searcher searches every space ``--repeats`` times, seeing a
time only by spending an evaluation (`foretune replay` does the same for one space). Prints the ten
spaces on which the first searcher is farthest behind the best of the others, then a table over all
spaces and one per space, with the number of configurations within 5 % of the best: if
there is only one, every search is slow; if there are thousands, every search is fast.

With ``--prior leave-device-out`` a predictor learns from the same kernel's tables of all other
devices, and its predictions are the prior; spaces without such tables are left out. ``upside-down``
and ``shuffled`` spoil them: what does a misleading prior cost? ``all`` runs every searcher alone,
with the predictor and with the shuffled prior, and prints what each needs to 95 % as a multiple of
what it needs alone (geometric mean over spaces; below 1 is better). ``models`` does the same with
three models that learned from ``--share`` of the other devices' rows, drawn at random: Foretune's
predictor, scikit-learn's random forest of log times, and `RuntimeRegressor`.

Resumable: what is in ``--out`` is not searched again. Empty it after changing a searcher.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from machine import heading, markdown, search_packages
from peers import find_searcher
from sklearn.compose import TransformedTargetRegressor
from sklearn.ensemble import RandomForestRegressor
from spaces import complete_spaces

from foretune.cli.output import Output
from foretune.collect import local_device
from foretune.datasets import read_runs
from foretune.errors import PredictorError
from foretune.models import Predictor, RuntimeRegressor
from foretune.search.prior import prior_from_predictor
from foretune.search.replay.curves import draw_curves
from foretune.search.replay.recorded import RecordedSpace
from foretune.search.replay.replay import (
    ReplayResult,
    prior_from_source,
    replay,
    runs_on_other_devices,
)
from foretune.search.replay.scores import (
    EVALUATION_POINTS,
    Scores,
    Summary,
    score_replay,
    summarize,
)
from foretune.search.searcher import Prior
from foretune.support.console import progress_bar
from foretune.support.files import atomic_write
from foretune.support.progress import Progress

SEARCHERS = (
    "surrogate,tpe,cmaes,kt_adaptive_tabu_greywolf,kt_hybrid_vndx,kt_dual_annealing,kt_pso,"
    "kt_genetic_algorithm,kt_simulated_annealing,kt_diff_evo,kt_bayes_opt,random"
)
"""Not ``gp``: it takes most of a second per proposal."""
COLUMNS = [
    "searcher",
    "to 95 %",
    "to 99 %",
    "reach 95 %",
    *(f"f{n}" for n in EVALUATION_POINTS[1:]),
    "score",
    "ms/proposal",
]

MISS = 400
"""Evaluations of a search that most repeats miss."""

PRIORS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "leave-device-out": lambda log_mean: log_mean,
    "upside-down": lambda log_mean: -log_mean,
    "shuffled": lambda log_mean: np.random.default_rng(0).permutation(log_mean),
}
"""What is done to the logarithms that a predictor of the other devices predicts."""
COMPARED = {
    "all": ("alone", "leave-device-out", "shuffled"),
    "models": ("alone", "Predictor", "RandomForest", "RuntimeRegressor"),
}
"""What ``--prior`` compares."""


def main() -> None:
    """Search, and print the tables."""
    options = arguments()
    output = Output(options.json)
    names = options.searchers.split(",")
    for name in names:
        find_searcher(name)
    output.say(heading("Searchers on recorded spaces", local_device()))
    output.say(f"{search_packages()}; {options.repeats} repeats of {options.budget} evaluations")
    tables = sorted(options.spaces.glob("*.parquet"))
    spaces = complete_spaces(options.spaces, options.only)
    runs = pd.concat([read_runs(t) for t in tables]) if options.prior else None
    if runs is not None:
        spaces = [space for space in spaces if has_prior(runs, space)]
        output.say(f"prior: {options.prior}")
    if options.prior in COMPARED:
        compare_priors(spaces, names, runs, options, output)
        return
    results: list[ReplayResult] = []
    scores: list[Scores] = []
    with progress_bar() as progress:
        progress.start("replaying", len(spaces) * len(names))
        for space in spaces:
            found = search(space, names, runs, options, options.prior or "alone", progress)
            results += found
            scores += [score_replay(space, result) for result in found]
    summaries = [summarize([s for s in scores if s.searcher == name]) for name in names]
    summaries.sort(key=lambda s: s.evals_to_95)
    if len(names) > 1:
        output.say(f"\nWhere {names[0]} is farthest behind the best other: evaluations to 95 %\n")
        output.say(markdown(["space", names[0], "best other", "ratio"], worst(scores, names[0])))
    output.say(f"\n{len(spaces)} spaces: geometric means of evaluations, means of the rest\n")
    output.say(markdown(COLUMNS, [row(s) for s in summaries]))
    for space in spaces:
        output.say(
            f"**{space.name}** ({space.device.name}): {len(space):,} configurations, "
            f"{space.count_within():,} within 5 % of the best\n"
        )
        output.say(markdown(COLUMNS, [row(s) for s in scores if s.space == space.name]))
    if options.plot:
        draw_curves(results, options.plot)
    output.result(
        {
            "results": [vars(s) for s in scores],
            "summary": [vars(s) for s in summaries],
            "prior": options.prior,
        }
    )


def compare_priors(
    spaces: list[RecordedSpace],
    names: list[str],
    runs: pd.DataFrame | None,
    options: argparse.Namespace,
    output: Output,
) -> None:
    """Print what every searcher needs to 95 % alone and with each of several priors."""
    compared = COMPARED[options.prior]
    summaries: dict[str, list[Summary]] = {name: [] for name in names}
    with progress_bar() as progress:
        progress.start("replaying", len(spaces) * len(names) * len(compared))
        for prior in compared:
            found = [
                [
                    score_replay(space, r)
                    for r in search(space, names, runs, options, prior, progress)
                ]
                for space in spaces
            ]
            for name, scores in zip(names, zip(*found, strict=True), strict=True):
                summaries[name].append(summarize(scores))
    output.say(f"\n{len(spaces)} spaces: {', '.join(space.name for space in spaces)}\n")
    lines = []
    ratios = {}
    for name, (alone, *guided) in summaries.items():
        times = [s.evals_to_95 / alone.evals_to_95 for s in guided]
        ratios[name] = dict(zip(compared[1:], times, strict=True))
        cells = [f"{s.evals_to_95:.1f}" for s in (alone, *guided)]
        more = [f"{s.evals_to_99:.1f}" for s in (alone, *guided)]
        shares = [f"{s.fraction_at[EVALUATION_POINTS[1]]:.3f}" for s in (alone, *guided)]
        lines.append([name, *cells, *more, *(f"{t:.2f}" for t in times), *shares])
    columns = [f"{to} {prior}" for to in ("95 %", "99 %") for prior in compared]
    columns += [f"{prior} / alone" for prior in compared[1:]]
    columns += [f"f10 {prior}" for prior in compared]
    output.say(markdown(["searcher", *columns], lines))
    output.result(
        {
            "spaces": [space.name for space in spaces],
            "ratios": ratios,
            "summary": {name: [vars(s) for s in each] for name, each in summaries.items()},
        }
    )


def arguments() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("spaces", type=Path, help="folder of run tables")
    parser.add_argument("--searchers", default=SEARCHERS, help="separated by commas")
    parser.add_argument(
        "--only",
        default="",
        help="tables with one of these texts, separated by commas, in their name",
    )
    parser.add_argument("--prior", choices=(*PRIORS, *COMPARED))
    parser.add_argument("--share", type=float, default=0.05, help="share of rows for models")
    parser.add_argument("--budget", type=int, default=200, help="evaluations per repeat")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the repeats")
    parser.add_argument("--out", type=Path, default=Path("search-runs"), help="folder of results")
    parser.add_argument("--plot", type=Path, help="draw the curves: FILE.svg or FILE.png")
    parser.add_argument("--json", action="store_true", help="JSON on stdout, tables on stderr")
    return parser.parse_args()


def has_prior(runs: pd.DataFrame, space: RecordedSpace) -> bool:
    """Return whether ``runs`` hold the kernel of ``space`` on another device."""
    try:
        runs_on_other_devices(runs, space)
    except PredictorError:
        return False
    return True


def search(
    space: RecordedSpace,
    names: list[str],
    runs: pd.DataFrame | None,
    options: argparse.Namespace,
    spoilt: str,
    progress: Progress,
) -> list[ReplayResult]:
    """Return one replay per searcher, from ``--out`` where it is there already."""
    prior: Prior | None = None
    results = []
    for name in names:
        how = f"{options.budget}x{options.repeats}-{options.seed}-{spoilt}"
        path = options.out / f"{space.name}--{name}--{how}.npz".replace("/", "_")
        if path.exists():
            stored = np.load(path)
            result = ReplayResult(space.name, name, stored["curves"], stored["overhead_ms"])
        else:
            if runs is not None and spoilt != "alone" and prior is None:
                prior = prior_of_others(runs, space, options, spoilt)
            kind = find_searcher(name)
            seed = options.seed
            found = replay(space, kind, options.budget, options.repeats, seed, prior, options.jobs)
            result = replace(found, searcher=name)
            keep(path, curves=result.curves, overhead_ms=result.overhead_ms)
        results.append(result)
        progress.advance(f"{space.name}: {name}")
    return results


def prior_of_others(
    runs: pd.DataFrame, space: RecordedSpace, options: argparse.Namespace, spoilt: str
) -> Prior:
    """Return the prior from other devices, spoilt if that is wanted; kept in ``--out``."""
    if spoilt not in PRIORS:
        return prior_of_model(runs_on_other_devices(runs, space), space, options, spoilt)
    path = options.out / f"{space.name}--prior-{options.seed}.npz".replace("/", "_")
    if path.exists():
        stored = np.load(path)
        prior = Prior(stored["log_mean"], float(stored["log_spread"]), stored["p_valid"])
    else:
        found = prior_from_source(runs, space, options.seed).prior
        assert found is not None
        prior = found
        keep(path, log_mean=prior.log_mean, log_spread=prior.log_spread, p_valid=prior.p_valid)
    return replace(prior, log_mean=PRIORS[spoilt](prior.log_mean))


def prior_of_model(
    rows: pd.DataFrame, space: RecordedSpace, options: argparse.Namespace, kind: str
) -> Prior:
    """Return the prior of a model that learned from ``--share`` of ``rows``."""
    rows = rows.sample(frac=options.share, random_state=options.seed)
    model: Any
    if kind == "Predictor":
        model = Predictor(seed=options.seed).fit(rows)
    else:
        rows = rows[rows["status"] == "ok"].dropna(axis=1)
        named = [c for c in rows if c.startswith(("problem.", "config."))]
        X = pd.get_dummies(rows[named])
        y = rows["time_ms"]
        forest = RandomForestRegressor(random_state=options.seed)
        model = (
            TransformedTargetRegressor(forest, func=np.log, inverse_func=np.exp).fit(X, y)
            if kind == "RandomForest"
            else RuntimeRegressor(seed=options.seed).fit(rows[["device", *named]], y)
        )
    return prior_from_predictor(model, space.problem, space.space, space.device)


def keep(path: Path, **arrays: Any) -> None:
    """Write arrays to ``path``; an interrupted run leaves nothing that looks whole."""
    with atomic_write(path) as new, new.open("wb") as file:
        np.savez_compressed(file, **arrays)


def worst(scores: list[Scores], name: str, n: int = 10) -> list[list[str]]:
    """Return the ``n`` spaces on which ``name`` is farthest behind the best other; misses are 400.

    If most repeats of a search miss, it has no median, so hit rates are compared.
    """

    def needed(score: Scores) -> float:
        return score.evals_to_95 or MISS + (1.0 - score.hit_95)

    def cell(score: Scores) -> str:
        return f"{score.evals_to_95 or '–'} ({score.hit_95:.2f})"

    ratios = []
    lines = []
    for space in dict.fromkeys(score.space for score in scores):
        of_space = [score for score in scores if score.space == space]
        searched = next(score for score in of_space if score.searcher == name)
        best = min((score for score in of_space if score.searcher != name), key=needed)
        ratio = needed(searched) / needed(best)
        ratios.append(ratio)
        lines.append([space, cell(searched), f"{best.searcher} {cell(best)}", f"{ratio:.2f}"])

    worst_first = np.argsort([-ratio for ratio in ratios], kind="stable")
    return [lines[i] for i in worst_first[:n]]


def row(s: Scores | Summary) -> list[str]:
    """Return a line of a table."""
    return [
        s.searcher,
        *("–" if n is None else f"{n:.0f}" for n in (s.evals_to_95, s.evals_to_99)),
        f"{s.hit_95:.2f}",
        *(f"{s.fraction_at[n]:.3f}" if n in s.fraction_at else "–" for n in EVALUATION_POINTS[1:]),
        f"{s.score:.2f} ± {s.score_error:.2f}" if np.isfinite(s.score) else "–",
        f"{s.overhead_ms:.2g}",
    ]


if __name__ == "__main__":
    main()
