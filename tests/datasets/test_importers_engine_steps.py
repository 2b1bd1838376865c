"""Steps of serving engines: vLLM's log, forward pass metrics, tables of SGLang's simulator."""

import gzip
import json

import pytest

from foretune.datasets import import_runs
from foretune.errors import RunTableError

GPU = "NVIDIA H200"
SIZE = "(EngineCore pid=9) INFO 11-30 06:29:45 [kv_cache_utils.py] GPU KV cache size: {} tokens"

CLOCKED = "(APIServer pid=7) INFO 11-30 06:30:{:02} [loggers.py:199] Engine {:03}: "


def step(number, prompts, tokens, answers, ms, rest="", answer_tokens=None):
    """Return a step as vLLM writes it."""
    of_answers = answers if answer_tokens is None else answer_tokens
    return (
        f"Iteration({number}): {prompts} context requests, {tokens} context tokens, "
        f"{answers} generation requests, {of_answers} generation tokens, "
        f"iteration elapsed time: {ms:.2f} ms{rest}"
    )


def used(percent):
    return f", GPU KV cache usage: {percent}%"


def metrics(wall_time, rank=0, counter=0, **scheduled):
    return {
        "version": 1,
        "worker_id": "w",
        "dp_rank": rank,
        "counter_id": counter,
        "wall_time": wall_time,
        "scheduled_requests": scheduled,
        "queued_requests": {"num_prefill_requests": 3},
    }


ANSWERS = {"num_decode_requests": 3, "sum_decode_kv_tokens": 600}
PROMPTS = {"num_prefill_requests": 2, "sum_prefill_tokens": 200, "sum_prefill_kv_tokens": 50}


def imported(tmp_path, lines, name="server.log", **options):
    path = tmp_path / name
    path.write_text("\n".join(lines))
    return import_runs(path, "engine-steps", device=GPU, **options)


def problems(result):
    """Return the sizes of each row, without the prefix of their columns."""
    columns = [name for name in result.runs if name.startswith("problem.")]
    named = result.runs[columns].rename(columns=lambda name: name.removeprefix("problem."))
    return named.to_dict("records")


def test_vllm_log_has_tokens_and_the_use_of_the_cache(tmp_path):
    lines = [
        SIZE.format("458,000"),
        CLOCKED.format(8, 0) + step(7, 2, 7957, 43, 125.94, used("2.0")),
        "(APIServer pid=7) INFO: 127.0.0.1 - POST /v1/completions HTTP/1.1 200 OK",
        CLOCKED.format(9, 0) + step(8, 0, 0, 44, 40.0, used("2.1")),
    ]
    result = imported(tmp_path, lines)
    assert result.runs["time_ms"].tolist() == [125.94, 40.0]
    assert problems(result) == [
        {"prompts": 2, "prompt_tokens": 7957, "answers": 43, "context": 0.020 * 458_000},
        {"prompts": 0, "prompt_tokens": 0, "answers": 44, "context": 0.021 * 458_000},
    ]
    assert not result.notes


def test_vllm_log_without_the_size_of_the_cache_says_so(tmp_path):
    result = imported(tmp_path, [step(0, 1, 64, 0, 20.0, used("2.0")), step(1, 0, 0, 1, 5.0)])
    assert problems(result)[1] == {"prompts": 0, "prompt_tokens": 0, "answers": 1}
    assert "tokens in the cache are not known" in result.notes[0]


def test_vllm_log_leaves_out_empty_steps_and_encoders(tmp_path):
    lines = [
        step(0, 0, 0, 0, 9.0, " (dummy)" + used("0.0")),
        step(1, 1, 900, 0, 30.0, used("0.0") + ", encoder inputs: 1, encoder output embeddings: 9"),
        step(2, 0, 0, 2, 5.0),
    ]
    result = imported(tmp_path, lines)
    assert result.runs["time_ms"].tolist() == [5.0]
    assert any("1 empty steps" in note for note in result.notes)
    assert any("1 steps with an encoder's inputs" in note for note in result.notes)


def test_vllm_log_with_drafted_tokens_counts_them(tmp_path):
    result = imported(tmp_path, [step(0, 0, 0, 2, 5.0, answer_tokens=8)])
    assert problems(result) == [
        {"prompts": 0, "prompt_tokens": 0, "answers": 2, "answer_tokens": 8}
    ]


@pytest.mark.parametrize(
    "beginnings",
    [(CLOCKED.format(1, 0), CLOCKED.format(1, 1)), ("(EngineCore_DP0) ", "(EngineCore_DP1) ")],
    ids=["by number", "by rank"],
)
def test_vllm_log_names_several_engines(tmp_path, beginnings):
    lines = [beginning + step(0, 0, 0, 1, 5.0) for beginning in beginnings]
    assert any("2 engines" in note for note in imported(tmp_path, lines).notes)


def test_vllm_log_of_waits_is_refused(tmp_path):
    """20 steps in each of 4 seconds that add up to 0.4 ms: results were there before it waited."""
    lines = [
        CLOCKED.format(second, 0) + step(number, 0, 0, 1, 0.02)
        for second in range(4)
        for number in range(20)
    ]
    with pytest.raises(RunTableError, match="--no-async-scheduling"):
        imported(tmp_path, lines)


@pytest.mark.parametrize("has_envelope", [False, True], ids=["flat", "traced"])
def test_metrics_are_steps(tmp_path, has_envelope):
    records = [metrics(0.025, counter=1, **PROMPTS, **ANSWERS), metrics(0.01, counter=2, **ANSWERS)]
    if has_envelope:
        records = [{"timestamp": 1, "event": {"fpm": record}} for record in records]
    result = imported(tmp_path, map(json.dumps, records), "fpm.jsonl")
    assert result.runs["time_ms"].tolist() == [25.0, 10.0]
    assert problems(result)[0] == {
        "prompts": 2,
        "prompt_tokens": 200,
        "prompt_context": 50,
        "answers": 3,
        "answer_context": 600,
    }


def test_metrics_without_work_or_time_are_left_out(tmp_path):
    records = [metrics(0.0), metrics(0.5), metrics(0.0, **ANSWERS), metrics(0.01, **ANSWERS)]
    result = imported(tmp_path, map(json.dumps, records), "fpm.jsonl")
    assert len(result.runs) == 1
    assert "3 records without work or time" in result.notes[0]


def test_metrics_of_ranks_are_joined(tmp_path):
    """A step has the work of both ranks, and takes as long as the slower one."""
    records = [
        metrics(0.010, rank=0, counter=7, **ANSWERS),
        metrics(0.012, rank=1, counter=7, **PROMPTS),
        metrics(0.008, rank=0, counter=8, **ANSWERS),
    ]
    result = imported(tmp_path, map(json.dumps, records), "fpm.jsonl")
    assert result.runs["time_ms"].tolist() == [12.0, 8.0]
    assert [row["ranks"] for row in problems(result)] == [2, 1]
    assert problems(result)[0]["answers"] == 3
    assert problems(result)[0]["prompts"] == 2


def test_metrics_of_ranks_without_a_counter_are_refused(tmp_path):
    records = [metrics(0.01, rank=rank, **ANSWERS) for rank in (0, 1)]
    for record in records:
        del record["counter_id"]
    with pytest.raises(RunTableError, match="2 ranks and no counter_id"):
        imported(tmp_path, map(json.dumps, records), "fpm.jsonl")


def test_metrics_are_read_from_gzip_with_a_cut_last_line(tmp_path):
    text = json.dumps(metrics(0.01, **ANSWERS)) + "\n" + '{"version": 1, "wall_'
    path = tmp_path / "fpm.jsonl.gz"
    path.write_bytes(gzip.compress(text.encode()))
    assert len(import_runs(path, "engine-steps", device=GPU).runs) == 1


def test_replay_table_has_requests_with_new_and_cached_tokens(tmp_path):
    table = {"[[1, 100], [1, 300]]": 0.004, "[[512, 0], [256, 64]]": 0.02}
    result = imported(tmp_path, [json.dumps(table)], "replay_table.json")
    assert result.runs["time_ms"].tolist() == [4.0, 20.0]
    assert problems(result) == [
        {
            "prompts": 0,
            "prompt_tokens": 0,
            "prompt_context": 0,
            "answers": 2,
            "answer_context": 400,
        },
        {
            "prompts": 2,
            "prompt_tokens": 768,
            "prompt_context": 64,
            "answers": 0,
            "answer_context": 0,
        },
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "Decode batch. #running-req: 4, #token: 900, gen throughput: 80",
            "SGLang's log",
        ),
        ("iter = 4, host_step_time = 9.1ms, prev_device_step_time = 8.9ms", "TensorRT-LLM"),
        ("Engine 000: Avg prompt throughput: 9.0 tokens/s", "without its steps"),
        ("nothing of this kind", "is not a log of engine steps"),
        ('{"a": 1}', "no wall_time"),
        (json.dumps(metrics(0.01, **ANSWERS) | {"version": 2}), "version 2"),
        (json.dumps(metrics("fast", **ANSWERS)), "wall_time is 'fast'"),
        (json.dumps(metrics(-0.01, **ANSWERS)), "wall_time is -0.01"),
        ('{"wall_time": 0.1}\nnoise\n{"wall_time": 0.1}', "is damaged"),
        ('{"[[1, \\"x\\"]]": 0.1}', "is damaged"),
        ('{"[[1, 4]]": NaN}', "is damaged"),
        ('{"[[1, 4]]": -0.1}', "is damaged"),
        ('{"[[0, 4]]": 0.1}', "is damaged"),
        ('{"wall_time": 0.1, "scheduled_requests": [1]}', "scheduled_requests is .1., which is no"),
    ],
)
def test_other_text_is_refused_by_name(tmp_path, text, reason):
    with pytest.raises(RunTableError, match=reason):
        imported(tmp_path, [text])


@pytest.mark.parametrize("field", ["log", "message"])
def test_vllm_log_in_records_of_a_container_is_read(tmp_path, field):
    lines = [SIZE.format("458,000"), step(7, 0, 0, 4, 12.5, used("2.0"))]
    records = [json.dumps({field: f"{line}\n", "stream": "stderr"}) for line in lines]
    result = imported(tmp_path, records)
    assert result.runs["time_ms"].tolist() == [12.5]
    assert problems(result)[0]["context"] == 0.020 * 458_000


def test_metrics_in_a_list_are_read(tmp_path):
    records = [metrics(0.02, counter=i, **ANSWERS) for i in range(2)]
    result = imported(tmp_path, [json.dumps(records)], name="steps.json")
    assert result.runs["time_ms"].tolist() == [20.0, 20.0]
    assert not result.notes


def test_slow_steps_say_in_which_unit_times_are_read(tmp_path):
    result = imported(tmp_path, [json.dumps(metrics(20.0, **ANSWERS))], name="steps.jsonl")
    assert "a step takes 20 s (median): times are read as seconds" in result.notes[0]
