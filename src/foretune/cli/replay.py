"""``foretune replay``: compare searchers on recorded search spaces."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.cli.run_files import read_files, require_files
from foretune.errors import UsageError, require_known
from foretune.objective import Objective
from foretune.registry import load, registered
from foretune.support.console import progress_bar
from foretune.support.lazy import require
from foretune.values import counted, short_number

if TYPE_CHECKING:
    import pandas as pd

    from foretune.models.guides.user_guide import UserModel
    from foretune.models.predictor import Predictor
    from foretune.search.replay.recorded import RecordedSpace
    from foretune.search.replay.scores import Figures, Scores

MIN_CONFIGURATIONS = 30
"""Spaces with fewer are left out: a searcher has measured most of them before it can learn.

Chosen by hand: three times the measurements with which a search begins.
"""
MAX_TABLES = 6
"""With more spaces, only their summary is printed; JSON holds each."""
SHOWN_EVALUATIONS = (10, 50, 200)
"""Evaluations after which tables show the share of the optimum; JSON holds more."""
COLUMNS = (
    "searcher",
    "95 %",
    "99 %",
    "hit",
    *(f"at {evaluations}" for evaluations in SHOWN_EVALUATIONS),
    "score",
    "ms",
)
"""Evaluations to 95 and 99 % of the optimum, repeats that reach 95 %, mean shares, overhead."""
SEARCHER = typer.Option(
    ["surrogate", "random"],
    help=f"{options.SEARCHER_HELP} (repeatable).",
    autocompletion=lambda: list(registered("searchers")),
)
PRIOR_HELP = f"Run tables of other devices (repeatable), or a predictor. {options.PREDICTOR_HELP}."


def replay(
    context: typer.Context,
    files: list[Path] = typer.Argument(help="Run tables (Parquet), each of a whole space."),
    searcher: list[str] = SEARCHER,
    budget: int = typer.Option(200, help="Evaluations per repeat."),
    repeats: int = typer.Option(20, help="Independent searches per searcher."),
    prior: list[str] = typer.Option([], help=PRIOR_HELP),
    objective: str = options.OBJECTIVE,
    jobs: int = typer.Option(1, help="Parallel processes; -1: one per core."),
    plot: Path = typer.Option(None, help="Draw the curves: FILE.svg or FILE.png."),
) -> None:
    """Compare searchers on recorded spaces, without hardware.

    A searcher learns a configuration's time only by spending an evaluation on it. --prior trains a
    predictor on the runs of other devices, or names one that was not trained on the space.
    """
    require_files(files)
    for name in searcher:
        require_known("searcher", name, registered("searchers"))

    from foretune.search.replay.curves import check_figure_name, draw_curves
    from foretune.search.replay.recorded import read_spaces
    from foretune.search.replay.replay import check_prior_source, prior_from_source
    from foretune.search.replay.replay import replay as replay_space
    from foretune.search.replay.scores import score_replay

    seed = options.root_options(context).seed
    options.require_positive_int(budget, "--budget")
    options.require_positive_int(repeats, "--repeats")
    if jobs < 1 and jobs != -1:
        raise UsageError(f"--jobs {jobs} is not a number of processes: give 1 or more, or -1")
    for name in searcher:
        load("searchers", name)
    if plot is not None:
        check_figure_name(plot)
        require("matplotlib", "bench", "--plot")
    parsed_objective = Objective.parse(objective)
    names = list(dict.fromkeys(searcher))
    output = Output(options.root_options(context).as_json)

    # What is replayed; a prior that a space cannot have is an error before an hour of replays.
    recorded: list[RecordedSpace] = []
    for file in files:
        recorded += read_spaces(file, parsed_objective)
    spaces = _large_spaces(output, recorded)
    source = _read_prior(prior)
    for space in spaces:
        check_prior_source(source, space)

    results = []
    replayed = []
    with progress_bar() as progress:
        progress.start(f"replaying {counted(len(spaces), 'space')}", len(spaces) * len(names))
        for space in spaces:
            start = prior_from_source(source, space, seed)
            scores = []
            for name in names:
                result = replay_space(
                    space,
                    name,
                    budget=budget,
                    repeats=repeats,
                    seed=seed,
                    prior=start.prior,
                    n_jobs=jobs,
                )
                results.append(result)
                scores.append(score_replay(space, result))
                progress.advance(f"{space.name}: {name}")
            replayed.append(_ReplayedSpace(scores, start.sources))
    _show_all(output, replayed)
    if plot is not None:
        draw_curves(results, plot)
        output.say(f"curves: {plot}")


@dataclass(frozen=True)
class _ReplayedSpace:
    """The scores of all searchers on one space, and the devices that its prior learned from."""

    scores: "list[Scores]"
    prior_devices: list[str]


def _large_spaces(output: Output, recorded: "list[RecordedSpace]") -> "list[RecordedSpace]":
    """Return the spaces with enough configurations to compare searchers; say what is left out."""
    large = [space for space in recorded if len(space) >= MIN_CONFIGURATIONS]
    n_small = len(recorded) - len(large)
    if not large:
        raise UsageError(
            f"these tables hold {counted(n_small, 'space')} of at most "
            f"{counted(max(map(len, recorded)), 'configuration')}: too few to compare searchers, "
            f"which takes {MIN_CONFIGURATIONS}. A campaign measures a few configurations of many "
            "problems; 'foretune collect KERNEL --problems 1 --configs 150 --out FILE' records a "
            "larger space"
        )
    if n_small:
        output.say(
            f"left out: {counted(n_small, 'space')} of fewer than {MIN_CONFIGURATIONS} "
            "configurations"
        )
    return large


def _show_all(output: Output, replayed: "list[_ReplayedSpace]") -> None:
    """Print the scores of every space, with the devices of its prior, and their summary."""
    from foretune.search.replay.scores import summarize

    if len(replayed) <= MAX_TABLES:
        for space in replayed:
            _show_space(output, space)

    scores_of_searchers = zip(*(space.scores for space in replayed), strict=True)
    summaries = [summarize(list(scores)) for scores in scores_of_searchers]
    if len(replayed) > 1:
        title = f"{len(replayed)} spaces: geometric means of evaluations, means of the rest"
        output.table(title, COLUMNS, [_row(summary) for summary in summaries])

    results = []
    for space in replayed:
        devices = {"prior_devices": space.prior_devices}
        results += [{**vars(scores), **devices} for scores in space.scores]
    output.result({"results": results, "summary": summaries})


def _show_space(output: Output, replayed: "_ReplayedSpace") -> None:
    """Print a row per searcher."""
    first = replayed.scores[0]
    output.table(
        f"{first.space}: {first.within_5:,} of {first.configurations:,} configurations within 5 % "
        f"of the best; {first.repeats} × {first.budget} evaluations",
        COLUMNS,
        [_row(scores) for scores in replayed.scores],
    )
    if replayed.prior_devices:
        output.say(f"prior: {', '.join(replayed.prior_devices)}")


def _read_prior(names: list[str]) -> "Predictor | UserModel | pd.DataFrame | None":
    """Read ``--prior``: the runs of all tables, or the predictor; None without either."""
    from foretune.models.guides.request import NONE
    from foretune.models.saved.lookup import read_model

    sources = [name for name in names if name != NONE]
    tables = [Path(name) for name in sources if name.endswith(".parquet")]
    if len(tables) < len(sources) and len(sources) > 1:
        raise UsageError("--prior takes run tables or one predictor: give either")
    if tables:
        return read_files(tables, None)
    return read_model(sources[0]) if sources else None


def _row(figures: "Figures") -> list[str]:
    """Return the cells of `COLUMNS`; a dash for what was not reached."""
    shares = [
        f"{figures.fraction_at[n]:.3f}" if n in figures.fraction_at else "–"
        for n in SHOWN_EVALUATIONS
    ]
    return [
        figures.searcher,
        _evaluations(figures.evals_to_95),
        _evaluations(figures.evals_to_99),
        f"{100 * figures.hit_95:.0f} %",
        *shares,
        f"{figures.score:.2f}" if math.isfinite(figures.score) else "–",
        short_number(figures.overhead_ms, 2),
    ]


def _evaluations(count: float | None) -> str:
    return "–" if count is None else f"{count:.0f}"
