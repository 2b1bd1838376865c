"""Reports of serving benchmarks as lines of ``vllm bench serve --save-result``.

Read are GuideLLM's ``benchmarks.json``, AIPerf's ``profile_export_aiperf.json`` and the reports of
stages of inference-perf. None records the engine's layout: it stands in ``tp``, ``pp``, ``dp`` and
``ep`` that the user adds at the top, or in the metadata that GuideLLM takes (``--output-extras``).
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from foretune.datasets.time_units import MS_PER_UNIT
from foretune.errors import UsageError

Document = Mapping[str, Any]

LABELS = ("tp", "pp", "dp", "ep", "weights", "kv", "moe", "model_id", "max_concurrency")
"""What a user may add to a report, or to a line."""

LAYOUT_OPTIONS = {
    "tensor_parallel_size": "tp",
    "pipeline_parallel_size": "pp",
    "data_parallel_size": "dp",
    "expert_parallel_size": "ep",
    "tp_size": "tp",
    "pp_size": "pp",
    "dp_size": "dp",
    "ep_size": "ep",
}
"""Engines' options -> labels: ``vllm bench sweep`` writes the options of the server."""
EXPERT_PARALLEL = "enable_expert_parallel"
"""VLLM's option that distributes the experts over all ranks."""

MS_PER_SECOND = 1e3

OTHER_REPORTS = {
    "avg_latency": "of vllm bench latency, which streams nothing: use vllm bench serve",
    "tokens_per_second": "of vllm bench throughput, which has no latencies: use vllm bench serve",
    "results_ttft_s_quantiles_p50": "of LLMPerf, whose time between tokens has the first one "
    "in it: use vllm bench serve",
    "world_info": "of trtllm-bench, which serves no requests: use a serving benchmark",
    "tput_per_gpu": "of InferenceX, in seconds: give the result that it sums up",
    "avg_ns": "of llama-bench, which serves no requests: use a serving benchmark",
    "n_kv_max": "of llama-batched-bench, which serves no requests: use a serving benchmark",
    "aggregated_metrics": "of genai-bench, which is not read: use vllm bench serve",
    "last_ttft": "of sglang.bench_one_batch_server, which sends one batch: use "
    "sglang.bench_serving",
    "median_decode_latency": "of sglang.bench_one_batch, which serves no requests: use "
    "sglang.bench_serving",
    "last_gen_throughput": "of sglang.bench_offline_throughput, which has no latencies: use "
    "sglang.bench_serving",
    "x_request_id": "of AIPerf, with single requests: give profile_export_aiperf.json",
    "benchmark_phase": "of AIPerf, with single requests: give profile_export_aiperf.json",
    "benchmark": "in PyTorch's format of benchmarks: give the file that vllm bench serve "
    "--save-result wrote beside it",
}
"""Field of a report that is not read -> what it is, and what to do."""


def lines_of(document: Document, path: Path) -> list[dict[str, Any]]:
    """Return the lines in a document: its own if it is one, or those of a known report.

    Raises UsageError for a report of a run that was stopped, or that lacks what a line needs.
    """
    for is_report, lines in _READERS:
        if is_report(document):
            labels = {name: document[name] for name in LABELS if name in document}
            return [_with_layout({**line, **labels}) for line in lines(document, path)]
    if "completed" not in document:
        # Records of single requests have the fields that tell them in their metadata.
        metadata = document.get("metadata")
        fields = {*document, *(metadata if isinstance(metadata, dict) else ())}
        for field, what in OTHER_REPORTS.items():
            if field in fields:
                raise UsageError(f"--calibrate {path} is a report {what}")
    return [_with_layout(document)]


def _with_layout(line: Document) -> dict[str, Any]:
    """Return a line with the labels that its engine's options stand for."""
    plain = {name.strip("-").replace("-", "_"): value for name, value in line.items()}
    labels = {
        label: plain[option]
        for option, label in LAYOUT_OPTIONS.items()
        if plain.get(option) is not None
    }
    labelled = {**labels, **line}
    if str(plain.get(EXPERT_PARALLEL)).lower() == "true":
        # What is no number is refused where the layout is read.
        with suppress(KeyError, TypeError, ValueError):
            ranks = int(labelled["tp"]) * int(labelled.get("dp") or 1)
            labelled.setdefault("ep", ranks)
    return labelled


def _guidellm(document: Document, path: Path) -> list[dict[str, Any]]:
    """Return a line per benchmark of GuideLLM.

    Its time between tokens leaves the first one out, as vLLM's TPOT does; its ``tpot`` does not.
    """
    lines = []
    for benchmark in document["benchmarks"]:
        metrics = _get(benchmark, "metrics") or {}
        prompt = _successful(metrics, "prompt_token_count", path)
        output = _successful(metrics, "output_token_count", path)
        completed = prompt.get("count")
        ttft = _successful(metrics, "time_to_first_token_ms", path)
        tpot = _successful(metrics, "inter_token_latency_ms", path)
        extras = _get(benchmark, "extras") or _get(document, "args", "output_extras") or {}
        lines.append(
            {
                **{name: extras[name] for name in LABELS if name in extras},
                "model_id": _guidellm_model(document, benchmark),
                "completed": completed,
                "failed": _get(metrics, "request_totals", "errored"),
                "total_input_tokens": _product(prompt.get("mean"), completed),
                "total_output_tokens": _product(output.get("mean"), completed),
                "median_ttft_ms": ttft.get("median"),
                "median_tpot_ms": tpot.get("median"),
                "max_concurrency": _guidellm_concurrency(benchmark, metrics, path),
            }
        )
    return lines


def _guidellm_model(document: Document, benchmark: Document) -> str | None:
    """Return the name of the model; releases keep it in several places."""
    places = (
        (benchmark, ("config", "backend", "model")),
        (benchmark, ("worker", "backend_model")),
        (document, ("config", "backend", "model")),
        (document, ("config", "model")),
        (document, ("args", "model")),
    )
    found = (_get(holder, *keys) for holder, keys in places)
    return next((str(name) for name in found if name), None)


def _guidellm_concurrency(benchmark: Document, metrics: Document, path: Path) -> Any:
    """Return the requests in flight: as asked for, or else as measured on average."""
    strategy = _get(benchmark, "config", "strategy") or _get(benchmark, "args", "strategy") or {}
    kind = strategy.get("type_")
    if kind == "synchronous":
        return 1
    if kind == "concurrent":
        return strategy.get("streams") or strategy.get("max_concurrency")
    return _successful(metrics, "request_concurrency", path).get("mean")


def _successful(metrics: Document, name: str, path: Path) -> Document:
    """Return a metric's statistics over the successful requests."""
    statistics = _get(metrics, name, "successful")
    if not isinstance(statistics, dict):
        raise UsageError(
            f"--calibrate {path} is a report of GuideLLM without {name} of successful requests: "
            "give the benchmarks.json of a run with tokens streamed"
        )
    return statistics


def _aiperf(document: Document, path: Path) -> list[dict[str, Any]]:
    """Return the line of a run of AIPerf."""
    if document.get("was_cancelled") or document.get("is_complete") is False:
        raise UsageError(f"--calibrate {path} is of a run of AIPerf that was stopped: run it again")
    # GenAI-Perf, its predecessor, has means only: they are those of any number of requests.
    counted = _get(document, "request_count", "avg")
    completed = 1.0 if counted is None else counted
    return [
        {
            "model_id": _aiperf_model(_get(document, "input_config") or {}),
            "completed": completed,
            "failed": _get(document, "error_request_count", "avg"),
            "total_input_tokens": _product(
                _get(document, "input_sequence_length", "avg"), completed
            ),
            "total_output_tokens": _product(
                _get(document, "output_sequence_length", "avg"), completed
            ),
            "median_ttft_ms": _aiperf_ms(document, "time_to_first_token", path),
            "median_tpot_ms": _aiperf_ms(document, "inter_token_latency", path),
            "max_concurrency": _aiperf_concurrency(_get(document, "input_config") or {}),
        }
    ]


def _aiperf_model(config: Document) -> str | None:
    """Return the one model of a run; the first layout is of releases before 0.12."""
    names = _get(config, "endpoint", "model_names") or config.get("models") or config.get("model")
    if isinstance(names, dict):
        names = names.get("items")
    if isinstance(names, list):
        if len(names) != 1:
            return None
        names = names[0]
    if isinstance(names, dict):
        names = names.get("name")
    return str(names) if names else None


def _aiperf_concurrency(config: Document) -> Any:
    """Return the concurrency of the measured phase, or as GenAI-Perf writes it."""
    places = (("loadgen", "concurrency"), ("perf_analyzer", "stimulus", "concurrency"))
    found = (_get(config, *keys) for keys in (*places, ("concurrency",)))
    asked = next((value for value in found if value is not None), None)
    phases = config.get("phases")
    if asked is None and isinstance(phases, list):
        measured = [
            phase
            for phase in phases
            if isinstance(phase, dict) and not phase.get("exclude_from_results")
        ]
        if len(measured) == 1:
            asked = measured[0].get("concurrency")
    return asked


def _aiperf_ms(document: Document, name: str, path: Path) -> float | None:
    """Return the median of a metric in milliseconds."""
    metric = _get(document, name)
    if not isinstance(metric, dict) or not isinstance(metric.get("p50"), (int, float)):
        return None
    unit = str(metric.get("unit", ""))
    if unit not in MS_PER_UNIT:
        raise UsageError(f"--calibrate {path}: {name} has the unit {unit!r}, which is no time")
    return float(metric["p50"]) * MS_PER_UNIT[unit]


def _inference_perf(document: Document, path: Path) -> list[dict[str, Any]]:
    """Return the line of a stage of inference-perf, whose latencies are seconds.

    Without a recorded concurrency, Little's law gives its mean: requests per second times the mean
    seconds of a request.
    """
    successes = document["successes"]
    latency = _get(successes, "latency") or {}
    completed = successes.get("count")
    concurrency = _get(document, "load_summary", "concurrency")
    if concurrency is None:
        concurrency = _product(
            _get(successes, "throughput", "requests_per_sec"),
            _get(latency, "request_latency", "mean"),
        )
    prompt = _get(successes, "prompt_tokens", "mean") or _get(successes, "prompt_len", "mean")
    output = _get(successes, "output_len", "mean")
    return [
        {
            "completed": completed,
            "failed": _get(document, "failures", "count"),
            "total_input_tokens": _product(prompt, completed),
            "total_output_tokens": _product(output, completed),
            "median_ttft_ms": _product(
                _get(latency, "time_to_first_token", "median"), MS_PER_SECOND
            ),
            "median_tpot_ms": _product(
                _get(latency, "time_per_output_token", "median"), MS_PER_SECOND
            ),
            "max_concurrency": concurrency,
        }
    ]


def _get(document: Any, *keys: str) -> Any:
    """Return the value at a path of keys; None if there is none."""
    for key in keys:
        document = document.get(key) if isinstance(document, dict) else None
    return document


def _product(left: Any, right: Any) -> float | None:
    """Return a product; None if a factor is no number."""
    if isinstance(left, (int, float)) and isinstance(right, (int, float)):
        return float(left) * float(right)
    return None


def _is_guidellm(document: Document) -> bool:
    return isinstance(document.get("benchmarks"), list)


def _is_aiperf(document: Document) -> bool:
    # Without streaming, a report has no time to the first token.
    metrics = ("time_to_first_token", "request_latency")
    return any(_get(document, metric, "unit") is not None for metric in metrics)


def _is_inference_perf(document: Document) -> bool:
    return isinstance(_get(document, "successes", "latency"), dict)


_Reader = Callable[[Document, Path], list[dict[str, Any]]]
_READERS: tuple[tuple[Callable[[Document], bool], _Reader], ...] = (
    (_is_guidellm, _guidellm),
    (_is_aiperf, _aiperf),
    (_is_inference_perf, _inference_perf),
)
"""Which document is a report, and how its lines are read."""
