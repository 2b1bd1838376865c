"""Requests of several lengths: kinds and shares, files of others, and what a plan makes of them."""

import json

import numpy as np
import pandas as pd
import pytest

from foretune.errors import ProblemError, RunTableError, UsageError
from foretune.plan import Formats, Layout, Workload
from foretune.plan.cost.memory import max_requests, rank_memory, request_bytes
from foretune.plan.describe.length_files import parse_histogram, read_lengths
from foretune.plan.describe.lengths import MAX_KINDS, LengthMix
from foretune.plan.engine.requests import Requests

TWO = LengthMix.from_counts([100, 1000], [10, 50], [3, 1])


def test_mix_means_count_requests():
    assert TWO.shares == (0.75, 0.25)
    assert TWO.mean_isl == 325
    assert TWO.mean_osl == 20
    assert TWO.longest == 1050


def test_mix_running_shares_count_answers_as_long_as_they_take():
    """Three answers of 10 tokens run as long as 30 steps, one of 50 as long as 50."""
    np.testing.assert_allclose(TWO.running_shares, [30 / 80, 50 / 80])
    assert TWO.mean_context == pytest.approx(30 / 80 * 105 + 50 / 80 * 1025)


def test_mix_adds_equal_requests_and_leaves_those_out_that_never_occur():
    mix = LengthMix.from_counts([5, 5, 9], [2, 2, 9], [1, 3, 0])
    assert (mix.isl, mix.osl, mix.shares) == ((5,), (2,), (1.0,))


@pytest.mark.parametrize("counts", [[], [0.0, 0.0]])
def test_mix_without_requests_is_refused(counts):
    with pytest.raises(ProblemError, match="no request occurs"):
        LengthMix.from_counts([1, 2][: len(counts)], [1, 2][: len(counts)], counts)


def test_many_kinds_are_joined_and_keep_their_means():
    rng = np.random.default_rng(0)
    isl = rng.integers(1, 5000, 3000)
    osl = rng.integers(1, 900, 3000)
    mix = LengthMix.from_counts(isl.tolist(), osl.tolist(), [1.0] * 3000)
    assert len(mix.shares) <= MAX_KINDS
    assert mix.mean_isl == pytest.approx(isl.mean(), rel=1e-3)
    assert mix.mean_osl == pytest.approx(osl.mean(), rel=2e-3)
    assert mix.longest == (isl + osl).max()
    assert mix.longest_prompt == isl.max()
    exact = (osl * (isl + osl / 2)).sum() / osl.sum()
    assert mix.mean_context == pytest.approx(exact, rel=0.01)


def test_drawn_requests_have_the_shares_of_the_mix():
    isl, osl = TWO.draw(200, seed=3)
    assert (isl == 100).sum() == 150
    assert set(zip(isl.tolist(), osl.tolist(), strict=True)) == {(100, 10), (1000, 50)}
    assert isl[:20].tolist() != sorted(isl[:20].tolist())


def test_requests_of_a_workload_have_its_lengths():
    workload = Workload.of_mix(TWO, prefix=20)
    requests = Requests.in_flight_of(workload, 40, in_flight=4)
    assert requests.in_flight == 4
    assert requests.isl.mean() == pytest.approx(325)
    assert (requests.cached == 20).all()
    arriving = Requests.arriving_of(workload, 40, per_s=2.0)
    assert arriving.arrival_ms[-1] > 0
    assert Requests.arriving_of(Workload(7, 3), 5, per_s=2.0).isl.tolist() == [7] * 5


def test_prefix_must_be_shorter_than_the_shortest_prompt():
    with pytest.raises(ProblemError, match="between 0 and 99"):
        Workload.of_mix(TWO, prefix=100)


def test_memory_holds_the_mean_of_running_requests(small):
    workload = Workload.of_mix(TWO)
    each = {n: request_bytes(small, Layout(), Formats(), n) for n in (110, 1050)}
    held = rank_memory(small, Layout(), Formats(), workload, np.array([1, 8]))
    mean = 30 / 80 * each[110] + 50 / 80 * each[1050]
    np.testing.assert_allclose(held.kv_cache, [each[1050], 8 * mean])


def test_fewer_requests_fit_than_of_the_mean_lengths(small):
    mixed = Workload.of_mix(TWO)
    equal = Workload(mixed.isl, mixed.osl)
    fit = [max_requests(small, Layout(), Formats(), w, 2.0) for w in (mixed, equal)]
    assert 0 < fit[0] < fit[1]


# Files


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ours.csv", "isl,osl,count\n100,10,3\n1000,50,1\n"),
        ("shares.csv", "isl,osl,share\n100,10,.75\n1000,50,.25\n"),
        ("percent.csv", "prompt_tokens;completion_tokens;percent\n100;10;75\n1000;50;25\n"),
        (
            "azure.csv",
            "TIMESTAMP,ContextTokens,GeneratedTokens\na,100,10\nb,100,10\nc,1000,50\nd,100,10\n",
        ),
        (
            "burst.csv",
            "Request tokens,Response tokens,Log Type\n100,10,x\n1000,50,x\n100,10,x\n100,10,x\n",
        ),
        ("vllm.csv", "num_prompt_tokens,num_completion_tokens,count\n100,10,3\n1000,50,1\n"),
        ("capitals.csv", "ISL,OSL,Requests\n100,10,3\n1000,50,1\n"),
        ("vidur.csv", "num_prefill_tokens,num_decode_tokens\n100,10\n100,10\n100,10\n1000,50\n"),
        (
            "rows.json",
            json.dumps([{"isl": 100, "osl": 10, "id": 1}] * 3 + [{"isl": 1000, "osl": 50}]),
        ),
        ("columns.json", json.dumps({"isl": [100, 1000], "osl": [10, 50], "count": [3, 1]})),
        ("dplyr.csv", "isl,osl,n\n100,10,3\n1000,50,1\n"),
        ("german.csv", "isl;osl;anteil\n100;10;0,75\n1000;50;0,25\n"),
        ("signs.csv", "isl,osl,share\n100,10,75%\n1000,50,25%\n"),
        ("thousands.csv", 'isl,osl,count\n100,10,3\n"1,000",50,1\n'),
        ("points.csv", "isl;osl;count\n100;10;3\n1.000;50;1\n"),
        ("gemini.csv", "promptTokenCount,candidatesTokenCount,n\n100,10,3\n1000,50,1\n"),
        ("splitwise.csv", "prompt_size,token_size,count\n100,10,3\n1000,50,1\n"),
        (
            "detailed.json",
            json.dumps(
                {
                    "completed": 4,
                    "input_lens": [100, 100, 100, 1000],
                    "output_lens": [10, 10, 10, 50],
                }
            ),
        ),
        (
            "mooncake.jsonl",
            '{"timestamp": 0, "input_length": 1000, "output_length": 50}\n'
            + '{"timestamp": 1, "input_length": 100, "output_length": 10}\n' * 3,
        ),
    ],
)
def test_lengths_of_others_are_read(name, text, tmp_path):
    found = read_lengths(write(tmp_path, name, text))
    assert found.mix == TWO


def test_usage_of_answers_is_read(tmp_path):
    usage = {"usage": {"prompt_tokens": 100, "completion_tokens": 10}}
    longer = {"usage": {"prompt_tokens": 1000, "completion_tokens": 50}}
    lines = "".join(json.dumps({"body": body}) + "\n" for body in (usage, usage, longer, usage))
    assert read_lengths(write(tmp_path, "usage.jsonl", lines)).mix == TWO


def test_prompts_of_anthropic_have_their_cached_tokens(tmp_path):
    """``input_tokens`` are those after the last cached one: 40 + 60 + 0, and 100 + 0 + 900."""
    short = {"input_tokens": 40, "cache_read_input_tokens": 60, "output_tokens": 10}
    long = {"input_tokens": 100, "cache_creation_input_tokens": 900, "output_tokens": 50}
    lines = "".join(json.dumps({"usage": usage}) + "\n" for usage in (short, short, short, long))
    assert read_lengths(write(tmp_path, "usage.jsonl", lines)).mix == TWO


def test_records_of_aiperf_are_read(tmp_path):
    def record(isl, osl):
        metrics = {"input_sequence_length": isl, "output_sequence_length": osl}
        with_units = {name: {"value": value, "unit": "tokens"} for name, value in metrics.items()}
        return json.dumps({"metadata": {"session_num": 0}, "metrics": with_units})

    lines = "\n".join([record(100, 10)] * 3 + [record(1000, 50)])
    assert read_lengths(write(tmp_path, "profile_export.jsonl", lines)).mix == TWO


def test_requests_without_lengths_have_failed(tmp_path):
    path = write(tmp_path, "a.csv", "isl,osl,error\n9,3,\n,,timeout\n")
    found = read_lengths(path)
    assert found.mix.isl == (9,)
    assert any("1 row without an answer left out" in note for note in found.notes)


def test_lengths_in_parquet_are_read(tmp_path):
    table = pd.DataFrame({"isl": [100, 1000], "osl": [10, 50], "count": [3, 1]})
    table.to_parquet(tmp_path / "lengths.parquet")
    assert read_lengths(tmp_path / "lengths.parquet").mix == TWO


def test_what_is_not_read_is_named(tmp_path):
    path = write(tmp_path, "a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\na,9,3\nb,9,0\n")
    notes = " ".join(read_lengths(path).notes)
    assert "not read: TIMESTAMP" in notes
    assert "1 row without an answer" in notes


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("isl,osl\n", "no rows"),
        ("isl,tokens\n1,2\n", "no column osl"),
        ("isl,osl,prompt_tokens\n1,2,3\n", "isl and prompt_tokens, which both are isl"),
        ("isl,osl\n1.5,2\n", "row 1: isl must be a whole number"),
        ("isl,osl\n5,2\n-1,2\n", "row 2: isl must be a whole number"),
        ("isl,osl\n0-512,2\n", "not 0-512: give each bucket one length"),
        ("isl,osl,part\n5,2,.2\n9,2,.8\n", "column part adds up to 1: call it share"),
        ("percentile,isl,osl\n50,5,2\n99,9,2\n", "has percentiles .percentile., not requests"),
        ("isl,osl\n5,\n", "row 1: osl must be a whole number"),
        ("isl,osl,count\n5,2,-3\n", "row 1: count must be a number from 0 on"),
        ("isl,osl,share\n5,2,.2\n9,2,.3\n", "the shares add up to 0.5 instead of 1"),
        ("isl,osl,count\n5,2,0\n", "no request occurs"),
        ("isl,osl\n5,3000000000\n", "row 1: osl must be a whole number"),
    ],
)
def test_lengths_that_are_not_understood_are_refused(text, reason, tmp_path):
    with pytest.raises(RunTableError, match=reason):
        read_lengths(write(tmp_path, "a.csv", text))


def test_texts_are_refused_by_name(tmp_path):
    conversations = [{"id": "a", "conversations": [{"from": "human", "value": "hello"}]}]
    path = write(tmp_path, "sharegpt.json", json.dumps(conversations))
    with pytest.raises(RunTableError, match="not lengths: count their tokens"):
        read_lengths(path)


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(RunTableError, match="nothing"):
        read_lengths(tmp_path / "nothing.csv")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("512", {512: 1.0}),
        ("512:0.7,4096:0.3", {512: 0.7, 4096: 0.3}),
        ("512:7,4096:3", {512: 7.0, 4096: 3.0}),
    ],
)
def test_parse_histogram(text, expected):
    assert parse_histogram(text, "--isl") == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("512,4096", "TOKENS:SHARE"),
        ("a:1", "TOKENS:SHARE"),
        ("", "TOKENS:SHARE"),
        ("512:0.7,", "TOKENS:SHARE"),
        ("0", "at least 1"),
        ("512:0", "share of 512"),
        ("512:nan", "share of 512"),
        ("512:0.5,512:0.5", "given twice"),
        ("512:0.5,64:0.2", "add up to 0.7"),
    ],
)
def test_parse_histogram_refuses(text, reason):
    with pytest.raises(UsageError, match=reason):
        parse_histogram(text, "--isl")
