"""Shifts a plan by a few lines that a user's own stack measured.

The lines are results of ``vllm bench serve --save-result`` or ``sglang.bench_serving``. Their
errors condition a Gaussian process of grouped errors, which says how far each candidate shares
them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from foretune.errors import RunTableError, UsageError
from foretune.files import read_bytes, translate_read_errors
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, checkpoint_formats
from foretune.plan.describe.layout import Layout, illegal_because
from foretune.plan.describe.system import System
from foretune.plan.describe.workload import Workload
from foretune.plan.serve.deployments.analytic import StepTimers, analytic_times, formula_latencies
from foretune.plan.serve.deployments.correction import LatencyPredictor
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.deployments.group_process import (
    COMPONENTS,
    NOISE,
    GroupedGaussianProcess,
    deployment_points,
)

MIN_LINES = {"tpot_ms": 1, "ttft_ms": 8}
"""Lines from which a latency is shifted: with fewer, times to the first token get no better."""
TOKENS = ("input", "output")


@dataclass
class Calibration:
    """Corrections of a model's other deployments by a stack's lines.

    Attributes:
        processes: latency -> process of log(measured / predicted).
        lines: number of lines.
    """

    processes: dict[str, GroupedGaussianProcess]
    lines: int

    @classmethod
    def fit(
        cls, rows: pd.DataFrame, measured: pd.DataFrame, correction: LatencyPredictor | None
    ) -> Self:
        """Condition on deployments; ``rows`` are from `analytic_times`."""
        formulas = formula_latencies(rows)
        predicted = correction.predict(rows) if correction else formulas
        points = deployment_points(rows, formulas["tpot_ms"].to_numpy())
        processes = {
            target: GroupedGaussianProcess(COMPONENTS[target], NOISE[target]).fit(
                points, np.log(measured[target] / predicted[target]).to_numpy(dtype=float)
            )
            for target, count in MIN_LINES.items()
            if len(rows) >= count
        }
        return cls(processes, len(rows))

    def apply(self, rows: pd.DataFrame, latencies: pd.DataFrame) -> pd.DataFrame:
        """Return shifted latencies, with their intervals; ``rows`` are from `analytic_times`."""
        points = deployment_points(rows, formula_latencies(rows)["tpot_ms"].to_numpy())
        for target, process in self.processes.items():
            factor = np.exp(process.predict(points)[0])
            columns = [name for name in latencies if name.startswith(target)]
            latencies = latencies.assign(**{name: latencies[name] * factor for name in columns})
        return latencies


def read_calibration(
    path: Path,
    model: ModelDescription,
    system: System,
    backend: str,
    timers: StepTimers,
    correction: LatencyPredictor | None = None,
) -> Calibration:
    """Return the calibration of a file of JSON objects.

    Raises RunTableError for another file, and UsageError for lines of another model.
    """
    lines = list(_read_lines(path))
    deployments = [_deployment(line, model, system, backend, path) for line in lines]
    targets = {"tpot_ms": "median_tpot_ms", "ttft_ms": "median_ttft_ms"}
    measured = pd.DataFrame(
        {target: [_number(line, name, path) for line in lines] for target, name in targets.items()}
    )
    return Calibration.fit(analytic_times(deployments, timers), measured, correction)


def _read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file with one JSON object, a list of them, or one per line."""
    with translate_read_errors(path, RunTableError, "is no result of a serving benchmark: {}"):
        text = read_bytes(path).decode("utf-8").strip()
        whole = text if text.startswith("[") else f"[{','.join(_objects(text))}]"
        found = json.loads(whole)
        if not found or not all(isinstance(line, dict) for line in found):
            raise ValueError("no JSON objects")
    yield from found


def _objects(text: str) -> Sequence[str]:
    """Return the JSON objects that follow each other in a text."""
    decoder, start, found = json.JSONDecoder(), 0, []
    while start < len(text):
        end = decoder.raw_decode(text, start)[1]
        found.append(text[start:end])
        start = end + len(text[end:]) - len(text[end:].lstrip())
    return found


def _deployment(
    line: Mapping[str, Any], model: ModelDescription, system: System, backend: str, path: Path
) -> Deployment:
    """Return the deployment of a line.

    Its layout is in vLLM's ``--metadata tp=4``, or in the arguments that SGLang's server reports.
    """
    server = line.get("server_info")
    server = server if isinstance(server, dict) else {}
    name = str(line.get("model_id") or server.get("model_path") or model.name)
    if name.rpartition("/")[2].lower() != model.name.rpartition("/")[2].lower():
        raise UsageError(f"--calibrate {path} is of {name}: give lines of {model.name}")
    try:
        groups = int(server.get("dp_size") or 1) if server.get("enable_dp_attention") else 1
        tp = int(line.get("tp") or server.get("tp_size", groups)) // groups
        dp = int(line.get("dp") or groups)
        pp, ep = (int(line.get(key) or server.get(f"{key}_size") or 1) for key in ("pp", "ep"))
        layout = Layout.from_labels(model, tp, pp, dp, max(tp * dp // ep, 1), ep)
    except (TypeError, ValueError, ZeroDivisionError) as e:
        raise RunTableError(f"{path}: tp, pp, dp and ep are not all numbers ({e})") from e
    published = checkpoint_formats(model)
    formats = Formats(
        str(line.get("weights", published.weights)), kv=str(line.get("kv", published.kv)),
        moe=str(line.get("moe", line.get("weights", published.moe))),
    )  # fmt: skip
    if reason := illegal_because(model, layout, formats):
        raise UsageError(f"--calibrate {path}: {model.name} cannot be served on {layout}: {reason}")
    requests = _number(line, "completed", path)
    isl, osl = (_number(line, f"total_{kind}_tokens", path) / requests for kind in TOKENS)
    return Deployment(
        model, system, backend, layout, formats,
        Workload(max(round(isl), 1), max(round(osl), 1)), _number(line, "max_concurrency", path),
    )  # fmt: skip


def _number(line: Mapping[str, Any], name: str, path: Path) -> float:
    value = line.get(name)
    if not isinstance(value, (int, float)) or not 0 < value < np.inf:
        raise RunTableError(f"{path}: {name} is {value}, not a positive number")
    return float(value)
