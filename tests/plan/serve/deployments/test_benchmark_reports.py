"""Reports of GuideLLM, AIPerf and inference-perf as lines of one form."""

from pathlib import Path

import pytest

from foretune.errors import UsageError
from foretune.plan.serve.deployments.benchmark_reports import lines_of

PATH = Path("report.json")
MODEL = "meta-llama/Llama-3.1-8B"

# 80 requests of 1,000 and 200 tokens, 16 in flight.
EXPECTED = {
    "tp": 4,
    "model_id": MODEL,
    "completed": 80,
    "total_input_tokens": 80_000,
    "total_output_tokens": 16_000,
    "median_ttft_ms": 100,
    "median_tpot_ms": 12.5,
    "max_concurrency": 16,
}


def successful(**statistics):
    return {"successful": statistics}


def guidellm(strategy, **benchmark):
    return {
        "tp": 4,
        "metadata": {"version": 2},
        "config": {"backend": {"model": MODEL}},
        "benchmarks": [
            {
                "config": {"strategy": strategy},
                "metrics": {
                    "prompt_token_count": successful(count=80, mean=1000.0),
                    "output_token_count": successful(count=80, mean=200.0),
                    "time_to_first_token_ms": successful(median=100.0),
                    "inter_token_latency_ms": successful(median=12.5),
                    "time_per_output_token_ms": successful(median=12.9),
                    "request_concurrency": successful(mean=16.0),
                },
                **benchmark,
            }
        ],
    }


def aiperf(config, ttft=(100.0, "ms"), **more):
    return {
        "tp": 4,
        "input_config": config,
        "request_count": {"unit": "requests", "avg": 80.0},
        "input_sequence_length": {"unit": "tokens", "avg": 1000.0},
        "output_sequence_length": {"unit": "tokens", "avg": 200.0},
        "time_to_first_token": {"unit": ttft[1], "avg": 120.0, "p50": ttft[0]},
        "inter_token_latency": {"unit": "ms", "avg": 13.0, "p50": 12.5},
        **more,
    }


def inference_perf(load):
    return {
        "tp": 4,
        "model_id": MODEL,
        "load_summary": load,
        "successes": {
            "count": 80,
            "latency": {
                "request_latency": {"mean": 4.0},
                "time_per_output_token": {"mean": 0.013, "median": 0.0125},
                "time_to_first_token": {"mean": 0.12, "median": 0.1},
            },
            "throughput": {"requests_per_sec": 4.0},
            "prompt_tokens": {"mean": 1000.0},
            "output_len": {"mean": 200.0},
        },
    }


OLD_AIPERF = {"endpoint": {"model_names": [MODEL]}, "loadgen": {"concurrency": 16}}
NEW_AIPERF = {
    "models": {"items": [{"name": MODEL}]},
    "phases": [{"concurrency": 4, "exclude_from_results": True}, {"concurrency": 16}],
}


@pytest.mark.parametrize(
    "report",
    [
        guidellm({"type_": "concurrent", "streams": 16}),
        guidellm({"type_": "poisson", "rate": 4.0}),
        aiperf(OLD_AIPERF),
        aiperf(NEW_AIPERF, ttft=(0.1, "s")),
        inference_perf({"concurrency": 16}),
        inference_perf({"requested_rate": 4.0}),
    ],
    ids=[
        *("GuideLLM", "GuideLLM at a rate", "AIPerf", "AIPerf 0.12"),
        *("inference-perf", "inference-perf at a rate"),
    ],
)
def test_lines_of_report_are_those_of_vllm(report):
    (line,) = lines_of(report, PATH)
    assert not line.pop("failed")
    assert line == pytest.approx(EXPECTED)


@pytest.mark.parametrize(
    "report",
    [
        aiperf(OLD_AIPERF, error_request_count={"avg": 20.0}),
        {**inference_perf({"concurrency": 16}), "failures": {"count": 20}},
    ],
    ids=["AIPerf", "inference-perf"],
)
def test_lines_of_report_have_the_failed_requests(report):
    assert lines_of(report, PATH)[0]["failed"] == 20


def test_lines_of_guidellm_take_the_layout_from_its_extras():
    report = guidellm({"type_": "synchronous"}, extras={"tp": 2})
    del report["tp"]
    (line,) = lines_of(report, PATH)
    assert (line["tp"], line["max_concurrency"]) == (2, 1)


@pytest.mark.parametrize(
    ("report", "reason"),
    [
        (aiperf(OLD_AIPERF, was_cancelled=True), "was stopped"),
        (aiperf(OLD_AIPERF, ttft=(100.0, "ticks")), "has the unit 'ticks'"),
        ({"benchmarks": [{"metrics": {}}]}, "a report of GuideLLM without prompt_token_count"),
    ],
)
def test_lines_of_incomplete_report_are_refused(report, reason):
    with pytest.raises(UsageError, match=reason):
        lines_of(report, PATH)


@pytest.mark.parametrize(
    ("report", "named"),
    [
        ({"avg_latency": 1.2, "percentiles": {}}, "vllm bench latency"),
        ({"requests_per_second": 2.5, "tokens_per_second": 100}, "vllm bench throughput"),
        ({"results_ttft_s_quantiles_p50": 0.1, "model": "m"}, "LLMPerf"),
        ({"world_info": {"tp_size": 4}, "performance": {}}, "trtllm-bench"),
        ({"tput_per_gpu": 100, "median_ttft": 0.1}, "InferenceX, in seconds"),
        ({"avg_ns": 1000, "n_prompt": 512}, "llama-bench"),
        ({"n_kv_max": 2048, "pp": 128, "speed_tg": 256.0}, "llama-batched-bench"),
        ({"aggregated_metrics": {}, "individual_request_metrics": []}, "genai-bench"),
        ({"batch_size": 8, "last_ttft": 0.1, "latency": 2.0}, "sglang.bench_one_batch_server"),
        (
            {"metadata": {"x_request_id": "7", "benchmark_phase": "profiling"}, "metrics": {}},
            "AIPerf, with single requests",
        ),
        ({"benchmark": {"name": "vLLM benchmark"}, "metric": {}}, "PyTorch's format"),
    ],
)
def test_lines_of_reports_that_are_not_read_are_refused_by_name(report, named):
    with pytest.raises(UsageError, match=named):
        lines_of(report, PATH)


def test_lines_of_genai_perf_are_those_of_aiperf():
    config = {"model": ["org/m"], "perf_analyzer": {"stimulus": {"concurrency": 8}}}
    report = {key: value for key, value in aiperf(config).items() if key != "request_count"}
    line = lines_of(report, PATH)[0]
    assert (line["model_id"], line["max_concurrency"], line["completed"]) == ("org/m", 8, 1)


@pytest.mark.parametrize(
    "options",
    [
        {"tensor_parallel_size": 4, "data_parallel_size": 2, "enable_expert_parallel": True},
        {"tensor-parallel-size": "4", "data-parallel-size": "2", "enable-expert-parallel": "true"},
        {"--tensor-parallel-size": 4, "--data-parallel-size": 2, "--enable-expert-parallel": True},
        {"tp": 4, "dp": 2, "ep": 8},
    ],
)
def test_lines_with_the_options_of_a_server_have_its_layout(options):
    (line,) = lines_of({"completed": 80, **options}, PATH)
    assert [int(line[label]) for label in ("tp", "dp", "ep")] == [4, 2, 8]


def test_lines_of_other_document_is_itself():
    assert lines_of({"completed": 80}, PATH) == [{"completed": 80}]
