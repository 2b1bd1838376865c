"""``foretune replay``: compare searchers on recorded search spaces."""

import math
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
_SHARES = [f"at {n}" for n in SHOWN_EVALUATIONS]
COLUMNS = ("searcher", "95 %", "99 %", "hit", *_SHARES, "score", "ms")
"""Evaluations to 95 and 99 % of the optimum, repeats that reach 95 %, mean shares, overhead."""
SEARCHER = typer.Option(
    ["surrogate", "random"],
    help=f"{options.SEARCHER_HELP} (repeatable).",
    autocompletion=options.names_of("searchers"),
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
    parsed_objective, names = Objective.parse(objective), list(dict.fromkeys(searcher))
    output = Output(options.root_options(context).as_json)
    recorded = [space for file in files for space in read_spaces(file, parsed_objective)]
    spaces = _large_spaces(output, recorded)
    source = _read_prior(prior)
    for space in spaces:  # fail before an hour of replays
        check_prior_source(source, space)
    results, scored = [], []
    with progress_bar() as progress:
        progress.start(f"replaying {counted(len(spaces), 'space')}", len(spaces) * len(names))
        for space in spaces:
            start = prior_from_source(source, space, seed)
            scores = []
            for name in names:
                results.append(replay_space(space, name, budget, repeats, seed, start.prior, jobs))
                scores.append(score_replay(space, results[-1]))
                progress.advance(f"{space.name}: {name}")
            scored.append((scores, start.sources))
    _show_all(output, scored)
    if plot is not None:
        draw_curves(results, plot)
        output.say(f"curves: {plot}")


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


def _show_all(output: Output, scored: "list[tuple[list[Scores], list[str]]]") -> None:
    """Print the scores of every space, with the devices of its prior, and their summary."""
    from foretune.search.replay.scores import summarize

    shown = scored if len(scored) <= MAX_TABLES else []
    for scores, sources in shown:
        first = scores[0]
        within = f"{first.within_5:,} of {first.configurations:,} configurations within 5 %"
        title = f"{within} of the best; {first.repeats} × {first.budget} evaluations"
        output.table(f"{first.space}: {title}", COLUMNS, [_row(s) for s in scores])
        if sources:
            output.say(f"prior: {', '.join(sources)}")
    by_searcher = zip(*(scores for scores, _ in scored), strict=True)
    summaries = [summarize(list(scores)) for scores in by_searcher]
    if len(scored) > 1:
        title = f"{len(scored)} spaces: geometric means of evaluations, means of the rest"
        output.table(title, COLUMNS, [_row(s) for s in summaries])
    results = [{**vars(s), "prior_devices": sources} for scores, sources in scored for s in scores]
    output.result({"results": results, "summary": summaries})


def _read_prior(names: list[str]) -> "Predictor | UserModel | pd.DataFrame | None":
    from foretune.models.guides.request import NONE
    from foretune.models.saved.lookup import read_model

    names = [name for name in names if name != NONE]
    tables = [Path(name) for name in names if name.endswith(".parquet")]
    if len(tables) < len(names) and len(names) > 1:
        raise UsageError("--prior takes run tables or one predictor: give either")
    if tables:
        return read_files(tables, None)
    return read_model(names[0]) if names else None


def _row(s: "Figures") -> list[str]:
    return [
        s.searcher,
        *("–" if n is None else f"{n:.0f}" for n in (s.evals_to_95, s.evals_to_99)),
        f"{100 * s.hit_95:.0f} %",
        *(f"{s.fraction_at[n]:.3f}" if n in s.fraction_at else "–" for n in SHOWN_EVALUATIONS),
        f"{s.score:.2f}" if math.isfinite(s.score) else "–",
        short_number(s.overhead_ms, 2),
    ]
