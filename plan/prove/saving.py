"""Keeps a proof: a folder that grows with every trial, a report, and MLflow runs."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from foretune.errors import OutputError, TrackingError
from foretune.plan.prove.prover import Proof
from foretune.plan.prove.setting import SettingSpace
from foretune.plan.prove.telling import COLUMNS, describe_setting, sentences, trial_rows
from foretune.plan.prove.trial import Trial
from foretune.plan.serve.request import PlanRequest
from foretune.tune.mlflow.tracking import Tracker
from foretune.tune.report.page import render, write_page

TRIALS_FILE = "trials.jsonl"
LINES_FILE = "lines.jsonl"
PROOF_FILE = "proof.json"
REPORT_FILE = "proof.html"
"""Files of a proof's folder: its trials, the same for ``--calibrate``, the result, the report."""
MAX_NAME_LENGTH = 80


@dataclass(frozen=True)
class ProofFolder:
    """The folder of a proof; trials are in it as soon as they ended."""

    path: Path

    @classmethod
    def create(cls, out: Path, request: PlanRequest) -> "ProofFolder":
        """Create the next folder ``proof-MODEL-SYSTEM-NNN`` under ``out``."""
        model = request.model.name.rstrip("/").rpartition("/")[2]
        label = re.sub(r"[^\w.+-]+", "-", f"proof-{model}-{request.systems[0].name}")
        number = 0
        try:
            out.mkdir(parents=True, exist_ok=True)
            while True:
                number += 1
                path = out / f"{label[:MAX_NAME_LENGTH].strip('.-')}-{number:03d}"
                with suppress(FileExistsError):
                    path.mkdir()
                    return cls(path.absolute())
        except OSError as error:
            raise OutputError(f"cannot write to {out}: {error.strerror or error}") from error

    @property
    def report(self) -> Path:
        """The HTML file."""
        return self.path / REPORT_FILE

    @property
    def lines(self) -> Path:
        """The file that ``plan --calibrate`` reads."""
        return self.path / LINES_FILE

    def add(self, trial: Trial, labels: Mapping[str, Any]) -> None:
        """Append a trial, and its lines for ``--calibrate``; a full disk raises OutputError."""
        lines = [
            json.dumps(shown.calibration_line(dict(labels)))
            for shown in trial.proofs.values()
            if shown.load.concurrency
        ]
        try:
            with (self.path / TRIALS_FILE).open("a", encoding="utf-8") as file:
                file.write(json.dumps(trial.to_json(), allow_nan=False) + "\n")
            with self.lines.open("a", encoding="utf-8") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error

    def finish(self, proof: Proof, settings: SettingSpace, title: str) -> None:
        """Write the result and the report."""
        best = proof.best or proof.planned
        text = render(
            Path(__file__).with_name(REPORT_FILE),
            title=title,
            headline=sentences(proof, settings)[0],
            links={"verdict": "Verdict", "trials": "Trials", "start": "Start"},
            lines=sentences(proof, settings)[1:],
            columns=COLUMNS,
            rows=trial_rows(proof, settings),
            command=best.command,
        )
        write_page(self.report, text)
        answer = json.dumps(proof_to_json(proof, settings), indent=1, allow_nan=False)
        try:
            (self.path / PROOF_FILE).write_text(answer, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write to {self.path}: {error.strerror or error}") from error


def proof_to_json(proof: Proof, settings: SettingSpace) -> dict[str, Any]:
    """Return plain values; unknown numbers are None."""
    best = proof.best
    low, high = proof.comparison.interval
    return {
        "kept": proof.is_kept,
        "limits_hold": proof.holds_limits,
        "best": None if proof.best_config is None else dict(proof.best_config),
        "best_command": None if best is None else best.command,
        "gain": _finite(proof.gain),
        "verified": proof.comparison.is_verified,
        "ratio": _finite(proof.comparison.ratio),
        "ratio_low": _finite(low),
        "ratio_high": _finite(high),
        "not_verified_because": proof.comparison.reason,
        "stopped": proof.search.reason,
        "seconds": proof.seconds,
        "unplanned_gib": proof.unplanned_gib,
        "factors": vars(proof.factors),
        "spread": proof.spread,
        "sentences": sentences(proof, settings),
        "trials": [trial.to_json() for trial in proof.trials],
    }


def track_proof(
    proof: Proof, settings: SettingSpace, folder: ProofFolder, request: PlanRequest
) -> str:
    """Write a proof to MLflow, one nested run per trial; return where, or how to install it.

    Raises TrackingError if MLflow cannot be reached; the folder is kept.
    """
    if find_spec("mlflow") is None:
        return "not installed: pip install '.[track]' to track proofs"
    try:
        tracker = Tracker()
        tags = {"foretune.model": request.model.name, "foretune.device": request.systems[0].name}
        run_id = tracker.open_run(f"prove: {request}", None, tags)
        with tracker.running(run_id):
            best = proof.best or proof.planned
            tracker.log(run_id, {"best": str(dict(best.config))}, _outcome(proof))
            tracker.describe(run_id, "\n\n".join(sentences(proof, settings)))
            for path in sorted(folder.path.iterdir()):
                if path.is_file():
                    tracker.log_file(run_id, path)
            for trial in proof.trials:
                _track_trial(tracker, trial, settings, parent=run_id)
    except TrackingError as error:
        raise TrackingError(f"{error}; the proof is saved in {folder.path}") from error
    return f"{tracker.name}, run {run_id}"


def _track_trial(tracker: Tracker, trial: Trial, settings: SettingSpace, parent: str) -> None:
    """Write a trial as a nested run: its setting, and promise beside proof per load."""
    name = f"start {trial.number}: {describe_setting(trial.config, settings)}"
    run_id = tracker.open_run(name, None, {}, parent)
    with tracker.running(run_id):
        metrics = {"seconds": trial.seconds, "memory_gib": trial.memory_gib}
        for load, promise in trial.promises.items():
            for figure in ("ttft_ms", "tpot_ms", "tokens_per_s"):
                metrics[f"{load.key}.promised.{figure}"] = getattr(promise, figure)
        for load, shown in trial.figures.items():
            for figure, value in vars(shown).items():
                metrics[f"{load.key}.proven.{figure}"] = value
        params = {**trial.config, "command": trial.command}
        tracker.log(run_id, params | ({"reason": trial.reason} if trial.reason else {}), metrics)


def _outcome(proof: Proof) -> dict[str, float]:
    return {
        "kept": float(proof.is_kept),
        "gain": proof.gain,
        "starts": float(len(proof.trials)),
        "seconds": proof.seconds,
    }


def _finite(value: float) -> float | None:
    return value if isfinite(value) else None
