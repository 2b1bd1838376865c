"""``foretune store``: list, show, export, merge and forget tuned results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output
from foretune.errors import UsageError
from foretune.problem import Problem, shared_values, shown_values
from foretune.values import counted, percent

if TYPE_CHECKING:
    import pandas as pd

    from foretune.tune.doors.vllm import ParameterNames
    from foretune.tune.store import Store, Subject
    from foretune.tune.store.reader import StoreReader

MAX_VALUE_LENGTH = 16  # characters of a value in a table; --json has all
VLLM_KERNEL = "fused_moe"
VLLM_MARK = ",device_name="  # part of the names of vLLM's tuned files


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
    output, where = Output(root.as_json), root.required_store
    wanted = Problem.parse(problem) if problem else None
    chosen = _Chosen(kernel, device, source, wanted)
    if merge:
        options.reject_options(context, ("source",), "--merge does not take")
        _merge(output, where, merge, (kernel or VLLM_KERNEL, device, _naming(map_, wanted)))
    elif forget:
        _forget(output, where, chosen, everything)
    elif export is not None and VLLM_MARK in export.name:
        _export_vllm(output, where, kernel or VLLM_KERNEL, export, _naming(map_, wanted))
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
    """The part of a store that a command selects: kernel, and perhaps device, code or problem."""

    kernel: str
    device: str
    source: str
    problem: Problem | None

    def subjects(self, tuned: "StoreReader") -> "list[Subject]":
        found = [s for s in tuned.find_subjects(self.kernel) if self.device in ("", s.device)]
        return [s for s in found if s.source.startswith(self.source)]


def open_tuned(path_or_url: str | None) -> "StoreReader":
    """Open a store to read from: a database, or an exported file, which ends in ``.json``.

    A missing store is not created; its first use raises StoreError.
    """
    from foretune.tune.store import Store, StoreFile

    if path_or_url and path_or_url.endswith(".json"):
        return StoreFile(path_or_url)
    return Store(path_or_url, create=False)


def _list(output: Output, tuned: "StoreReader") -> None:
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


def _show(output: Output, tuned: "StoreReader", chosen: _Chosen) -> None:
    found = {s: _problem_entries(tuned, s, chosen.problem) for s in chosen.subjects(tuned)}
    if not any(found.values()):
        conditions = " ".join(str(p) for p in (chosen.problem, chosen.device, chosen.source) if p)
        raise UsageError(f"{tuned.name} has no {chosen.kernel} {conditions}".rstrip())
    for subject, problems in found.items():
        if problems:
            code = f"{subject.kernel} {subject.source[:8]}"
            shared = shared_values([p["problem"] for p in problems])
            output.table(
                f"{code} on {subject.device}, {subject.versions}",
                ("problem", "runs", "best ms", "how", "regret", "chosen"),
                [_problem_row(p, shared) for p in problems],
            )
            if shared:
                values = _format_values(shown_values(shared))
                output.console.print(f"all problems: {values}", markup=False)
    subjects = [{**asdict(s), "problems": problems} for s, problems in found.items()]
    output.result({"store": tuned.name, "subjects": subjects})


def _export(output: Output, where: str | None, kernel: str, target: Path) -> None:
    from foretune.datasets.runs import write_runs

    tuned = open_tuned(where)
    subjects = tuned.find_subjects(kernel or None)
    message = f"{target}: {counted(len(subjects), 'kernel')} of {tuned.name}"
    if target.suffix == ".json":
        tuned.export(target, kernel or None)
    elif target.suffix == ".parquet":
        runs = tuned.runs(subjects=subjects)
        if runs.empty:
            raise UsageError(f"{tuned.name} holds no measurements: there is nothing to train on")
        write_runs(target, _with_local_specs(runs))
        message = f"{target}: {counted(len(runs), 'run')} of {tuned.name}"
    else:
        raise UsageError(f"{target}: use .json, to ship or merge, or .parquet, to train on")
    output.say(message)
    output.result({"out": str(target), "subjects": len(subjects), "store": tuned.name})


def _with_local_specs(runs: "pd.DataFrame") -> "pd.DataFrame":
    """Return ``runs`` with the specs of this machine's devices, as in a collected table."""
    import pandas as pd

    from foretune.collect.devices import local_cpu, local_gpus
    from foretune.datasets.runs import with_specs_of

    local = {device.name: device for device in (local_cpu(measure=False), *local_gpus())}
    by_device = runs.groupby("device", sort=False)
    return pd.concat([with_specs_of(rows, local.get(str(n))) for n, rows in by_device]).sort_index()


def _export_vllm(
    output: Output, where: str | None, kernel: str, target: Path, naming: "ParameterNames"
) -> None:
    from foretune.tune.doors.vllm import Layer, export_vllm

    tuned, layer = open_tuned(where), Layer.from_file(target)
    subject = tuned.newest_subject(kernel, layer.device)
    path, count = export_vllm(tuned, target.parent, subject, layer, naming)
    output.say(f"{path}: {count} numbers of tokens")
    output.result({"out": str(path), "tokens": count, **asdict(subject)})


def _merge(
    output: Output,
    where: str | None,
    files: list[Path],
    vllm: "tuple[str, str, ParameterNames]",
) -> None:
    """Merge exported files: the newest measurement of each configuration stays."""
    from foretune.tune.store import Store

    target, merged, imported = Store(where), [], []
    for file in files:
        if VLLM_MARK in file.name:
            imported.append(_import_vllm(output, target, file, *vllm))
            continue
        new = target.merge(file)
        merged.append({"file": str(file), **asdict(new)})
        found = f"{new.measurements} new measurements, {new.choices} new choices"
        output.say(f"{file}: {found}, {new.unchanged} already known")
    output.result({"store": target.name, "merged": merged, "imported": imported})


def _import_vllm(
    output: Output, target: "Store", file: Path, kernel: str, device: str, naming: "ParameterNames"
) -> dict[str, Any]:
    """Add vLLM's choices to the newest version of the kernel; existing choices stay."""
    from foretune.tune.doors.vllm import import_vllm, read_vllm

    device_name = device or read_vllm(file).layer.device
    known = [s for s in target.subjects() if (s.kernel, s.device) == (kernel, device_name)]
    subject = target.newest_subject(kernel, device_name) if known else None
    subject, new, kept = import_vllm(target, file, kernel, subject, naming)
    output.say(f"{file}: {new} choices of {kernel} on {subject.device}, {kept} already known")
    return {"file": str(file), **asdict(subject), "choices": new, "kept": kept}


def _naming(maps: list[str], extra: Mapping[str, Any] | None) -> "ParameterNames":
    from foretune.tune.doors.vllm import ParameterNames

    names = options.parse_key_values(maps, "--map", "NAME=VALUE")
    return ParameterNames({theirs: ours for ours, theirs in names.items()}, dict(extra or {}))


def _forget(output: Output, where: str | None, chosen: _Chosen, everything: bool) -> None:
    from foretune.tune.store import Store

    if everything == bool(chosen.kernel):
        raise UsageError("--forget: give either a kernel or --all")
    if everything and (chosen.problem is not None or chosen.device or chosen.source):
        unused = "--problem, --device and --source"
        raise UsageError(f"--forget --all deletes everything: leave {unused} out")
    target = Store(where, create=False)
    if everything:
        forgotten = target.forget()
    else:
        found = chosen.subjects(target)
        forgotten = sum(_forget_subject(target, s, chosen.problem) for s in found)
    output.say(f"{target.name}: {forgotten} measurements and choices forgotten")
    output.result({"store": target.name, "forgotten": forgotten})


def _forget_subject(target: "Store", subject: "Subject", wanted: Problem | None) -> int:
    from foretune.tune.store.subject import matches

    if wanted is None:
        return target.forget(subject)
    known = {m.problem for m in target.measurements(subject)} | {*target.choices(subject)}
    return sum(target.forget(subject, p) for p in known if matches(p, wanted))


def _problem_entries(
    tuned: "StoreReader", subject: "Subject", wanted: Problem | None
) -> list[dict[str, Any]]:
    from foretune.tune.store import subject as naming

    oldest_first = sorted(tuned.choices(subject).items(), key=lambda item: item[1].chosen_at)
    untagged = ((naming.without_names(p, naming.CANDIDATES_TAG), c) for p, c in oldest_first)
    choices = dict(untagged)  # the newest stays
    measured = naming.group_by_problem(tuned.measurements(subject))
    found = []
    for problem in sorted({*measured, *choices}, key=naming.sort_key):
        if naming.matches(problem, wanted):
            rows, choice = measured.get(naming.without_tags(problem), []), choices.get(problem)
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


def _problem_row(problem: dict[str, Any], shared: dict[str, Any]) -> list[str]:
    varying = {name: value for name, value in problem["problem"].items() if name not in shared}
    choice, best, chosen = problem["choice"], problem["best_ms"], ["–", "–", "–"]
    if choice:
        chosen = [choice["how"], percent(choice["regret"]), _format_values(choice["config"])]
    runs = str(len(problem["measurements"]))
    return [_format_values(shown_values(varying)), runs, f"{best:.4g}" if best else "–", *chosen]


def _format_values(values: Mapping[str, Any]) -> str:
    texts = ((name, str(value)) for name, value in values.items())
    return " ".join(
        f"{name}={text if len(text) <= MAX_VALUE_LENGTH else text[: MAX_VALUE_LENGTH - 1] + '…'}"
        for name, text in texts
    )
