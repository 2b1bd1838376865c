"""``foretune store``: list, show, export, merge and forget tuned results."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options, store_vllm
from foretune.cli.output import Output
from foretune.errors import UsageError
from foretune.problem import Problem, shared_values, shown_values
from foretune.values import counted, percent

if TYPE_CHECKING:
    import pandas as pd

    from foretune.tune.store import Store, Subject
    from foretune.tune.store.reader import StoreReader

MAX_VALUE_LENGTH = 16  # characters of a value in a table; --json has all
SHOWN_HASH_DIGITS = 8


def store(
    context: typer.Context,
    kernel: str = typer.Argument(
        "", help="Show this kernel. Default: list all.", show_default=False
    ),
    problem: str = typer.Option(
        "", help="Only problems with these values: M=…,…", show_default=False
    ),
    device: str = typer.Option("", help="Only this device.", show_default=False),
    source: str = typer.Option(
        "", help="Only this version of the code: the first digits of its hash.", show_default=False
    ),
    export: Path | None = typer.Option(
        None,
        help="Write to this file: .json to ship or merge, .parquet to train on, or one of vLLM's "
        "file names, E=…,N=…,device_name=….json.",
    ),
    nearest: Path | None = typer.Option(
        None,
        help="With --export and a tuned file's name, for a GPU that nobody tuned: copy the file of "
        "the nearest GPU of its architecture from this folder of the engine's.",
    ),
    merge: list[Path] = typer.Option(
        [], help="Add an exported file or one of vLLM's tuned files (repeatable)."
    ),
    forget: bool = typer.Option(
        False, "--forget", help="Delete measurements and choices, to tune again."
    ),
    everything: bool = typer.Option(False, "--all", help="With --forget: the whole store."),
    map_: list[str] = typer.Option(
        [], "--map", help="vLLM's name of a parameter: tokens=M (repeatable)."
    ),
) -> None:
    """List what has been tuned; show, export, merge or forget it.

    A kernel's choices for a mixture-of-experts layer can be written as the file that vLLM finds in
    $VLLM_TUNED_CONFIG_FOLDER, and such files can be merged. For these, --problem gives further
    parameters of the kernel's problems, such as top_k=8.
    """
    root = options.root_options(context)
    if sum((export is not None, bool(merge), forget)) > 1:
        raise UsageError("give only one of --export, --merge and --forget")
    if everything and not forget:
        raise UsageError("--all is for --forget: add it")
    output = Output(root.as_json)
    if nearest is not None:
        if export is None:
            raise UsageError("--nearest is for --export …,device_name=….json: add it")
        others = ("problem", "device", "source", "map_")
        options.reject_options(context, others, "--nearest does not take")
        store_vllm.copy_nearest_file(output, nearest, export)
        return
    where = root.required_store
    given_problem = Problem.parse(problem) if problem else None
    chosen = _Chosen(kernel=kernel, device=device, source=source, problem=given_problem)
    if merge:
        options.reject_options(context, ("source",), "--merge does not take")
        layers = store_vllm.TunedLayers.from_options(kernel, device, map_, given_problem)
        _merge(output, where, merge, layers)
    elif forget:
        _forget(output, where, chosen, everything)
    elif export is not None and store_vllm.is_tuned_file(export):
        layers = store_vllm.TunedLayers.from_options(kernel, device, map_, given_problem)
        store_vllm.export_tuned_file(output, open_tuned(where), export, layers)
    elif export is not None:
        options.reject_options(context, ("problem", "device", "source"), "--export does not take")
        _export(output, where, kernel, export)
    elif kernel:
        _show(output, open_tuned(where), chosen)
    else:
        options.reject_options(context, ("problem", "device", "source"), "a list does not take")
        _list(output, open_tuned(where))


@dataclass(frozen=True)
class _Chosen:
    """The part of a store that a command selects: kernel, and perhaps device, code or problem.

    What is empty or None selects all.
    """

    kernel: str
    device: str
    source: str
    problem: Problem | None

    def subjects(self, tuned: "StoreReader") -> "list[Subject]":
        """Return the subjects of this kernel, device and code."""
        return [
            subject
            for subject in tuned.find_subjects(self.kernel)
            if self.device in ("", subject.device) and subject.source.startswith(self.source)
        ]


def open_tuned(path_or_url: str | None) -> "StoreReader":
    """Open a store to read from: a database, or an exported file, which ends in ``.json``.

    A missing store is not created; its first use raises StoreError.
    """
    from foretune.tune.store import Store, StoreFile

    if path_or_url and path_or_url.endswith(".json"):
        return StoreFile(path_or_url)
    return Store(path_or_url, create=False)


def _list(output: Output, tuned: "StoreReader") -> None:
    """Print a table per device and versions, with a row per kernel."""
    summaries = tuned.summary()
    rows_of_heading: dict[str, list[list[str]]] = {}
    for summary in summaries:
        subject = summary.subject
        rows = rows_of_heading.setdefault(f"{subject.device}, {subject.versions}", [])
        rows.append(
            [
                subject.kernel,
                subject.source[:SHOWN_HASH_DIGITS],
                str(summary.problems),
                str(summary.measurements),
                str(summary.failed),
                str(summary.choices),
            ]
        )

    output.say(tuned.name if summaries else f"{tuned.name}: nothing has been tuned yet")
    columns = ("kernel", "code", "problems", "runs", "failed", "chosen")
    for heading, rows in rows_of_heading.items():
        output.say(f"\n{heading}")
        output.table("", columns, rows)
    output.result({"store": tuned.name, "subjects": [asdict(summary) for summary in summaries]})


def _show(output: Output, tuned: "StoreReader", chosen: _Chosen) -> None:
    """Print a table per subject, with a row per problem; JSON has every measurement."""
    problems_of_subject = {
        subject: list(_problem_entries(tuned, subject, chosen.problem))
        for subject in chosen.subjects(tuned)
    }
    if not any(problems_of_subject.values()):
        conditions = [str(c) for c in (chosen.problem, chosen.device, chosen.source) if c]
        raise UsageError(f"{tuned.name} has no {' '.join([chosen.kernel, *conditions])}")

    for subject, problems in problems_of_subject.items():
        if not problems:
            continue
        code = f"{subject.kernel} {subject.source[:SHOWN_HASH_DIGITS]}"
        shared = shared_values([entry["problem"] for entry in problems])
        output.table(
            f"{code} on {subject.device}, {subject.versions}",
            ("problem", "runs", "best ms", "how", "regret", "chosen"),
            [_problem_row(entry, shared) for entry in problems],
        )
        if shared:
            values = _format_values(shown_values(shared))
            output.console.print(f"all problems: {values}", markup=False)

    subjects = [
        {**asdict(subject), "problems": problems}
        for subject, problems in problems_of_subject.items()
    ]
    output.result({"store": tuned.name, "subjects": subjects})


def _export(output: Output, where: str | None, kernel: str, target: Path) -> None:
    """Write a store, or one kernel's part of it, as JSON or as a run table."""
    from foretune.datasets.runs import write_runs

    tuned = open_tuned(where)
    subjects = tuned.find_subjects(kernel or None)
    if target.suffix == ".json":
        tuned.export(target, kernel or None)
        content = counted(len(subjects), "kernel")
    elif target.suffix == ".parquet":
        runs = tuned.runs(subjects=subjects)
        if runs.empty:
            raise UsageError(f"{tuned.name} holds no measurements: there is nothing to train on")
        write_runs(target, _with_local_specs(runs))
        content = counted(len(runs), "run")
    else:
        raise UsageError(f"{target}: use .json, to ship or merge, or .parquet, to train on")
    output.say(f"{target}: {content} of {tuned.name}")
    output.result({"out": str(target), "subjects": len(subjects), "store": tuned.name})


def _with_local_specs(runs: "pd.DataFrame") -> "pd.DataFrame":
    """Return ``runs`` with the specs of this machine's devices, as in a collected table."""
    import pandas as pd

    from foretune.collect.devices import local_cpu, local_gpus
    from foretune.datasets.runs import with_specs_of

    local_devices = [local_cpu(measure=False), *local_gpus()]
    device_of_name = {device.name: device for device in local_devices}
    parts = [
        with_specs_of(rows, device_of_name.get(str(name)))
        for name, rows in runs.groupby("device", sort=False)
    ]
    return pd.concat(parts).sort_index()


def _merge(
    output: Output, where: str | None, files: list[Path], layers: store_vllm.TunedLayers
) -> None:
    """Merge exported files: the newest measurement of each configuration stays."""
    from foretune.tune.store import Store

    target = Store(where)
    merged: list[dict[str, Any]] = []
    imported: list[dict[str, Any]] = []
    for file in files:
        if store_vllm.is_tuned_file(file):
            imported.append(store_vllm.import_tuned_file(output, target, file, layers))
            continue
        new = target.merge(file)
        merged.append({"file": str(file), **asdict(new)})
        output.say(
            f"{file}: {new.measurements} new measurements, {new.choices} new choices, "
            f"{new.unchanged} already known"
        )
    output.result({"store": target.name, "merged": merged, "imported": imported})


def _forget(output: Output, where: str | None, chosen: _Chosen, everything: bool) -> None:
    """Delete the measurements and choices of what was chosen."""
    from foretune.tune.store import Store

    if everything == bool(chosen.kernel):
        raise UsageError("--forget: give either a kernel or --all")
    if everything and (chosen.problem is not None or chosen.device or chosen.source):
        raise UsageError(
            "--forget --all deletes everything: leave --problem, --device and --source out"
        )
    target = Store(where, create=False)
    if everything:
        n_forgotten = target.forget()
    else:
        n_forgotten = sum(
            _forget_subject(target, subject, chosen.problem) for subject in chosen.subjects(target)
        )
    output.say(f"{target.name}: {n_forgotten} measurements and choices forgotten")
    output.result({"store": target.name, "forgotten": n_forgotten})


def _forget_subject(target: "Store", subject: "Subject", chosen: Problem | None) -> int:
    """Delete what a subject has of the chosen problems, and return how much it was."""
    from foretune.tune.store.subject import matches

    if chosen is None:
        return target.forget(subject)
    measured = {measurement.problem for measurement in target.measurements(subject)}
    problems = measured | set(target.choices(subject))
    return sum(target.forget(subject, p) for p in problems if matches(p, chosen))


def _problem_entries(
    tuned: "StoreReader", subject: "Subject", chosen: Problem | None
) -> Iterator[dict[str, Any]]:
    """Yield the chosen problems of a subject, each with its choice and its measurements."""
    from foretune.tune.store import subject as naming

    # The same problem may have been tuned for several lists of candidates: the newest choice stays.
    choices = {}
    oldest_first = sorted(tuned.choices(subject).items(), key=lambda item: item[1].chosen_at)
    for problem, choice in oldest_first:
        choices[naming.without_names(problem, naming.CANDIDATES_TAG)] = choice

    measurements_of_problem = naming.group_by_problem(tuned.measurements(subject))
    problems = sorted({*measurements_of_problem, *choices}, key=naming.sort_key)
    for problem in problems:
        if not naming.matches(problem, chosen):
            continue
        newest_choice = choices.get(problem)
        measurements = measurements_of_problem.get(naming.without_tags(problem), [])
        yield {
            "problem": dict(problem),
            "choice": newest_choice
            and {**asdict(newest_choice), "config": dict(newest_choice.config)},
            "best_ms": min((m.time_ms for m in measurements if m.ok), default=None),
            "measurements": [
                {"config": dict(m.config), "status": m.status.value, "time_ms": m.time_ms}
                for m in measurements
            ],
        }


def _problem_row(entry: Mapping[str, Any], shared: Mapping[str, Any]) -> list[str]:
    """Return a row of the table of problems; it leaves out the values that all problems share."""
    problem = {name: value for name, value in entry["problem"].items() if name not in shared}
    best_ms = entry["best_ms"]
    choice = entry["choice"]
    cells_of_choice = ["–", "–", "–"]
    if choice:
        config = _format_values(choice["config"])
        cells_of_choice = [choice["how"], percent(choice["regret"]), config]
    return [
        _format_values(shown_values(problem)),
        str(len(entry["measurements"])),
        f"{best_ms:.4g}" if best_ms else "–",
        *cells_of_choice,
    ]


def _format_values(values: Mapping[str, Any]) -> str:
    """Return values as ``M=64 N=32``; long ones are cut."""
    return " ".join(f"{name}={_shorten(str(value))}" for name, value in values.items())


def _shorten(text: str) -> str:
    if len(text) <= MAX_VALUE_LENGTH:
        return text
    return text[: MAX_VALUE_LENGTH - 1] + "…"
