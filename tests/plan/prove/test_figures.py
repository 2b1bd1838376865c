"""Figures of loads, intervals over repeats, and what an engine says about itself."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.errors import MeasurementError
from foretune.plan import Workload
from foretune.plan.prove.client import ServedRequest
from foretune.plan.prove.engine_metrics import parse_metrics
from foretune.plan.prove.figures import Figure, LoadFigures, summarize_run
from foretune.plan.prove.load import Load

LOAD = Load(Workload(isl=10, osl=5), concurrency=2)


def request(sent_s=0.0, first_s=1.0, last_s=3.0, tokens=5, error=""):
    return ServedRequest(sent_s, first_s, last_s, prompt_tokens=10, tokens=tokens, error=error)


def test_figures_are_medians_and_total_throughput():
    run = summarize_run([request(), request(first_s=2.0), request(first_s=1.5, last_s=5.0)])
    assert run.ttft_ms == 1500
    assert run.tpot_ms == 500
    assert run.duration_s == 5.0
    assert run.tokens_per_s == 3.0
    assert run.prompt_tokens == 30


def test_failed_requests_do_not_count():
    run = summarize_run([request(), request(last_s=9.0, error="refused")])
    assert run.requests == 1
    assert run.duration_s == 3.0
    with pytest.raises(MeasurementError, match="refused"):
        summarize_run([request(error="refused")])


def test_figures_one_token_has_no_tpot():
    assert math.isnan(summarize_run([request(tokens=1)]).tpot_ms)


@given(st.lists(st.floats(0.1, 1e4), min_size=2, max_size=6))
def test_intervals_hold_their_value(values):
    figure = Figure.of_repeats(values)
    assert figure.low <= figure.value * (1 + 1e-9)
    assert figure.value <= figure.high * (1 + 1e-9)
    assert min(values) * (1 - 1e-9) <= figure.value <= max(values) * (1 + 1e-9)


def test_figures_one_repeat_has_no_interval():
    figure = Figure.of_repeats([2.0])
    assert figure.value == pytest.approx(2.0)
    assert math.isnan(figure.low)
    assert math.isnan(Figure.of_repeats([math.nan]).value)


def test_calibration_lines_add_up_the_repeats():
    run = summarize_run([request(), request()])
    shown = LoadFigures(LOAD, runs=(run, run), errors=(("refused", 2),))
    line = shown.calibration_line({"model_id": "m", "tp": 1})
    assert line["max_concurrency"] == 2
    assert line["completed"] == 4
    assert line["failed"] == 2
    assert line["total_output_tokens"] == 20
    assert line["median_tpot_ms"] == pytest.approx(500)
    assert not shown.short_answers


def test_metrics_sum_over_labels_and_ignore_the_rest():
    text = '# TYPE a gauge\na{x="1"} 2\na{x="2"} 3.5\nb NaN\nnonsense\nc 1e3 1700000\nd abc\n'
    assert parse_metrics(text) == {"a": 5.5, "c": 1000.0}


@given(st.text(max_size=200))
def test_metrics_of_any_text_are_numbers(text):
    assert all(math.isfinite(value) for value in parse_metrics(text).values())
