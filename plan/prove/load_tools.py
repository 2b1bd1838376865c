"""Load generators of others: ``vllm bench serve``, ``sglang.bench_serving`` and GuideLLM.

Each is a program that loads a server with random prompts of the plan's lengths and writes a report.
They make prompts of text, so they need the model's tokenizer, and lengths may be off by some
tokens. vLLM's report has the seconds of the whole run, GuideLLM's those of its measured part, and
SGLang's client sends a request before it measures.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import Any

from foretune.errors import MeasurementError, UsageError
from foretune.plan.prove.client import COMPLETIONS, Prompts
from foretune.plan.prove.figures import RunFigures
from foretune.plan.prove.load import Load
from foretune.plan.prove.tool_process import run_tool
from foretune.plan.serve.deployments.benchmark_reports import lines_of
from foretune.support.files import parse_json

OWN = "own"
"""The generator of `foretune.plan.prove.client`."""
SGLANG_PACKAGE = "sglang"
SGLANG_MODULE = "sglang.bench_serving"
LENGTH_TOLERANCE = 0.15
"""Prompts of text may be so much shorter or longer than asked for."""
MAX_LINES = 3
"""Last lines of a tool's output in the reason why it failed."""
NEEDED = ("median_ttft_ms", "total_input_tokens", "total_output_tokens")
"""What a report must have."""


@dataclass(frozen=True)
class ToolRun:
    """A run of a load by another tool."""

    figures: RunFigures
    failed: int


@dataclass(frozen=True)
class LoadTool:
    """A program that loads servers.

    Attributes:
        name: vllm, sglang or guidellm.
        program: the words that start it.
        tokenizer: folder or name of the model whose tokenizer makes the prompts.
    """

    name: str
    program: tuple[str, ...]
    tokenizer: str

    def run(
        self, url: str, load: Load, prompts: Prompts, seed: int, limit_s: float, folder: Path
    ) -> ToolRun:
        """Load a server, and return what the tool reports; its files stay in ``folder``.

        Raises MeasurementError if the tool fails, takes longer than ``limit_s``, or no request was
        answered.
        """
        folder.mkdir(parents=True, exist_ok=True)
        report = folder.resolve() / f"{self.name}-{load.key}-{seed}.json"
        report.unlink(missing_ok=True)
        log = report.with_suffix(".log")
        words = _WORDS[self.name](self, url, load, prompts.model, seed, report)
        status = run_tool([*self.program, *words], log=log, limit_s=limit_s, environment=self._env)
        if status != 0 or not report.exists():
            ended = f"ended with status {status}" if status else "wrote no report"
            raise MeasurementError(f"{' '.join(self.program)} {ended}: {_last_lines(log)}")
        run = _read_report(self.name, report)
        self._require_lengths(run.figures, load)
        return run

    def _require_lengths(self, figures: RunFigures, load: Load) -> None:
        """Raise MeasurementError if the server counted other lengths than were asked for."""
        asked = {"prompts": load.workload.isl, "answers": load.workload.osl}
        counted = {"prompts": figures.prompt_tokens, "answers": figures.tokens}
        for what, tokens in asked.items():
            mean = counted[what] / figures.requests
            if abs(mean - tokens) > max(LENGTH_TOLERANCE * tokens, 2.0):
                raise MeasurementError(
                    f"{self.name} sent {what} of {mean:.0f} tokens, as the server counts them, "
                    f"instead of {tokens}: is {self.tokenizer} the served model's tokenizer?"
                )

    @property
    def _env(self) -> dict[str, str]:
        """The environment of the program; a tokenizer in a folder is not looked up elsewhere."""
        offline = {"HF_HUB_OFFLINE": "1"} if Path(self.tokenizer).is_dir() else {}
        return {**os.environ, **offline}


def find_load_tool(name: str, tokenizer: str) -> LoadTool | None:
    """Return a load generator by its name; None for the own one.

    Raises UsageError if the name is unknown, or the program is not installed.
    """
    if name == OWN:
        return None
    # Tools run in a folder of their own.
    if Path(tokenizer).is_dir():
        tokenizer = str(Path(tokenizer).resolve())
    if name not in _WORDS:
        known = ", ".join([OWN, *_WORDS])
        raise UsageError(f"--load-with {name}: give one of {known}")

    if name == "sglang":
        if importlib.util.find_spec(SGLANG_PACKAGE) is None:
            raise UsageError(
                f"--load-with sglang: {SGLANG_MODULE} is not installed here: pip install sglang, "
                "or leave --load-with out"
            )
        return LoadTool(name, (sys.executable, "-m", SGLANG_MODULE), tokenizer)
    path = shutil.which(name)
    if path is None:
        package = "vllm[bench]" if name == "vllm" else name
        raise UsageError(
            f"--load-with {name}: there is no program {name} on the PATH: pip install {package}, "
            "or leave --load-with out"
        )
    subcommands = {"vllm": ("bench", "serve"), "guidellm": ("run",)}
    return LoadTool(name, (path, *subcommands[name]), tokenizer)


def check_tool_load(name: str, load: Load) -> None:
    """Raise UsageError for a load that a tool cannot send."""
    if load.workload.prefix and name in ("sglang", "guidellm"):
        raise UsageError(
            f"--load-with {name} sends no common prefix: leave --prefix or --load-with out"
        )


# The words of each tool


def _vllm_words(
    tool: LoadTool, url: str, load: Load, model: str, seed: int, report: Path
) -> list[str]:
    """Return the options of ``vllm bench serve``; its prefix comes on top of the input."""
    workload = load.workload
    words = ["--backend", "openai", "--base-url", url, "--endpoint", COMPLETIONS]
    words += ["--model", tool.tokenizer, "--tokenizer", tool.tokenizer]
    words += ["--served-model-name", model, "--dataset-name", "random"]
    words += ["--random-input-len", str(workload.new_tokens), "--random-range-ratio", "0"]
    words += ["--random-output-len", str(workload.osl), "--ignore-eos", "--temperature", "0"]
    if workload.prefix:
        words += ["--random-prefix-len", str(workload.prefix)]
    words += ["--num-prompts", str(load.count), *_arrivals(load), "--seed", str(seed)]
    words += ["--disable-tqdm", "--save-result", "--result-dir", str(report.parent)]
    return [*words, "--result-filename", report.name]


def _sglang_words(
    tool: LoadTool, url: str, load: Load, model: str, seed: int, report: Path
) -> list[str]:
    """Return the options of ``sglang.bench_serving``, with random tokens instead of texts."""
    workload = load.workload
    words = ["--backend", "sglang-oai", "--base-url", url, "--model", tool.tokenizer]
    words += ["--served-model-name", model, "--tokenizer", tool.tokenizer]
    words += ["--dataset-name", "random-ids", "--random-input-len", str(workload.isl)]
    words += ["--random-output-len", str(workload.osl), "--random-range-ratio", "1"]
    words += ["--num-prompts", str(load.count), *_arrivals(load), "--seed", str(seed)]
    return [*words, "--disable-tqdm", "--output-file", str(report)]


def _arrivals(load: Load) -> list[str]:
    """Return the options of both tools for requests in flight, or at random moments."""
    if load.concurrency:
        return ["--max-concurrency", str(load.concurrency)]
    return ["--request-rate", f"{load.rate:g}"]


def _guidellm_words(
    tool: LoadTool, url: str, load: Load, model: str, seed: int, report: Path
) -> list[str]:
    """Return the options of ``guidellm run``, as from 0.8 on."""
    workload = load.workload
    profile = f"kind=poisson,rate={load.rate:g}"
    if load.concurrency:
        profile = f"kind=concurrent,streams={load.concurrency}"
    lengths = f"prompt_tokens={workload.isl},output_tokens={workload.osl}"
    options = {
        "--backend": f"kind=openai_http,target={url},model={model},request_format={COMPLETIONS}",
        "--profile": profile,
        "--constraint": f"kind=max_requests,count={load.count}",
        "--tokenizer": f"kind=huggingface_auto,model={tool.tokenizer}",
        "--data": f"kind=synthetic_text,{lengths}",
        "--seed": f"kind=static,value={seed}",
        "--output": f"kind=json,path={report}",
    }
    return [word for option in options.items() for word in option] + ["--disable-console"]


_WORDS: Mapping[str, Callable[[LoadTool, str, Load, str, int, Path], list[str]]] = {
    "vllm": _vllm_words,
    "sglang": _sglang_words,
    "guidellm": _guidellm_words,
}
"""Name of a tool -> function that returns its options."""


# Reports


def _read_report(name: str, report: Path) -> ToolRun:
    """Return the figures in a tool's report; raises MeasurementError if it has none."""
    text = report.read_text(encoding="utf-8").strip()
    try:
        # SGLang's is JSON lines, of which the last is this run.
        document = parse_json(text.splitlines()[-1] if name == "sglang" else text, dict)
        line = lines_of(document, report)[-1]
    except (ValueError, IndexError, UsageError) as error:
        raise MeasurementError(f"the report {report} is not understood: {error}") from error

    seconds, tokens_per_s = _pace(name, document, line)
    completed = int(line.get("completed") or 0)
    if not completed:
        raise MeasurementError(f"no request was answered, as {report} says")

    # All but the time per token, which answers of one token lack.
    known = {name: _number(line, name) for name in NEEDED}
    missing = [name for name, value in known.items() if not isfinite(value)]
    if missing or not isfinite(tokens_per_s):
        raise MeasurementError(
            f"the report {report} lacks {missing[0] if missing else 'the rate of tokens'}"
        )
    figures = RunFigures(
        ttft_ms=known["median_ttft_ms"],
        tpot_ms=_number(line, "median_tpot_ms"),
        tokens_per_s=tokens_per_s,
        duration_s=seconds,
        requests=completed,
        prompt_tokens=round(known["total_input_tokens"]),
        tokens=round(known["total_output_tokens"]),
    )
    return ToolRun(figures, failed=int(line.get("failed") or 0))


def _pace(name: str, document: Mapping[str, Any], line: Mapping[str, Any]) -> tuple[float, float]:
    """Return a run's seconds, and the generated tokens per second of all requests."""
    if name != "guidellm":
        return _number(line, "duration"), _number(line, "output_throughput")
    benchmark = document["benchmarks"][-1]
    seconds = _number(benchmark, "duration")
    return seconds, _number(line, "total_output_tokens") / seconds if seconds > 0 else nan


def _number(holder: Mapping[str, Any], name: str) -> float:
    """Return a field's number; NaN if there is none."""
    value = holder.get(name)
    return float(value) if isinstance(value, (int, float)) else nan


def _last_lines(log: Path) -> str:
    """Return the end of a tool's output in one line."""
    lines: Sequence[str] = log.read_text(encoding="utf-8", errors="replace").split("\n")
    told = [line.strip() for line in lines if line.strip()]
    return " ".join(" ".join(told[-MAX_LINES:]).split()) or f"it says nothing in {log}"
