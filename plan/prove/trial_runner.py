"""Runs trials: starts a setting's server, warms it up, loads it, and stops it whatever happens."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import nan
from pathlib import Path

from foretune.collect.machine_load import LoadMonitor
from foretune.device import Device
from foretune.errors import MeasurementError, UsageError
from foretune.plan.prove.client import Prompts, ServedRequest, serve_load
from foretune.plan.prove.command import CommandMaker, UserCommand
from foretune.plan.prove.engine_metrics import EngineMetrics
from foretune.plan.prove.figures import LoadFigures, RunFigures, summarize_run
from foretune.plan.prove.load import Load
from foretune.plan.prove.load_tools import LoadTool
from foretune.plan.prove.prediction import Promise
from foretune.plan.prove.server import (
    ServerProcess,
    free_port,
    is_healthy,
    served_model,
)
from foretune.plan.prove.setting import Setting
from foretune.plan.prove.trial import Trial
from foretune.plan.serve.commands.server import PORT
from foretune.space import Configuration
from foretune.support.progress import SILENT, Progress

WARM_UP_SEED = 10_000
"""Seed of the warm-up; runs have those of their repeats."""
THIS_MACHINE = Device("", "cpu")
"""What `LoadMonitor` observes: other programs here slow the load generator, or a CPU's server."""
MAX_LISTED_ERRORS = 5
"""Different errors of requests that a trial keeps."""


@dataclass(frozen=True)
class TrialLimits:
    """How long a trial may take.

    Attributes:
        start_s: until the server answers.
        run_s: of one run of a load.
        repeats: runs of each load.
    """

    start_s: float = 600.0
    run_s: float = 300.0
    repeats: int = 2


@dataclass
class TrialRunner:
    """Runs trials one after the other.

    Attributes:
        maker: makes the command of a setting.
        loads: what every server is asked for, smallest first.
        vocab: words of the model's vocabulary.
        folder: gets the logs.
        url: of a server that is running already; it is not started or stopped.
        tool: load generator of others; None for the own one, which also warms up.
    """

    maker: CommandMaker
    loads: Sequence[Load]
    vocab: int
    folder: Path
    limits: TrialLimits = field(default_factory=TrialLimits)
    url: str = ""
    tool: LoadTool | None = None
    progress: Progress = SILENT
    _started: int = field(default=0, init=False)

    def run(
        self,
        config: Configuration,
        setting: Setting,
        promises: Mapping[Load, Promise],
        unplanned_gib: float = 0.0,
    ) -> Trial:
        """Run a trial; a server that fails gives a trial with a reason.

        ``unplanned_gib`` is what earlier trials took beyond what was planned of them.

        Raises UsageError if the command cannot be made, or its port is in use.
        """
        self._started += 1
        begun = time.monotonic()
        state = _Progress()
        try:
            with self._server(setting, state) as url, LoadMonitor(THIS_MACHINE) as monitor:
                self._load(url, state)
            # A server that ran before counts as another process, although it is the one that works.
            state.disturbance = "" if self.url else monitor.load.disturbance
        except MeasurementError as error:
            state.reason = str(error)
        return Trial(
            number=self._started,
            config=config,
            command=state.command,
            promises=dict(promises),
            proofs=state.proofs,
            reason=state.reason,
            started_s=state.started_s,
            seconds=time.monotonic() - begun,
            memory_gib=state.memory_gib,
            promised_gib=setting.memory_gib + unplanned_gib,
            log=state.log,
            disturbance=state.disturbance,
        )

    @contextmanager
    def _server(self, setting: Setting, state: "_Progress") -> Iterator[str]:
        """Yield the address of a healthy server with a setting; stop it in the end."""
        if self.url:
            state.command = self.url
            if not is_healthy(self.url):
                raise UsageError(f"{self.url} does not answer: start that server first")
            yield self.url
            return

        fixed = self.maker.fixed_port if isinstance(self.maker, UserCommand) else None
        name = f"start-{self._started:02d}"
        folder = self.folder / name
        state.command = str(self.maker.command(setting, fixed or PORT, folder))
        command = self.maker.command(setting, fixed or free_port(), folder)
        state.server = ServerProcess(command, log=self.folder / f"{name}.log")
        state.log = str(state.server.log)
        self.progress.say(f"start {self._started}: {command}")
        with state.server as server:
            server.wait_until_healthy(self.limits.start_s)
            state.started_s = server.started_s
            yield server.url

    def _load(self, url: str, state: "_Progress") -> None:
        """Warm a server up, and run all loads; what was measured stays if it fails later."""
        model = served_model(url)
        self.progress.say(f"the server serves {model or 'a model that it does not name'}")
        prompts = Prompts(model=model, vocab=self.vocab)
        warm_up = Load(self.loads[0].workload, concurrency=1)
        state.serve(url, warm_up, prompts, WARM_UP_SEED, self.limits.run_s)

        for load in self.loads:
            self.progress.say(f"start {self._started}: {load.name}")
            runs: list[RunFigures] = []
            errors: Counter[str] = Counter()
            with EngineMetrics(url) as metrics:
                for repeat in range(self.limits.repeats):
                    run, run_errors = self._run_load(url, load, prompts, repeat, state)
                    runs.append(run)
                    errors.update(run_errors)
            state.proofs[load] = LoadFigures(
                load=load,
                runs=tuple(runs),
                errors=tuple(errors.most_common(MAX_LISTED_ERRORS)),
                engine=tuple(metrics.values.items()),
            )
        if state.server is not None:
            state.memory_gib = state.server.memory_gib()

    def _run_load(
        self, url: str, load: Load, prompts: Prompts, repeat: int, state: "_Progress"
    ) -> tuple[RunFigures, Counter[str]]:
        """Run a load once; return its figures, and the errors of its requests."""
        limit_s = self.limits.run_s
        if self.tool is None:
            served = state.serve(url, load, prompts, repeat, limit_s)
            errors = Counter(request.error for request in served if request.error)
            return summarize_run(served), errors

        folder = self.folder / f"{self.tool.name}-{self._started:02d}"
        try:
            run = self.tool.run(url, load, prompts, seed=repeat, limit_s=limit_s, folder=folder)
        except MeasurementError:
            if state.server is not None:
                state.server.check_serving()  # a dead server tells its reason in its log
            raise
        told = {f"failed, as {self.tool.name} says": run.failed} if run.failed else {}
        return run.figures, Counter(told)


@dataclass
class _Progress:
    """What a trial has shown so far."""

    server: ServerProcess | None = None
    command: str = ""
    log: str = ""
    reason: str = ""
    started_s: float = nan
    memory_gib: float = nan
    disturbance: str = ""
    proofs: dict[Load, LoadFigures] = field(default_factory=dict)

    def serve(
        self, url: str, load: Load, prompts: Prompts, seed: int, limit_s: float
    ) -> list[ServedRequest]:
        """Run a load; raises MeasurementError if the server ended, or answered nothing."""
        served = serve_load(url, load, prompts, seed=seed, limit_s=limit_s)
        failed = [request for request in served if request.error]
        if failed and self.server is not None:
            self.server.check_serving()  # a dead server tells its reason in its log
        if len(failed) == len(served):
            raise MeasurementError(f"no request was answered: {failed[0].error}")
        return served
