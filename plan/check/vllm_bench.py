"""Checks a plan with vLLM: serves it as planned and runs vLLM's benchmark."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from foretune.errors import MeasurementError, UsageError
from foretune.files import read_json
from foretune.plan.serve.deployments.deployment import Deployment
from foretune.plan.serve.launching import checkpoint, launch
from foretune.progress import Progress

HOST = "127.0.0.1"
START_S = 1800.0
"""Time limit for loading weights (hundreds of GiB) and compiling, in seconds."""
BENCH_S = 3600.0
END_S = 30.0
PROMPTS_PER_SLOT, MIN_PROMPTS = 4, 16
"""Prompts per concurrent request, and the minimum, for a steady load."""


@dataclass(frozen=True)
class Benchmark:
    """Results of ``vllm bench serve``: means and medians over requests, and output tokens/s."""

    ttft_ms: float
    tpot_ms: float
    median_ttft_ms: float
    median_tpot_ms: float
    tokens_per_s: float
    completed: int
    failed: int

    @classmethod
    def from_file(cls, path: Path) -> "Benchmark":
        """Read a result file of ``--save-result``.

        Raises MeasurementError if it cannot be read, lacks a figure, or no request was answered.
        """
        try:
            result = read_json(path)
            found = cls(
                ttft_ms=float(result["mean_ttft_ms"]),
                tpot_ms=float(result["mean_tpot_ms"]),
                median_ttft_ms=float(result["median_ttft_ms"]),
                median_tpot_ms=float(result["median_tpot_ms"]),
                tokens_per_s=float(result["output_throughput"]),
                completed=int(result["completed"]),
                failed=int(result.get("failed", 0)),  # older versions lack it
            )
        except (OSError, ValueError, TypeError, OverflowError) as e:
            raise MeasurementError(f"vLLM's result {path.name} cannot be read: {e}") from e
        except KeyError as e:
            raise MeasurementError(f"vLLM's result {path.name} has no {e}") from e
        if found.completed < 1:
            raise MeasurementError(f"vLLM answered none of {found.failed} requests: see its log")
        return found


@dataclass(frozen=True)
class VllmCheck:
    """A plan compared with vLLM's benchmark.

    ``command`` is the server's command line. ``table`` has one row per figure: ``figure, predicted,
    low, high, measured, inside`` (the interval; None without an interval).
    """

    command: Sequence[str]
    benchmark: Benchmark
    table: pd.DataFrame

    @property
    def passed(self) -> bool:
        """Whether every figure with an interval is inside it."""
        return all(inside is not False for inside in self.table["inside"])

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "held": self.passed,
            "command": list(self.command),
            "figures": self.table.to_dict("records"),
            "benchmark": vars(self.benchmark),
        }


def check_vllm(
    deployment: Deployment, predicted: Mapping[str, Any], progress: Progress | None = None
) -> VllmCheck:
    """Serve one replica of a deployment with this machine's vLLM, and benchmark it.

    ``predicted`` is its row of the plan's candidates.

    Raises:
        UsageError: the plan does not fit one server as it is.
        MeasurementError: vLLM is not installed, does not start, or its benchmark fails.
    """
    require_vllm()
    command = _server_command(deployment)
    if progress:
        progress.start("vLLM", 2)
    with tempfile.TemporaryDirectory(prefix="foretune-vllm-") as folder:
        with _server(command, Path(folder) / "server.log"):
            if progress:
                progress.advance("server is ready")
            result = _benchmark(deployment, command, Path(folder))
            if progress:
                progress.advance("benchmark is done")
        measured = Benchmark.from_file(result)
    return VllmCheck(command, measured, compare(deployment, predicted, measured))


def require_vllm() -> None:
    """Raise `MeasurementError` if vLLM is not installed."""
    if shutil.which("vllm") is None:
        raise MeasurementError(
            "vllm is not installed here: run this where it is (pip install vllm), on the system of "
            "the plan"
        )


def compare(
    deployment: Deployment, predicted: Mapping[str, Any], measured: Benchmark
) -> pd.DataFrame:
    """Return the figures of a plan and its benchmark; see `VllmCheck.table`."""
    rows = []
    for figure, value in (
        ("ttft_ms", measured.ttft_ms),
        ("tpot_ms", measured.tpot_ms),
        ("tokens_per_s_per_gpu", measured.tokens_per_s / deployment.gpus),
    ):
        low, high = (predicted.get(f"{figure}_{end}", float("nan")) for end in ("low", "high"))
        has_interval = low == low and high == high
        rows.append(
            {
                "figure": figure,
                "predicted": float(predicted[figure]),
                "low": float(low),
                "high": float(high),
                "measured": value,
                "inside": bool(low <= value <= high) if has_interval else None,
            }
        )
    return pd.DataFrame(rows)


def _server_command(deployment: Deployment) -> list[str]:
    """Return the command of the deployment's server on a free port.

    Raises UsageError if it needs several servers, or its checkpoint must be made first.
    """
    if deployment.pools:
        raise UsageError("pools need several servers and a proxy: check a plan without --pools")
    plan = launch(deployment, "vllm")
    if plan.unsupported:
        raise UsageError(plan.unsupported)
    _, _, note = checkpoint(deployment, "vllm")
    if note:
        raise UsageError(f"vLLM cannot serve this plan as it is; {note}")
    words = list(plan.commands[0])
    with socket.socket() as free:
        free.bind((HOST, 0))
        words[words.index("--port") + 1] = str(free.getsockname()[1])
    return [*words, "--host", HOST]


@contextmanager
def _server(command: Sequence[str], log: Path) -> Iterator[None]:
    """Run a server and its child processes until the block ends.

    Raises MeasurementError if the server exits, or is not ready in time.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        _wait_until_ready(process, _port(command), log)
        yield
    finally:
        _end(process)


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise MeasurementError(
                f"vllm serve ended with exit code {process.returncode}: {_last_line(log)}"
            )
        if _healthy(port):
            return
        time.sleep(0.2)
    raise MeasurementError(f"vllm serve is not ready after {START_S:g} s: {_last_line(log)}")


def _healthy(port: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(f"http://{HOST}:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Terminate a server and the workers in its session, then kill them."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(END_S)
    with suppress(ProcessLookupError):  # workers may outlive the server
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _benchmark(deployment: Deployment, command: Sequence[str], folder: Path) -> Path:
    """Run vLLM's benchmark against a server and return its result file."""
    requests = max(round(deployment.concurrency), 1)
    words = [
        "vllm", "bench", "serve", "--backend", "vllm", "--model", command[2],
        "--host", HOST, "--port", _port(command), "--dataset-name", "random",
        "--random-input-len", str(deployment.workload.isl),
        "--random-output-len", str(deployment.workload.osl), "--ignore-eos",
        "--max-concurrency", str(requests),
        "--num-prompts", str(max(PROMPTS_PER_SLOT * requests, MIN_PROMPTS)),
        "--save-result", "--result-dir", str(folder), "--result-filename", "result.json",
    ]  # fmt: skip
    log = folder / "bench.log"
    with log.open("wb") as out:
        try:
            code = subprocess.run(
                words, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=BENCH_S
            ).returncode
        except subprocess.TimeoutExpired:
            raise MeasurementError(
                f"vllm bench serve is not done after {BENCH_S:g} s: {_last_line(log)}"
            ) from None
    if code:
        raise MeasurementError(f"vllm bench serve ended with exit code {code}: {_last_line(log)}")
    return folder / "result.json"


def _port(command: Sequence[str]) -> str:
    return command[list(command).index("--port") + 1]


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
