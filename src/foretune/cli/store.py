"""``foretune store``: what has been tuned; moving it between machines, and to and from vLLM."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output, percent
from foretune.errors import UsageError
from foretune.problem import Problem
from foretune.values import parse_value

if TYPE_CHECKING:
    from foretune.plan.engine_files.vllm import ParameterNames
    from foretune.tune.store import Store, Subject
    from foretune.tune.store.reader import StoreReader

KERNEL = typer.Argument(help="Name of a kernel; 'foretune store list' shows them.")
DEVICE = typer.Option(None, help="Device, if there are several.")
NAME_MAP = typer.Option(
    [], "--name", help="The kernel's name for M, E, N, …: 'M=num_tokens' (repeatable)."
)
SET_VALUES = typer.Option(
    [], "--set", help="Set one value in every problem: 'top_k=8' (repeatable)."
)

MAX_VALUE_LENGTH = 16
"""Characters of a value in a table; --json has all."""

MAX_CONFLICTS_SHOWN = 10
"""That a merge shows; --json has all."""

commands = typer.Typer(
    help="See, export, merge or delete what has been tuned.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(commands, name="store")


def open_tuned(path_or_url: str | None) -> "StoreReader":
    """Return a store to read from: a database, or an exported file, which ends in ``.json``.

    Nothing is made where there is none: then the first use of it is an error.

    Raises:
        StoreError: the exported file cannot be read, or is something else.
    """
    from foretune.tune.store import Store

    if path_or_url and path_or_url.endswith(".json"):
        return Store.from_file(path_or_url)
    return Store(path_or_url, create=False)


@commands.command("list")
def list_(store: str = options.STORE, as_json: bool = options.JSON) -> None:
    """List the kernels that have been tuned."""
    tuned, output = open_tuned(store), Output(as_json)
    found = tuned.summary()
    rows: dict[str, list[list[str]]] = {}
    for s in found:
        counts = [str(n) for n in (s.problems, s.measurements, s.failed, s.choices)]
        heading = f"{s.subject.device}, {s.subject.versions}"
        rows.setdefault(heading, []).append([s.subject.kernel, s.subject.source[:8], *counts])
    output.say(tuned.name if rows else f"{tuned.name}: nothing has been tuned yet")
    for heading, listed in rows.items():
        output.say(f"\n{heading}")
        columns = ("kernel", "code", "problems", "runs", "failed", "chosen")
        output.table("", columns, listed)
    output.result({"store": tuned.name, "subjects": [asdict(s) for s in found]})


@commands.command()
def show(
    kernel: str = KERNEL,
    problem: str = typer.Option(None, help="Only problems with these values: M=…,…"),
    store: str = options.STORE,
    as_json: bool = options.JSON,
) -> None:
    """Show the choice for each problem of a kernel, and what it is based on."""
    tuned, output = open_tuned(store), Output(as_json)
    wanted = None if problem is None else Problem.parse(problem)
    found = {s: _problem_entries(tuned, s, wanted) for s in tuned.find_subjects(kernel)}
    if not any(found.values()):
        raise UsageError(f"{tuned.name} has no {kernel} {wanted}")
    for subject, problems in found.items():
        if problems:
            _show_problems(output, subject, problems)
    subjects = [{**asdict(s), "problems": problems} for s, problems in found.items()]
    output.result({"store": tuned.name, "subjects": subjects})


@commands.command()
def export(
    file: Path = typer.Argument(None, help="File to write; or give --out."),
    out: Path = typer.Option(None, "--out", help="The same as FILE."),
    kernel: str = typer.Option(None, help="Only this kernel."),
    store: str = options.STORE,
    as_json: bool = options.JSON,
) -> None:
    """Write the store to one file: .json to ship or merge, .parquet to train on.

    The latter is a run table: what 'foretune train' and 'foretune export' take.
    """
    target = out or file
    if target is None or (file and out):
        raise UsageError("name the file to write, as FILE or by --out: one of the two")
    tuned, output = open_tuned(store), Output(as_json)
    subjects = tuned.find_subjects(kernel)
    message = f"{target}: {len(subjects)} kernels of {tuned.name}"
    if target.suffix == ".json":
        tuned.export(target, kernel)
    elif target.suffix == ".parquet":
        message = f"{target}: {_write_runs(tuned, subjects, target)} runs of {tuned.name}"
    else:
        raise UsageError(f"{target}: end it in .json, to ship or merge, or .parquet, to train on")
    output.say(message)
    output.result({"out": str(target), "subjects": len(subjects), "store": tuned.name})


@commands.command()
def merge(
    files: list[Path] = typer.Argument(help="Exported files."),
    store: str = options.STORE,
    as_json: bool = options.JSON,
) -> None:
    """Take in exported files: the newest measurement of each configuration stays.

    Measurements of the same that contradict each other are listed.
    """
    from foretune.tune.store import Store

    target, output, merged = Store(store), Output(as_json), []
    for file in files:
        report = target.merge(file)
        merged.append({"file": str(file), **asdict(report)})
        output.say(
            f"{file}: {report.measurements} new measurements, {report.choices} new choices, "
            f"{report.unchanged} known already"
        )
        for conflict in report.conflicts[:MAX_CONFLICTS_SHOWN]:
            output.say(f"  {conflict}")
        if (more := len(report.conflicts) - MAX_CONFLICTS_SHOWN) > 0:
            output.say(f"  and {more} more conflicts (--json lists all)")
    output.result({"store": target.name, "merged": merged})


@commands.command()
def forget(
    kernel: str = typer.Argument(None, help="Name of a kernel; or give --all."),
    problem: str = typer.Option(None, help="Only problems with these values: M=…,…"),
    device: str = typer.Option(None, help="Only on this device."),
    source: str = typer.Option(
        None, help="Only this version of the code: the first digits of its hash."
    ),
    everything: bool = typer.Option(False, "--all", help="Everything in the store."),
    store: str = options.STORE,
    as_json: bool = options.JSON,
) -> None:
    """Delete measurements and choices, so that they are made again."""
    from foretune.tune.store import Store

    if everything == (kernel is not None):
        raise UsageError("name a kernel, or give --all: one of the two")
    if everything and (problem or device or source):
        raise UsageError("--all leaves nothing: give it alone")
    target, output = Store(store, create=False), Output(as_json)
    wanted = None if problem is None else Problem.parse(problem)
    if everything:
        forgotten = target.forget()
    else:
        subjects = [
            s
            for s in target.find_subjects(kernel)
            if device in (None, s.device) and s.source.startswith(source or "")
        ]
        forgotten = sum(_forget(target, s, wanted) for s in subjects)
    output.say(f"{target.name}: {forgotten} measurements and choices forgotten")
    output.result({"store": target.name, "forgotten": forgotten})


@commands.command("vllm-import")
def vllm_import(
    files: list[Path] = typer.Argument(help="E=…,N=…,device_name=….json"),
    kernel: str = typer.Option("fused_moe", help="Kernel that they are choices of."),
    device: str = DEVICE,
    name: list[str] = NAME_MAP,
    fixed_values: list[str] = SET_VALUES,
    store: str = options.STORE,
    as_json: bool = options.JSON,
) -> None:
    """Take vLLM's tuned configurations of its fused MoE kernel as choices.

    A kernel that the store knows on that device gets them; what it chose before stands.
    """
    from foretune.plan.engine_files.vllm import import_vllm, read_vllm
    from foretune.tune.store import Store

    target, output, imported = Store(store), Output(as_json), []
    naming = _naming(name, fixed_values)
    for file in files:
        device_name = device or read_vllm(file).layer.device
        known = [s for s in target.subjects() if (s.kernel, s.device) == (kernel, device_name)]
        subject = target.newest_subject(kernel, device_name) if known else None
        subject, new, kept = import_vllm(target, file, kernel, subject, naming)
        imported.append({"file": str(file), **asdict(subject), "choices": new, "kept": kept})
        output.say(f"{file}: {new} choices of {kernel} on {subject.device}, {kept} there already")
    output.result({"store": target.name, "imported": imported})


@commands.command("vllm-export")
def vllm_export(
    kernel: str = KERNEL,
    experts: int = typer.Option(..., help="E: experts on one rank."),
    size: int = typer.Option(..., help="N: intermediate size of an expert on one rank."),
    dtype: str = typer.Option("", help="Quantization, e.g. fp8_w8a8; none for 16-bit weights."),
    block_shape: str = typer.Option(None, help="Blocks of the quantization: N,K."),
    device: str = DEVICE,
    name: list[str] = NAME_MAP,
    fixed_values: list[str] = SET_VALUES,
    out: Path = typer.Option(..., help="Folder; vLLM reads $VLLM_TUNED_CONFIG_FOLDER."),
    store: str = options.STORE,
    as_json: bool = options.JSON,
) -> None:
    """Write what was chosen for one mixture-of-experts layer as a file that vLLM finds."""
    from foretune.plan.engine_files.layer import Layer
    from foretune.plan.engine_files.vllm import export_vllm

    tuned, output = open_tuned(store), Output(as_json)
    subject = tuned.newest_subject(kernel, device)
    layer = Layer(experts, size, subject.device, dtype, _parse_block_shape(block_shape))
    path, count = export_vllm(tuned, out, subject, layer, _naming(name, fixed_values))
    output.say(f"{path}: {count} numbers of tokens")
    output.result({"out": str(path), "tokens": count, **asdict(subject)})


def _write_runs(tuned: "StoreReader", subjects: list["Subject"], path: Path) -> int:
    """Write a run table; return its length."""
    from foretune.datasets import write_runs

    runs = tuned.runs(subjects=subjects)
    if runs.empty:
        raise UsageError(f"{tuned.name} holds no measurements: there is nothing to train on")
    write_runs(path, runs)
    return len(runs)


def _forget(target: "Store", subject: "Subject", wanted: Problem | None) -> int:
    """Forget problems, and what a decorator of the kernel's function calls their runs."""
    from foretune.tune.store.subject import group_by_problem, matches, source_label

    measured = group_by_problem(target.measurements(subject))
    known = [p for p in {*measured, *target.choices(subject)} if matches(p, wanted)]
    origins = {source_label(subject.kernel, p) for p in known}
    forgotten = sum(target.forget(subject, p) for p in known)
    if wanted is None:
        forgotten += target.forget(subject)
    for other in target.subjects():
        for problem, rows in group_by_problem(target.measurements(other)).items():
            if origins & {m.source for m in rows}:
                forgotten += target.forget(other, problem)
    return forgotten


def _problem_entries(
    tuned: "StoreReader", subject: "Subject", wanted: Problem | None
) -> list[dict[str, Any]]:
    from foretune.tune.store.subject import (
        CANDIDATES_TAG,
        group_by_problem,
        matches,
        sort_key,
        without_names,
        without_tags,
    )

    oldest_first = sorted(tuned.choices(subject).items(), key=lambda item: item[1].chosen_at)
    choices = {
        without_names(p, CANDIDATES_TAG): choice for p, choice in oldest_first
    }  # the newest counts
    found = []
    measured = group_by_problem(tuned.measurements(subject))
    for problem in sorted({*measured, *choices}, key=sort_key):
        if not matches(problem, wanted):
            continue
        rows, choice = measured.get(without_tags(problem), []), choices.get(problem)
        found.append(
            {
                "problem": dict(problem),
                "choice": choice and {**asdict(choice), "config": dict(choice.config)},
                "best_ms": min((m.time_ms for m in rows if m.ok), default=None),
                "measurements": [
                    {"config": dict(m.config), "status": m.status.value, "time_ms": m.time_ms}
                    for m in rows
                ],
            }
        )
    return found


def _show_problems(output: Output, subject: "Subject", problems: list[dict[str, Any]]) -> None:
    title = f"{subject.kernel} {subject.source[:8]} on {subject.device}, {subject.versions}"
    columns = ("problem", "runs", "best ms", "how", "regret", "chosen")
    shared = _shared_values([p["problem"] for p in problems])
    output.table(title, columns, [_problem_row(p, shared) for p in problems])
    if shared:
        output.console.print(f"all of them: {_format_values(shared)}", markup=False)  # wrapped


def _shared_values(problems: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what several problems have in common: said once, their rows stay short."""
    if len(problems) == 1:
        return {}
    return {n: v for n, v in problems[0].items() if all(n in p and p[n] == v for p in problems[1:])}


def _problem_row(problem: dict[str, Any], shared: dict[str, Any]) -> list[str]:
    varying = {name: value for name, value in problem["problem"].items() if name not in shared}
    choice, best = problem["choice"], problem["best_ms"]
    return [
        _format_values(varying),
        str(len(problem["measurements"])),
        f"{best:.4g}" if best else "–",
        choice["how"] if choice else "–",
        percent(choice["regret"]) if choice else "–",
        _format_values(choice["config"]) if choice else "–",
    ]


def _format_values(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={_truncate(str(value))}" for name, value in values.items())


def _truncate(text: str) -> str:
    """Return a value as people see it: which arguments are multiples of 16 fills lines."""
    return text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 1] + "…"


def _naming(names: list[str], fixed_values: list[str]) -> "ParameterNames":
    from foretune.plan.engine_files.vllm import ParameterNames

    name_map = _parse_name_values(names, "--name")
    return ParameterNames(
        name_map, {n: parse_value(v) for n, v in _parse_name_values(fixed_values, "--set").items()}
    )


def _parse_name_values(texts: list[str], option: str) -> dict[str, str]:
    values = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise UsageError(f"{option} {text!r} is not of the form NAME=VALUE")
        values[name.strip()] = value.strip()
    return values


def _parse_block_shape(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    n, comma, k = text.partition(",")
    if not (comma and n.strip().isdigit() and k.strip().isdigit()):
        raise UsageError(f"--block-shape {text!r} is not of the form N,K, like 128,128")
    return int(n), int(k)
