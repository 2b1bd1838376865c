"""Corrects latencies with a few measurements of the user's own stack.

The lines of a stack are results of ``vllm bench serve --save-result``, ``sglang.bench_serving`` or
one of `benchmark_reports`. Their errors condition a grouped Gaussian process, which determines how
far each candidate shares them.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.datasets.file_contents import printed_by, require_real_file
from foretune.datasets.text_encoding import decoded_document
from foretune.errors import RunTableError, UsageError
from foretune.plan.cost.memory import GIB, weight_bytes
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import checkpoint_formats
from foretune.plan.describe.layout import Layout, Workload, illegal_because
from foretune.plan.describe.plain_values import plain_values
from foretune.plan.describe.system import System
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.deployments.benchmark_reports import lines_of
from foretune.plan.serve.deployments.correction import LatencyPredictor, fit_error_processes
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.deployment_steps import StepTimers
from foretune.plan.serve.deployments.group_process import (
    GroupedGaussianProcess,
    deployment_points,
)
from foretune.plan.serve.deployments.latency_formulas import formula_latencies
from foretune.plan.serve.deployments.server_options import (
    formats_of,
    options_of,
    require_plain_steps,
)
from foretune.support.files import read_bytes, translate_read_errors

MIN_LINES = {"tpot_ms": 1, "ttft_ms": 8}
"""Minimum lines for correcting a latency; with fewer, times to the first token do not improve."""
MAX_FAILED_SHARE = 0.01
"""Of requests; with more failures, the others ran under less load than the line says."""
MIN_SHARE_OF_DURATION = 0.005
"""Of a run under full load that its latencies add up to; a thousandth if they are seconds."""
LINE_COLUMNS = {"tpot_ms": "median_tpot_ms", "ttft_ms": "median_ttft_ms"}
"""Latency -> its name in a line."""

NO_JSON = (
    "no JSON: give the file that vllm bench serve --save-result or another serving benchmark wrote"
)
HOW_TO = {
    "max_concurrency": "run the benchmark with a limit of requests in flight (vllm bench serve "
    "--max-concurrency N)",
    "median_tpot_ms": "give the result of a serving benchmark that streams tokens",
    "median_ttft_ms": "give the result of a serving benchmark that streams tokens",
}
"""Field that a line may lack -> what to do."""


@dataclass
class Calibration:
    """Corrections from a stack's lines: processes of log(measured / predicted), by latency."""

    processes: dict[str, GroupedGaussianProcess]

    @classmethod
    def fit(
        cls, rows: pd.DataFrame, measured: pd.DataFrame, correction: LatencyPredictor | None
    ) -> Self:
        """Condition on deployments; ``rows`` are from `analytic_times`."""
        predicted = correction.predict(rows) if correction else formula_latencies(rows)
        targets = [target for target, count in MIN_LINES.items() if len(rows) >= count]
        processes = fit_error_processes(
            rows, measured, predicted=predicted, targets=targets, outliers={}
        )
        return cls(processes)

    def apply(self, rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
        """Return shifted latencies, with their intervals; ``rows`` are from `analytic_times`."""
        points = deployment_points(rows)
        shifted = latencies
        for target, process in self.processes.items():
            log_error, _ = process.predict(points)
            factor = np.exp(log_error)
            columns = [name for name in latencies if name.startswith(target)]
            shifted = shifted.assign(**{name: shifted[name] * factor for name in columns})
        return shifted


@dataclass(frozen=True)
class MeasuredLatencies:
    """What measurements say about the formulas' errors; without both, latencies are the formulas'.

    Attributes:
        correction: trained on measured deployments of many models; adds intervals.
        calibration: measurements of one model on the user's stack, relative to ``correction``.
    """

    correction: LatencyPredictor | None = None
    calibration: Calibration | None = None

    @property
    def is_empty(self) -> bool:
        """Whether latencies are the formulas' alone."""
        return self.correction is None and self.calibration is None

    def predict(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return latencies of rows from `analytic_times`, with intervals if there are any."""
        if self.correction is None:
            latencies = formula_latencies(rows)
        else:
            latencies = self.correction.predict(rows)
        if self.calibration is None:
            return latencies
        return self.calibration.apply(rows, latencies)


def read_calibration(
    path: Path,
    model: ModelDescription,
    system: System,
    backend: str,
    timers: StepTimers,
    correction: LatencyPredictor | None = None,
) -> Calibration:
    """Return a file's calibration; raises RunTableError, or UsageError for other models."""
    lines = _read_lines(path)
    deployments = [_deployment(line, model, system, backend=backend, path=path) for line in lines]
    measured = pd.DataFrame(
        {
            target: [_number(line, name, path) for line in lines]
            for target, name in LINE_COLUMNS.items()
        }
    )
    for line, deployment in zip(lines, deployments, strict=True):
        _require_room(deployment, path)
        _require_milliseconds(line, deployment, path)
    return Calibration.fit(analytic_times(deployments, timers), measured, correction)


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file with one JSON object, a list of them, or one per line."""
    with translate_read_errors(path, RunTableError, "is not a result of a serving benchmark: {}"):
        decoder = json.JSONDecoder()
        data = read_bytes(path)
        require_real_file(data)
        text = decoded_document(data)[0].removeprefix("\ufeff").strip()
        if text and text[0] not in "{[":
            raise ValueError(f"it is {printed_by(text) or NO_JSON}")
        lines: list[dict[str, Any]] = []
        while text:
            value, end = decoder.raw_decode(text)
            lines += value if isinstance(value, list) else [value]
            text = text[end:].lstrip()
        if not lines or not all(isinstance(line, dict) for line in lines):
            raise ValueError("no JSON objects")
    # vLLM's --metadata writes numbers as texts.
    read = [line for document in lines for line in lines_of(plain_values(document), path)]
    if not read:
        raise UsageError(f"--calibrate {path} has no benchmark: give a report of a finished run")
    return read


def _deployment(
    line: Mapping[str, Any], model: ModelDescription, system: System, backend: str, path: Path
) -> Deployment:
    """Return a line's deployment: vLLM's ``--metadata``, or SGLang's reported arguments."""
    server = line.get("server_info")
    if not isinstance(server, dict):
        server = {}

    # Lines of other models would make plans worse.
    name = str(line.get("model_id") or server.get("model_path") or "")
    if not name:
        raise UsageError(
            f'--calibrate {path} does not name the model: add "model_id": "{model.name}" to its '
            "lines if it is that one"
        )
    if _short_name(name) != _short_name(model.name):
        raise UsageError(
            f"--calibrate {path} is of {name}: give lines of {model.name}; if the server only "
            f'calls it {name}, set "model_id": "{model.name}" in its lines'
        )

    # vLLM records the layout on request only; one GPU would be a guess.
    if not (line.get("tp") or server.get("tp_size")):
        raise UsageError(
            f"--calibrate {path} does not record the layout: run vllm bench serve --save-result "
            'with --metadata tp=N (and pp, dp, ep), or add "tp": N to its lines'
        )
    try:
        layout = _layout(line, server, model)
    except (TypeError, ValueError, ZeroDivisionError) as e:
        raise RunTableError(f"{path}: tp, pp, dp and ep are not all numbers ({e})") from e

    options = options_of(line, server)
    require_plain_steps(options, path)
    formats = formats_of(options, checkpoint_formats(model), path)
    if reason := illegal_because(model, layout, formats):
        raise UsageError(f"--calibrate {path}: {model.name} cannot be served on {layout}: {reason}")

    requests = _number(line, "completed", path)
    _require_few_failures(line, requests, path)
    isl = _number(line, "total_input_tokens", path) / requests
    osl = _number(line, "total_output_tokens", path) / requests
    return Deployment(
        model=model,
        system=system,
        backend=backend,
        layout=layout,
        formats=formats,
        workload=Workload(isl=max(round(isl), 1), osl=max(round(osl), 1)),
        concurrency=_number(line, "max_concurrency", path),
    )


def _require_few_failures(line: Mapping[str, Any], completed: float, path: Path) -> None:
    """Raise UsageError if enough requests failed to change the load."""
    failed = line.get("failed")
    sent = line.get("num_prompts")
    if not isinstance(failed, (int, float)):
        failed = sent - completed if isinstance(sent, (int, float)) else 0
    if failed > MAX_FAILED_SHARE * (completed + failed):
        raise UsageError(
            f"--calibrate {path}: {failed:g} of {completed + failed:g} requests failed: run the "
            "benchmark again with a load that the server answers"
        )


def _require_room(deployment: Deployment, path: Path) -> None:
    """Raise UsageError for a layout on which the weights alone exceed the memory."""
    model = deployment.model
    system = deployment.system
    held = weight_bytes(model, deployment.layout, deployment.formats) / GIB
    if held > system.memory_gib:
        raise UsageError(
            f"--calibrate {path}: {model.name} in {deployment.formats} takes {held:.1f} GiB a GPU "
            f"on {deployment.layout}, and {system.name} has {system.memory_gib:.1f}: correct tp, "
            'or add "weights", "moe" and "kv" to its lines'
        )


def _require_milliseconds(line: Mapping[str, Any], deployment: Deployment, path: Path) -> None:
    """Raise UsageError for latencies that add up to a small part of the run, as seconds would."""
    duration_s = line.get("duration")
    is_full_load = str(line.get("request_rate", "inf")).lower() in ("inf", "infinity")
    if not isinstance(duration_s, (int, float)) or not is_full_load:
        return
    tokens_after_first = deployment.workload.osl - 1
    request_ms = line["median_ttft_ms"] + tokens_after_first * line["median_tpot_ms"]
    rounds = line["completed"] / deployment.concurrency
    if rounds * request_ms < MIN_SHARE_OF_DURATION * 1e3 * duration_s:
        raise UsageError(
            f"--calibrate {path}: its latencies add up to {rounds * request_ms / 1e3:.3g} s, and "
            f"the run took {duration_s:g} s: give milliseconds"
        )


def _layout(line: Mapping[str, Any], server: Mapping[str, Any], model: ModelDescription) -> Layout:
    """Return a line's layout; its own labels count before the server's arguments."""
    # SGLang's tp size includes the attention-DP groups.
    groups = int(server.get("dp_size") or 1) if server.get("enable_dp_attention") else 1
    tp = int(line.get("tp") or server["tp_size"]) // groups
    dp = int(line.get("dp") or groups)
    pp = int(line.get("pp") or server.get("pp_size") or 1)
    ep = int(line.get("ep") or server.get("ep_size") or 1)
    return Layout.from_labels(model, tp=tp, pp=pp, dp=dp, moe_tp=max(tp * dp // ep, 1), moe_ep=ep)


def _short_name(model: str) -> str:
    """Return a model's name without its owner or folder, in lowercase."""
    cached = re.search("models--.+?--([^/]+)", model)
    name = cached[1] if cached else model.rstrip("/").rpartition("/")[2]
    return name.lower()


def _number(line: Mapping[str, Any], name: str, path: Path) -> float:
    value = line.get(name)
    if value is None and name in HOW_TO:
        raise UsageError(f"--calibrate {path} does not record {name}: {HOW_TO[name]}")
    if not isinstance(value, (int, float)) or not 0 < value < np.inf:
        hint = f": {HOW_TO[name]}" if name in HOW_TO else ""
        raise RunTableError(f"{path}: {name} is {value!r}, not a positive number{hint}")
    return float(value)
