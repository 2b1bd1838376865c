"""``foretune plan serve … --prove``: options of a proof, and what it prints."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import typer

from foretune.cli import options
from foretune.cli.options import RootOptions
from foretune.cli.output import Output
from foretune.errors import UsageError
from foretune.support.console import progress_bar
from foretune.support.progress import Progress
from foretune.values import parse_value

if TYPE_CHECKING:
    from foretune.cli.plan_answer import Answer
    from foretune.plan import Requirements
    from foretune.plan.prove.command import PlannedCommand, UserCommand
    from foretune.plan.prove.prover import Prover
    from foretune.plan.prove.saving import ProofFolder
    from foretune.plan.serve.deployments.calibration import MeasuredLatencies
    from foretune.plan.serve.deployments.deployment import Deployment
    from foretune.values import Value

PROVE_PANEL = "Proof (--prove)"
DEFAULT_OUT = Path("proofs")
"""Folder of proofs without ``--out``."""
OWN = "own"
"""Foretune's load generator."""
SOURCE_CHARACTERS = 16
"""Characters of a command's hash that name it in the store."""
_option = partial(typer.Option, rich_help_panel=PROVE_PANEL)
PROVE = _option(
    False,
    "--prove",
    help="Start the best plan's server here, load it, compare, and try what promises more.",
)
COMMAND = _option(
    "",
    help="Start this instead: 'llama-server -m m.gguf --port {port} -np {requests}'. Also "
    "{step_tokens}, {threads}, {context}, {cache_tokens}, {cache_gib}.",
)
URL = _option("", help="A server that runs: load it, but start nothing. http://127.0.0.1:8000")
SSH = _option("", help="Start the server on this host, which ssh reaches without a question.")
SERVER_ARGS = _option("", help="Words appended to the plan's command: '--load-format dummy'.")
FLAGS = _option(
    [],
    "--flag",
    help="Values to try: requests=8,16, step_tokens, cache_share, chunked=on,off, prefix_cache, "
    "graphs, threads, or a flag of the engine: --block-size=16,32 (repeatable).",
)
LOADS = _option("", help="Requests in flight, beside the plan's: 1,4,16.")
LOAD_WITH = _option(
    OWN,
    help="What sends the requests: own, vllm (bench serve), sglang (bench_serving) or guidellm.",
)
STARTS = _option(6, help="Maximum starts of the search.")
PAIRS = _option(3, help="Pairs of starts that compare a winner with the plan's setting.")
SECONDS = _option(None, "--prove-seconds", help="Start nothing after this many seconds.")
REPEATS = _option(2, help="Runs of each load.")
START_LIMIT = _option(600.0, "--start-limit", help="Maximum seconds until a server answers.")


@dataclass(frozen=True)
class ProveOptions:
    """The options of a proof, as given."""

    prove: bool
    command: str
    url: str
    ssh: str
    server_args: str
    flags: Sequence[str]
    loads: str
    load_with: str
    starts: int
    pairs: int
    seconds: float | None
    repeats: int
    start_limit: float

    def check(self, requirements: "Requirements") -> None:
        """Raise UsageError for wrong options, before anything is planned."""
        needs_prove = {
            "--command": self.command,
            "--url": self.url,
            "--ssh": self.ssh,
            "--server-args": self.server_args,
            "--flag": self.flags,
            "--loads": self.loads,
            "--load-with": self.load_with if self.load_with != OWN else "",
        }
        given = [name for name, value in needs_prove.items() if value]
        if given and not self.prove:
            raise UsageError(f"{given[0]} is an option of a proof: add --prove")
        started = [name for name in given if name in ("--command", "--ssh", "--flag")]
        if self.url and started:
            raise UsageError(f"--url is a server that runs: leave {started[0]} out")
        options.require_positive_int(self.repeats, "--repeats")
        options.require_positive(self.start_limit, "--start-limit")
        if self.prove:
            self._check_proof(requirements)

    def _check_proof(self, requirements: "Requirements") -> None:
        """Parse what a proof needs, only for its errors."""
        from foretune.plan.prove.command import UserCommand
        from foretune.plan.prove.load_tools import find_load_tool
        from foretune.plan.prove.prover import Budget
        from foretune.plan.prove.score import check_goal

        check_goal(requirements)
        find_load_tool(self.load_with, tokenizer="")
        Budget(starts=self.starts, pairs=self.pairs, seconds=self.seconds)
        _parse_loads(self.loads)
        _parse_flags(self.flags)
        _parse_words(self.server_args)
        if self.command:
            UserCommand(self.command)
        parts = urlsplit(self.url)
        if self.url and (parts.scheme not in ("http", "https") or not parts.hostname):
            raise UsageError(f"--url {self.url}: write http://127.0.0.1:8000")


def prove_answer(
    answered: "Answer",
    corrections: "MeasuredLatencies",
    given: ProveOptions,
    output: Output,
    root: RootOptions,
    out: Path | None,
) -> dict[str, Any]:
    """Prove the best plan, print what was found, and return it for the JSON object."""
    from foretune.plan.prove.saving import ProofFolder, proof_to_json, track_proof
    from foretune.plan.prove.telling import BRIEF_COLUMNS, brief_rows, sentences

    request = answered.plan.request
    folder = ProofFolder.create(out or DEFAULT_OUT, request)
    output.say(f"\nproof in {folder.path}")
    with progress_bar(notes=True) as progress:
        prover = _make_prover(answered, corrections, given, root, folder=folder, progress=progress)
        proof = prover.prove()
    settings = prover.settings
    folder.finish(proof, settings, title=f"Proof: {request}")

    output.table("promised → proven", BRIEF_COLUMNS, brief_rows(proof, settings))
    output.say("")
    for line in sentences(proof, settings):
        output.say(line)
    if proof.best is not None:
        output.say(f"start the best with\n\n{proof.best.command}\n")
    output.say(f"correct later plans with --calibrate {folder.lines}")
    output.say(f"report   {folder.report}")
    output.say(f"MLflow   {track_proof(proof, settings, folder, request)}")
    return {**proof_to_json(proof, settings), "folder": str(folder.path)}


def _make_prover(
    answered: "Answer",
    corrections: "MeasuredLatencies",
    given: ProveOptions,
    root: RootOptions,
    folder: "ProofFolder",
    progress: Progress,
) -> "Prover":
    """Return what proves the best plan: its settings, its promises, and what starts servers."""
    from foretune.device import available_cores
    from foretune.plan.prove.load_tools import check_tool_load, find_load_tool
    from foretune.plan.prove.prediction import NATIVE_HOST, ServerPredictor
    from foretune.plan.prove.prover import Budget, Prover
    from foretune.plan.prove.request import (
        plan_loads,
        plan_promises,
        proven_deployments,
        simulated_promises,
    )
    from foretune.plan.prove.setting import around
    from foretune.plan.prove.trial_runner import TrialLimits, TrialRunner
    from foretune.tune.store.fallible import FallibleStore

    plan = answered.plan
    best = answered.best
    maker = _command_maker(given, answered)
    loads = plan_loads(plan, best, _parse_loads(given.loads))
    model = plan.request.model.name

    # Another load generator makes its prompts with the model's tokenizer.
    tool = find_load_tool(given.load_with, tokenizer=model)
    if tool is not None:
        for load in loads:
            check_tool_load(tool.name, load)

    # Flags of a server that runs are as they are.
    on_cpu = best.system.device.kind == "cpu"
    on_this_cpu = on_cpu and not given.ssh
    settings = around(
        proven_deployments(plan, best, maker.can_start),
        knobs=() if given.url else maker.knobs,
        given=_parse_flags(given.flags),
        cores=available_cores() if on_this_cpu else 0,
    )
    runner = TrialRunner(
        maker=maker,
        loads=loads,
        vocab=plan.request.model.vocab,
        folder=folder.path,
        limits=TrialLimits(start_s=given.start_limit, repeats=given.repeats),
        url=given.url.rstrip("/"),
        tool=tool,
        progress=progress,
    )

    # Another engine than the planned one may be none in Python.
    is_other_engine = bool(given.command or given.url)
    predictor = ServerPredictor(
        answered.timers, host=NATIVE_HOST if on_cpu and is_other_engine else None
    )
    if on_cpu and corrections.is_empty:
        planned = settings.setting(settings.planned)
        promises = simulated_promises(predictor, planned, loads)
    else:
        row = plan.best.to_dict()
        promises = plan_promises(best, loads, answered.timers, corrections, row)
    return Prover(
        settings=settings,
        runner=runner,
        predictor=predictor,
        requirements=plan.request.requirements,
        plan_promises=promises,
        budget=Budget(starts=given.starts, pairs=given.pairs, seconds=given.seconds),
        subject=_subject(maker, given, answered),
        store=FallibleStore(root.store),
        on_trial=lambda trial: folder.add(
            trial, calibration_labels(settings.setting(trial.config).deployment, model)
        ),
        seed=root.seed,
    )


def _command_maker(given: ProveOptions, answered: "Answer") -> "PlannedCommand | UserCommand":
    """Return what makes the commands of settings."""
    from foretune.device import available_cpus
    from foretune.plan.prove.command import PlannedCommand, UserCommand

    extra = _parse_words(given.server_args)
    if given.command:
        return UserCommand(given.command, extra=extra, host=given.ssh)
    return PlannedCommand(
        engine=answered.plan.request.engine,
        extra=extra,
        host=given.ssh,
        on_cpu=answered.best.system.device.kind == "cpu",
        cpus=() if given.ssh else tuple(available_cpus()),
    )


def _parse_words(text: str) -> tuple[str, ...]:
    """Parse ``--server-args``: words, as a shell splits them."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"--server-args {text}: {error}") from error


def _parse_loads(text: str) -> list[int]:
    """Parse ``--loads``: whole numbers, joined by commas."""
    if not text:
        return []
    try:
        loads = [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"--loads {text}: write requests in flight, like 1,4,16") from None
    if min(loads) < 1:
        raise UsageError(f"--loads {text}: each is at least 1")
    return loads


def _parse_flags(texts: Sequence[str]) -> "dict[str, list[Value]]":
    """Parse ``--flag NAME=VALUE,…``; numbers become numbers."""
    flags: dict[str, list[Value]] = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not name or not values:
            raise UsageError(f"--flag {text}: write NAME=VALUE,VALUE, like requests=8,16")
        if name in flags:
            raise UsageError(f"--flag {name} is given twice: write {name}=VALUE,VALUE")
        flags[name] = [parse_value(value) for value in values.split(",")]
    return flags


def calibration_labels(deployment: "Deployment", model: str) -> dict[str, Any]:
    """Return what ``--calibrate`` reads of a line beside its figures."""
    layout = deployment.layout
    formats = deployment.formats
    return {
        "model_id": model,
        "tp": layout.tp,
        "pp": layout.pp,
        "dp": layout.dp,
        "ep": layout.moe_ep,
        "weights": formats.weights,
        "moe": formats.moe,
        "kv": formats.kv,
    }


def _subject(maker: "PlannedCommand | UserCommand", given: ProveOptions, answered: "Answer") -> Any:
    """Return the name of the proof's work in the store: model, command and machine."""
    import hashlib

    from foretune.plan.describe.engines import ENGINES
    from foretune.plan.prove.trial import KERNEL
    from foretune.tune.store.subject import Subject

    request = answered.plan.request
    engine = ENGINES[request.engine]
    text = f"{request.model} {maker.identity} {given.url} {given.ssh} {answered.best.gpus}"
    # Tools measure differently, so figures of one say nothing of another's.
    if given.load_with != OWN:
        text += f" {given.load_with}"
    return Subject(
        kernel=KERNEL,
        source=hashlib.sha256(text.encode()).hexdigest()[:SOURCE_CHARACTERS],
        device=answered.best.system.name,
        versions=f"{engine['name']} {engine['version']}",
    )
