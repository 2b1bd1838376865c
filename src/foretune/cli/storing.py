"""``foretune store``: what has been tuned; moving it between machines, and to and from vLLM."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from foretune.cli import options
from foretune.cli.output import Output, percent
from foretune.errors import UsageError
from foretune.mapping import parse_value
from foretune.problem import Problem

if TYPE_CHECKING:
    from foretune.tune.store import Store, Subject
    from foretune.tune.store.tuned import Tuned
    from foretune.tune.vllm import Naming

STORE = typer.Option(
    None, "--store", help="Path or database URL; else $FORETUNE_STORE, else your cache folder."
)
KERNEL = typer.Argument(help="Name of a kernel; 'foretune store list' shows them.")
DEVICE = typer.Option(None, help="On this device, where there are several.")
NAMES = typer.Option(
    [], "--name", help="What the kernel calls M, E, N, …: 'M=num_tokens' (repeatable)."
)
ALSO = typer.Option([], "--set", help="What every problem holds too: 'top_k=8' (repeatable).")

commands = typer.Typer(
    help="What has been tuned: list, show, export, merge, forget; to and from vLLM.",
    no_args_is_help=True,
)


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.add_typer(commands, name="store")


def open_tuned(where: str | None) -> "Tuned":
    """Return a store to read from: a database, or an exported file, which ends in ``.json``.

    Raises:
        StoreError: the file cannot be read, or is something else.
    """
    from foretune.tune.store import Store

    return Store.of_file(where) if where and where.endswith(".json") else Store(where)


@commands.command("list")
def list_(store: str = STORE, as_json: bool = options.JSON) -> None:
    """List the kernels, and how much is known of each."""
    tuned, output = open_tuned(store), Output(as_json)
    found = tuned.summary()
    rows = [
        [s.subject.kernel, s.subject.source[:8], s.subject.device, s.subject.versions]
        + [str(n) for n in (s.problems, s.measurements, s.failed, s.choices)]
        for s in found
    ]
    columns = ("kernel", "code", "device", "versions", "problems", "runs", "failed", "chosen")
    if rows:
        output.table(tuned.name, columns, rows)
    else:
        output.say(f"{tuned.name}: nothing has been tuned yet")
    output.result({"store": tuned.name, "subjects": [asdict(s) for s in found]})


@commands.command()
def show(
    kernel: str = KERNEL,
    problem: str = typer.Option(None, help="Only problems with these values: M=…,…"),
    store: str = STORE,
    as_json: bool = options.JSON,
) -> None:
    """Show what was chosen for each problem of a kernel, and from what."""
    tuned, output = open_tuned(store), Output(as_json)
    wanted = None if problem is None else Problem.parse(problem)
    found = {s: _problems(tuned, s, wanted) for s in tuned.of_kernel(kernel)}
    if not any(found.values()):
        raise UsageError(f"{tuned.name} has no {kernel} {wanted}")
    for subject, problems in found.items():
        title = f"{subject.kernel} {subject.source[:8]} on {subject.device}, {subject.versions}"
        columns = ("problem", "runs", "best ms", "how", "regret", "chosen")
        if problems:
            output.table(title, columns, [_shown(p) for p in problems])
    subjects = [{**asdict(s), "problems": problems} for s, problems in found.items()]
    output.result({"store": tuned.name, "subjects": subjects})


@commands.command()
def export(
    file: Path = typer.Argument(help="File to write, JSON."),
    kernel: str = typer.Option(None, help="Only this kernel."),
    store: str = STORE,
    as_json: bool = options.JSON,
) -> None:
    """Write the store to one file, to be merged elsewhere or shipped with a library."""
    tuned, output = open_tuned(store), Output(as_json)
    tuned.export(file, kernel)
    count = len(tuned.of_kernel(kernel))
    output.say(f"{file}: {count} kernels of {tuned.name}")
    output.result({"out": str(file), "subjects": count, "store": tuned.name})


@commands.command()
def merge(
    files: list[Path] = typer.Argument(help="Exported files."),
    store: str = STORE,
    as_json: bool = options.JSON,
) -> None:
    """Take in exported files: the newest measurement of each configuration stays."""
    from foretune.tune.store import Store

    target, output, merged = Store(store), Output(as_json), []
    for file in files:
        news = target.merge(file)
        merged.append({"file": str(file), **asdict(news)})
        output.say(
            f"{file}: {news.measurements} new measurements, {news.choices} new choices, "
            f"{news.unchanged} known already"
        )
    output.result({"store": target.name, "merged": merged})


@commands.command()
def forget(
    kernel: str = typer.Argument(None, help="Name of a kernel; or give --all."),
    problem: str = typer.Option(None, help="Only problems with these values: M=…,…"),
    device: str = typer.Option(None, help="Only on this device."),
    source: str = typer.Option(None, help="Only this code; its first digits will do."),
    everything: bool = typer.Option(False, "--all", help="Everything in the store."),
    store: str = STORE,
    as_json: bool = options.JSON,
) -> None:
    """Delete what is known, so that it is tuned again when it is next asked for."""
    from foretune.tune.store import Store

    if everything == (kernel is not None):
        raise UsageError("name a kernel, or give --all: one of the two")
    if everything and (problem or device or source):
        raise UsageError("--all leaves nothing: give it alone")
    target, output = Store(store), Output(as_json)
    wanted = None if problem is None else Problem.parse(problem)
    if everything:
        forgotten = target.forget()
    else:
        subjects = [
            s
            for s in target.of_kernel(kernel)
            if device in (None, s.device) and s.source.startswith(source or "")
        ]
        forgotten = sum(_forget(target, s, wanted) for s in subjects)
    output.say(f"{target.name}: {forgotten} measurements and choices forgotten")
    output.result({"store": target.name, "forgotten": forgotten})


@commands.command("vllm-import")
def vllm_import(
    files: list[Path] = typer.Argument(help="E=…,N=…,device_name=….json"),
    kernel: str = typer.Option("fused_moe", help="The kernel they become choices of."),
    device: str = DEVICE,
    name: list[str] = NAMES,
    also: list[str] = ALSO,
    store: str = STORE,
    as_json: bool = options.JSON,
) -> None:
    """Take vLLM's tuned configurations of its fused MoE kernel as choices.

    A kernel that the store knows on that device gets them; what it chose before stands.
    """
    from foretune.tune.store import Store
    from foretune.tune.vllm import import_vllm, read_vllm

    target, output, imported = Store(store), Output(as_json), []
    naming = _naming(name, also)
    for file in files:
        where = device or read_vllm(file).layer.device
        known = [s for s in target.subjects() if (s.kernel, s.device) == (kernel, where)]
        subject = target.newest(kernel, where) if known else None
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
    name: list[str] = NAMES,
    also: list[str] = ALSO,
    out: Path = typer.Option(..., help="Folder; vLLM reads $VLLM_TUNED_CONFIG_FOLDER."),
    store: str = STORE,
    as_json: bool = options.JSON,
) -> None:
    """Write what was chosen for one mixture-of-experts layer as a file that vLLM finds."""
    from foretune.tune.vllm import Layer, export_vllm

    tuned, output = open_tuned(store), Output(as_json)
    subject = tuned.newest(kernel, device)
    layer = Layer(experts, size, subject.device, dtype, _block(block_shape))
    path, count = export_vllm(tuned, out, subject, layer, _naming(name, also))
    output.say(f"{path}: {count} numbers of tokens")
    output.result({"out": str(path), "tokens": count, **asdict(subject)})


def _forget(target: "Store", subject: "Subject", wanted: Problem | None) -> int:
    from foretune.tune.store.tuned import by_problem, matches

    if wanted is None:
        return target.forget(subject)
    known = {*by_problem(target.measurements(subject)), *target.choices(subject)}
    return sum(target.forget(subject, p) for p in known if matches(p, wanted))


def _problems(tuned: "Tuned", subject: "Subject", wanted: Problem | None) -> list[dict[str, Any]]:
    from foretune.tune.store.tuned import by_problem, by_value, matches, plain

    choices = {plain(p): choice for p, choice in tuned.choices(subject).items()}
    found = []
    measured = by_problem(tuned.measurements(subject))
    for problem in sorted({*measured, *choices}, key=by_value):
        if not matches(problem, wanted):
            continue
        rows, choice = measured.get(problem, []), choices.get(problem)
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


def _shown(problem: dict[str, Any]) -> list[str]:
    choice, best = problem["choice"], problem["best_ms"]
    return [
        _words(problem["problem"]),
        str(len(problem["measurements"])),
        f"{best:.4g}" if best else "–",
        choice["how"] if choice else "–",
        percent(choice["regret"]) if choice else "–",
        _words(choice["config"]) if choice else "–",
    ]


def _words(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())


def _naming(names: list[str], also: list[str]) -> "Naming":
    from foretune.tune.vllm import Naming

    pairs = _pairs(names, "--name")
    return Naming(pairs, {n: parse_value(v) for n, v in _pairs(also, "--set").items()})


def _pairs(texts: list[str], option: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not (equals and name.strip() and value.strip()):
            raise UsageError(f"{option} {text!r} is not of the form NAME=VALUE")
        pairs[name.strip()] = value.strip()
    return pairs


def _block(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    n, comma, k = text.partition(",")
    if not (comma and n.strip().isdigit() and k.strip().isdigit()):
        raise UsageError(f"--block-shape {text!r} is not of the form N,K, like 128,128")
    return int(n), int(k)
