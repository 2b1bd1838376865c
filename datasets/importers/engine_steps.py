"""Steps of serving engines: vLLM's log, forward pass metrics, and tables of SGLang's simulator.

Read are

- lines of vLLM's log with ``--enable-logging-iteration-details``,
- forward pass metrics, one JSON object per line, as Dynamo traces vLLM, SGLang and TensorRT-LLM
  (``DYN_FPM_TRACE=1``) or as a listener writes what SGLang publishes,
- replay tables of SGLang's simulator: the tokens of each request -> seconds.

A row is a step of the engine: the prompts in it, their tokens and what is cached of them, the
requests that answer, and the tokens in their cache. vLLM's log tells only the tokens in the cache
of all requests, after the step and to a tenth of a percent of the cache.
"""

import gzip
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from foretune.datasets.importers.columns import table_from_records
from foretune.datasets.importers.files import Request, WrongFile
from foretune.datasets.text_encoding import decoded_document
from foretune.errors import RunTableError
from foretune.support.files import read_bytes

KERNEL = "engine_step"
"""Name of the kernel, unless the user names it."""
MS_PER_SECOND = 1e3
SLOW_STEP_MS = 1e3
"""Median above which a note says in which unit times are read."""
MESSAGE_FIELDS = ("log", "message", "msg")
"""Fields of lines that a container's runtime (Docker) or a logger of JSON wraps."""
WHAT = (
    "a log of engine steps: vLLM's log with --enable-logging-iteration-details, forward pass "
    "metrics (JSON lines), or a replay table of SGLang's simulator"
)

FPM_VERSION = 1
"""Version of forward pass metrics that is read; SGLang's own records have none."""
SUMS = {
    "num_prefill_requests": "prompts",
    "sum_prefill_tokens": "prompt_tokens",
    "sum_prefill_kv_tokens": "prompt_context",
    "num_decode_requests": "answers",
    "sum_decode_kv_tokens": "answer_context",
}
"""Field of forward pass metrics -> what it is in a row."""

VLLM_STEP = re.compile(
    r"Iteration\((?P<step>\d+)\): (?P<prompts>\d+) context requests, "
    r"(?P<prompt_tokens>\d+) context tokens, (?P<answers>\d+) generation requests, "
    r"(?P<answer_tokens>\d+) generation tokens, iteration elapsed time: (?P<ms>[\d.]+) ms"
    r"(?P<rest>.*)"
)
VLLM_ENGINE = re.compile(r"Engine (\d+): Iteration|EngineCore_DP(\d+)\b")
"""Which engine of several wrote a line; the second form is of releases before 0.27."""
VLLM_CACHE_USE = re.compile(r"KV cache usage: (?P<percent>[\d.]+)%")
VLLM_CACHE_SIZE = re.compile(r"KV cache size: (?P<tokens>[\d,]+) tokens")
VLLM_CLOCK = re.compile(r"\b(\d\d-\d\d \d\d:\d\d:\d\d)\b")
DUMMY = "(dummy)"
"""Marks a step of an engine without requests, which waits for the others."""
ENCODER = "encoder inputs:"
"""Begins the images or sounds of a step."""

MIN_STEPS_PER_S = 5
"""A second with fewer logged steps does not show whether the engine was busy."""
MIN_BUSY_SECONDS = 3
"""Seconds that a log must have before it is told that steps are missing time."""
MIN_BUSY_SHARE = 0.5
"""Of a busy second that the steps in it must add up to."""

OTHER_LOGS = {
    r"(Prefill|Decode) batch[.,:\[ ]": "SGLang's log, which has no times of steps: start it with "
    "--enable-forward-pass-metrics, or trace it with Dynamo (DYN_FPM_TRACE=1), and give the "
    "records as JSON lines",
    r"prev_device_step_time": "the log of TensorRT-LLM, which is not read: trace it with Dynamo "
    "(DYN_FPM_TRACE=1), and give the records",
    r"Avg prompt throughput": "vLLM's log without its steps: start vLLM with "
    "--enable-logging-iteration-details",
}
"""Pattern in a log -> what it is, and what to do."""


def read(path: Path, request: Request) -> pd.DataFrame:
    """Return one row per step of an engine."""
    device = request.device or request.given("device", path)
    rows = _steps(path, request)
    if rows and (median_ms := float(np.median([row.ms for row in rows]))) > SLOW_STEP_MS:
        request.notes.append(
            f"{path}: a step takes {median_ms / MS_PER_SECOND:.3g} s (median): times are read as "
            "seconds in JSON, and as milliseconds in vLLM's log"
        )
    records = [
        {
            "kernel": request.kernel or KERNEL,
            "device": device,
            **{f"problem.{name}": value for name, value in row.problem.items()},
            "time_ms": row.ms,
        }
        for row in rows
    ]
    return table_from_records(records, {"source": f"engine steps {path.name}"})


@dataclass(frozen=True)
class _Step:
    """The work of a step, and its time."""

    problem: Mapping[str, float]
    ms: float


def _steps(path: Path, request: Request) -> list[_Step]:
    """Return the steps of a file in any of the three forms."""
    text = decoded_document(_contents(path))[0].removeprefix("\ufeff").lstrip()
    if text.startswith(("{", "[{")):
        documents = _json_documents(text, path)
        if messages := _messages(documents):
            return _logged_steps(messages, path, request)
        if len(documents) == 1 and _is_replay_table(documents[0]):
            return _replayed_steps(documents[0], path)
        return _metrics_steps(documents, path, request)
    return _logged_steps(text.splitlines(), path, request)


def _messages(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines of a log that a container or a logger wrapped into JSON, if it is one."""
    for field in MESSAGE_FIELDS:
        messages = [document.get(field) for document in documents]
        lines = [message for message in messages if isinstance(message, str)]
        if len(lines) == len(documents):
            return lines
    return []


def _logged_steps(lines: Sequence[str], path: Path, request: Request) -> list[_Step]:
    """Return the steps of an engine's log; raises WrongFile, which names other logs."""
    if any(VLLM_STEP.search(line) for line in lines):
        return _vllm_steps(lines, path, request)
    for pattern, what in OTHER_LOGS.items():
        if any(re.search(pattern, line) for line in lines):
            raise WrongFile(f"{path} is {what}")
    raise WrongFile(f"{path} is not {WHAT}")


def _contents(path: Path) -> bytes:
    """Return a file's bytes, unpacked."""
    data = read_bytes(path)
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        return gzip.decompress(data)
    except (OSError, EOFError) as e:
        raise RunTableError(f"{path} is damaged: {e}") from e


# vLLM's log


def _vllm_steps(lines: Sequence[str], path: Path, request: Request) -> list[_Step]:
    """Return the steps of vLLM's log."""
    cache_tokens: float | None = None
    engines = set()
    steps = []
    dummies = 0
    encoded = 0
    ms_of_second: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for line in lines:
        if size := VLLM_CACHE_SIZE.search(line):
            cache_tokens = float(size["tokens"].replace(",", ""))
        found = VLLM_STEP.search(line)
        if found is None:
            continue
        # Idle engines of a group run empty steps; images take an encoder's time, too.
        if DUMMY in found["rest"]:
            dummies += 1
            continue
        if ENCODER in found["rest"]:
            encoded += 1
            continue

        engine = VLLM_ENGINE.search(line)
        engine_name = next(filter(None, engine.groups()), "") if engine else ""
        engines.add(engine_name)
        ms = float(found["ms"])
        if clock := VLLM_CLOCK.search(line):
            ms_of_second[engine_name, clock[1]].append(ms)
        steps.append(_Step(_vllm_problem(found, cache_tokens), ms))

    _require_whole_steps(ms_of_second, path)
    if dummies:
        request.notes.append(f"{path}: {dummies} empty steps (dummy) were left out")
    if encoded:
        request.notes.append(f"{path}: {encoded} steps with an encoder's inputs were left out")
    if len(engines) > 1:
        request.notes.append(f"{path}: {len(engines)} engines, whose steps count alone")
    return _with_equal_columns(_without_equal_tokens(steps), path, request)


def _vllm_problem(found: "re.Match[str]", cache_tokens: float | None) -> dict[str, float]:
    """Return the work of a line."""
    problem = {
        name: float(found[name])
        for name in ("prompts", "prompt_tokens", "answers", "answer_tokens")
    }
    use = VLLM_CACHE_USE.search(found["rest"])
    if use and cache_tokens:
        problem["context"] = round(float(use["percent"]) / 100.0 * cache_tokens)
    return problem


def _without_equal_tokens(steps: Sequence[_Step]) -> list[_Step]:
    """Return steps without their answers' tokens if each answer has one: none was drafted."""
    if any(step.problem["answer_tokens"] != step.problem["answers"] for step in steps):
        return list(steps)
    return [_without(step, "answer_tokens") for step in steps]


def _without(step: _Step, left_out: str) -> _Step:
    problem = {name: value for name, value in step.problem.items() if name != left_out}
    return _Step(problem, step.ms)


def _with_equal_columns(steps: list[_Step], path: Path, request: Request) -> list[_Step]:
    """Return steps of which all or none know their context, with a note on what is missing."""
    if not steps or all("context" in step.problem for step in steps):
        return steps
    request.notes.append(
        f"{path}: tokens in the cache are not known, so steps are told by their tokens alone: "
        "keep the line 'KV cache size' of vLLM's start in the log"
    )
    return [_without(step, "context") for step in steps]


def _require_whole_steps(ms_of_second: Mapping[tuple[str, str], list[float]], path: Path) -> None:
    """Raise RunTableError if the steps are far shorter than the time that they took.

    vLLM logs how long it waited for a step's result. If the result is there before it waits, that
    is next to nothing. In the busiest of the seconds with many steps, they must add up to half.
    """
    seconds = [ms for ms in ms_of_second.values() if len(ms) >= MIN_STEPS_PER_S]
    if len(seconds) < MIN_BUSY_SECONDS:
        return
    busiest_s = max(sum(ms) for ms in seconds) / MS_PER_SECOND
    if busiest_s < MIN_BUSY_SHARE:
        raise RunTableError(
            f"{path}: the steps of its busiest second add up to {busiest_s:.2g} s, so the log has "
            "waits instead of steps, or the engine was mostly idle: start vLLM with "
            "--no-async-scheduling and --distributed-executor-backend mp, and keep it busy"
        )


# Forward pass metrics


@dataclass(frozen=True)
class _Record:
    """A record of forward pass metrics: a rank's share of a step."""

    problem: Mapping[str, float]
    ms: float
    rank: str
    step: tuple[str, str] | None  # worker and counter; None if it has no counter


def _metrics_steps(
    documents: Sequence[Mapping[str, Any]], path: Path, request: Request
) -> list[_Step]:
    """Return the steps of forward pass metrics; ranks of one step are joined."""
    records = [_record(document, path) for document in documents]
    working = [record for record in records if record is not None]
    idle = len(records) - len(working)
    if idle:
        request.notes.append(f"{path}: {idle} records without work or time were left out")
    n_ranks = len({record.rank for record in working})
    if n_ranks <= 1:
        return [_Step(record.problem, record.ms) for record in working]

    # Ranks wait for each other: a step has the work of all, and takes as long as the slowest.
    ranks_of_step: defaultdict[tuple[str, str], list[_Record]] = defaultdict(list)
    for record in working:
        if record.step is None:
            raise RunTableError(
                f"{path} has {n_ranks} ranks and no counter_id to join them by: give the records "
                "of one rank"
            )
        ranks_of_step[record.step].append(record)
    return [_joined(ranks) for ranks in ranks_of_step.values()]


def _joined(ranks: Sequence[_Record]) -> _Step:
    """Return the step of several ranks."""
    problem = {name: sum(rank.problem[name] for rank in ranks) for name in ranks[0].problem}
    return _Step({**problem, "ranks": float(len(ranks))}, max(rank.ms for rank in ranks))


def _record(document: Mapping[str, Any], path: Path) -> _Record | None:
    """Return a record in any of its envelopes; None if its step had no work, or no time."""
    event = document.get("event", document)
    metrics = event.get("fpm", event) if isinstance(event, dict) else None
    if not isinstance(metrics, dict) or "wall_time" not in metrics:
        raise WrongFile(f"{path} is not {WHAT}: a record has no wall_time")
    version = metrics.get("version", FPM_VERSION)
    if version != FPM_VERSION:
        raise RunTableError(
            f"{path} has version {version} of forward pass metrics, and {FPM_VERSION} is read"
        )

    # Some listeners write the scheduled requests beside the other fields.
    scheduled = metrics.get("scheduled_requests", metrics)
    if not isinstance(scheduled, dict):
        raise RunTableError(f"{path}: scheduled_requests is {scheduled!r}, which is no object")
    numbers = {name: _number(scheduled, field, path) for field, name in SUMS.items()}
    ms = MS_PER_SECOND * _number(metrics, "wall_time", path)
    if not ms or not (numbers["prompt_tokens"] or numbers["answers"]):
        return None
    counter = metrics.get("counter_id")
    step = None if counter is None else (str(metrics.get("worker_id", "")), str(counter))
    return _Record(numbers, ms, rank=str(metrics.get("dp_rank") or 0), step=step)


def _number(holder: Mapping[str, Any], name: str, path: Path) -> float:
    """Return a field's number; 0 if it is left out, as in records of a step without such work."""
    value = holder.get(name, 0)
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf:
        raise RunTableError(f"{path}: {name} is {value!r}, which is no number of tokens or seconds")
    return float(value)


# SGLang's simulator


def _is_replay_table(document: Mapping[str, Any]) -> bool:
    """Return whether all keys are lists of requests, as in tables that the simulator replays."""
    return bool(document) and all(key.lstrip().startswith("[[") for key in document)


def _replayed_steps(document: Mapping[str, Any], path: Path) -> list[_Step]:
    """Return the steps of a table: new and cached tokens of every request -> seconds."""
    steps = []
    for key, seconds in document.items():
        try:
            requests = [(int(new), int(cached)) for new, cached in json.loads(key)]
            ms = MS_PER_SECOND * float(seconds)
        except (TypeError, ValueError) as e:
            raise RunTableError(f"{path}: the entry {key[:60]!r} is damaged: {e}") from e
        if not 0 < ms < math.inf or any(new < 1 or cached < 0 for new, cached in requests):
            raise RunTableError(
                f"{path}: the entry {key[:60]!r} is damaged: {seconds!r} s, or tokens, are no "
                "amount"
            )
        # As in the simulator, a request with one new token answers.
        answers = [cached for new, cached in requests if new == 1]
        prompts = [(new, cached) for new, cached in requests if new > 1]
        problem = {
            "prompts": float(len(prompts)),
            "prompt_tokens": float(sum(new for new, _ in prompts)),
            "prompt_context": float(sum(cached for _, cached in prompts)),
            "answers": float(len(answers)),
            "answer_context": float(sum(answers)),
        }
        steps.append(_Step(problem, ms))
    return steps


def _json_documents(text: str, path: Path) -> list[dict[str, Any]]:
    """Return the objects of a file, one after the other."""
    documents = list(_objects(text, path))
    if not documents:
        raise WrongFile(f"{path} is not {WHAT}")
    return documents


def _objects(text: str, path: Path) -> Iterator[dict[str, Any]]:
    """Yield every object; a last line may be cut, because the engine was writing it."""
    decoder = json.JSONDecoder()
    position = 0
    while position < len(text):
        if text[position].isspace():
            position += 1
            continue
        try:
            document, position = decoder.raw_decode(text, position)
        except ValueError as e:
            is_last_line = "\n" not in text[position:].strip()
            if is_last_line and position:
                return
            raise RunTableError(f"{path} is damaged: {e}") from e
        if isinstance(document, list) and all(isinstance(each, dict) for each in document):
            yield from document
            continue
        if not isinstance(document, dict):
            raise WrongFile(f"{path} is not {WHAT}: it has the record {str(document)[:40]}")
        yield document
