"""The HTML report of a plan, its tables and charts: `plan/serve/report.py`."""

import dataclasses
import math
from html.parser import HTMLParser

import numpy as np
import pytest

from foretune.errors import OutputError, UsageError
from foretune.plan import Formats, PlanRequest, Requirements, Workload, find_system, plan
from foretune.plan.cost.steps import StepTimerFactory
from foretune.plan.serve.breakdown import (
    memory_breakdown,
    operator_breakdown,
    stacked_bars,
    time_bars,
)
from foretune.plan.serve.candidate_table import COLUMNS, chosen_candidates
from foretune.plan.serve.deployments.analytic import analytic_times
from foretune.plan.serve.explanation import describe_candidate, notes
from foretune.plan.serve.front_figure import front_figure, group_marks
from foretune.plan.serve.report import write_plan_report
from foretune.tune.report.chart import Line, Mark, Note, Points, Segment
from foretune.tune.report.page import number

LOAD = Workload(512, 64)
CLOCKS = StepTimerFactory(None)
FORMATS = (Formats("bf16"), Formats("int8"), Formats("int8", kv="fp8"))
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
EVIL = "<script>alert('x')</script>"


@pytest.fixture
def small(small):
    """Large enough that a step takes the GPU longer than the CPU."""
    return dataclasses.replace(
        small, layers=32, hidden=4096, heads=32, kv_heads=8, head_dim=128, intermediate=14336
    )


def made(model, systems=("h100_sxm",), requirements=None, intervals=False, **options):
    """A plan for two GPUs by rooflines, and what was asked."""
    request = PlanRequest(
        model=model,
        systems=tuple(find_system(name) for name in systems),
        gpus=2,
        workload=LOAD,
        requirements=requirements or Requirements(),
        formats=FORMATS,
        **options,
    )
    answer = plan(request, CLOCKS)
    if intervals:
        for name in ("ttft_ms", "tpot_ms"):
            answer.candidates[f"{name}_low"] = 0.9 * answer.candidates[name]
            answer.candidates[f"{name}_high"] = 1.2 * answer.candidates[name]
    return dataclasses.replace(answer, corrected=intervals, seconds=2.0)


def written(tmp_path, answer, **options):
    path = write_plan_report(answer, tmp_path / "report.html", CLOCKS, **options)
    return path.read_text("utf-8")


class Page(HTMLParser):
    """Checks that every element is closed in turn; collects what is shown, drawn and loaded."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.loaded, self.labels = [], [], [], []
        self.tables, self._caption, self._shown = {}, False, []
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(self._shown).split())  # no-break spaces become plain

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.append(tag)
        self.loaded += [attrs[name] for name in ("src", "href", "action") if name in attrs]
        if attrs.get("role") == "img":
            self.labels.append(attrs["aria-label"])
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        elif tag in ("td", "th"):
            self._rows[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.loaded += [value for name, value in attrs if name == "href"]

    def handle_endtag(self, tag):
        assert tag == self.open.pop()
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data):
        if "style" not in self.open:
            self._shown.append(data)
            if self.open and self.open[-1] == "caption":
                self._caption = data
            elif {"td", "th"} & set(self.open):
                self._rows[-1][-1] += data


def cells_of(page, caption, answer, line):
    """The cells of a candidate's row, by what stands above them."""
    heading, *rows = page.tables[caption]
    texts = [[cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row] for row in rows]
    (row,) = (row for row in texts if row[0].endswith(describe_candidate(answer, line)))
    return dict(zip(heading, row, strict=True))


FRONT = "The Pareto front, fastest first"


def test_report_is_valid_and_loads_nothing(tmp_path, small):
    page = Page(written(tmp_path, made(small), commands={"vllm": "vllm serve small"}))
    assert all(link.startswith("#") for link in page.loaded)
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert page.tags.count("h2") == page.tags.count("section") == 7
    assert len(page.labels) == 4  # the front, two steps, memory
    assert all(len(label) > 40 for label in page.labels)
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_report_lists_front_with_numbers(tmp_path, small):
    answer = made(small)
    page = Page(written(tmp_path, answer))
    front = answer.pareto
    assert len(page.tables[FRONT]) == len(front) + 1 > 3
    titles = {c.name: c.title for c in COLUMNS}
    for _, line in front.iterrows():
        cells = cells_of(page, FRONT, answer, line)
        for name in ("ttft_ms", "tpot_ms", "tokens_per_s_per_gpu", "memory_gib"):
            assert cells[titles[name]] == number(line[name])


def test_report_separates_sentences(tmp_path, small):
    page = Page(written(tmp_path, made(small, requirements=Requirements(tpot_ms=50.0))))
    assert "overall front. Only candidates" in page.text


def test_report_unknown_column_is_left_out(tmp_path, small):
    answer = made(small)
    answer.candidates["power_w"] = np.nan
    assert "W per GPU" not in Page(written(tmp_path, answer)).tables[FRONT][0]
    answer = made(small)
    answer.candidates["power_w"] = 345.6
    page = Page(written(tmp_path, answer))
    assert cells_of(page, FRONT, answer, answer.best)["W per GPU"] == "346"


def test_report_shows_intervals(tmp_path, small):
    answer = made(small, intervals=True)
    text = written(tmp_path, answer)
    page = Page(text)
    best = answer.best
    value, low, high = (number(f * best["tpot_ms"]) for f in (1.0, 0.9, 1.2))
    cells = cells_of(page, FRONT, answer, best)
    assert cells["Further token, ms"] == f"{value}{low} – {high}"
    assert f"90 %: {low} – {high}" in page.text
    mark = time_bars(answer, chosen_candidates(answer), CLOCKS, "decode").bars.mark
    assert mark.high[0] - mark.values[0] == pytest.approx(0.2 * best["tpot_ms"])
    assert 'class="range"' in text


def test_report_has_question_and_notes(tmp_path, small):
    answer = made(small, requirements=Requirements(tpot_ms=50.0, goal="latency"))
    text = Page(written(tmp_path, answer)).text
    facts = ["prompts of 512 tokens, answers of 64", "50 ms per further token", "latency"]
    facts += [
        f"{len(answer.candidates):,} deployments in 2 s",
        describe_candidate(answer, answer.best),
    ]
    facts += notes(answer)
    for fact in facts:
        assert fact in text


def test_report_escapes_names(tmp_path, small):
    answer = made(dataclasses.replace(small, name=f"<b>x{EVIL}"))
    page_text = written(tmp_path, answer, commands={EVIL: EVIL})
    page = Page(page_text)
    assert "<script>alert" not in page_text
    assert "<b>x" not in page_text
    assert f"<b>x{EVIL} on 2" in page.text


def test_report_compares_systems(tmp_path, small):
    answer = made(small, systems=("a100_sxm", "h100_sxm"))
    page = Page(written(tmp_path, answer))
    rows = page.tables["The best deployment of each system"]
    assert len(rows) == 3
    assert "USD per GPU and hour" in rows[0]
    assert list(group_marks(answer)) == ["h100_sxm", "a100_sxm"]


def test_report_says_why_system_has_no_deployment(tmp_path, small):
    answer = made(small, systems=("a100_sxm", "h100_sxm"))
    slow = answer.candidates["system"] == "a100_sxm"
    answer.candidates.loc[slow, "keeps"] = False
    assert "a100_sxm: no deployment meets the limits" in Page(written(tmp_path, answer)).text
    refused = dataclasses.replace(
        answer, excluded_systems={"a100_sxm": "small fits nowhere on a100_sxm"}
    )
    assert "small fits nowhere on a100_sxm" in Page(written(tmp_path, refused)).text


@pytest.mark.parametrize("options", [{"pools": True}, {"rate": 2.0}])
def test_report_of_pools_and_rates(tmp_path, small, options):
    answer = made(small, **options)
    page = Page(written(tmp_path, answer))
    assert len(page.tables[FRONT]) == len(answer.pareto) + 1
    assert ("Within limits" in page.tables[FRONT][0]) == ("rate" in options)


def test_operator_breakdown_adds_up_to_step(small, sparse):
    for model in (small, sparse):
        answer = made(model, pools=True)
        some = answer.deployments[:: len(answer.deployments) // 4]
        rows = analytic_times(some, CLOCKS)
        for phase, column in (("decode", "decode"), ("prefill", "prompt")):
            sums = [operator_breakdown(d, CLOCKS, phase)["ms"].sum() for d in some]
            host = rows["host"] if phase == "decode" else 0.0
            np.testing.assert_allclose(sums, rows[column] - host, rtol=1e-9)


def test_operator_breakdown_names_parts(sparse):
    answer = made(sparse)
    found = operator_breakdown(answer.deployment(answer.best), CLOCKS)
    parts = dict(zip(found["operator"], found["part"], strict=True))
    assert (parts["qkv"], parts["attention"], parts["experts"], parts["rms_norm"]) == (
        "projections",
        "attention",
        "experts",
        "rest",
    )
    assert found["ms"].is_monotonic_decreasing
    assert found["operator"].is_unique


def test_memory_breakdown_adds_up(small):
    answer = made(small, pools=True)
    sums = [sum(memory_breakdown(d).values()) for d in answer.deployments]
    np.testing.assert_allclose(sums, answer.candidates["memory_gib"], rtol=1e-12)


def test_front_figure_groups_are_within_limits(small):
    limit = float(made(small).candidates["tpot_ms"].median())
    answer = made(small, requirements=Requirements(tpot_ms=limit))
    chart = front_figure(answer)
    lines = [layer for layer in chart.layers[2:-2] if isinstance(layer, Line)]
    assert len(lines) == len(group_marks(answer))
    for line in lines:
        assert min(line.x) >= 1e3 / limit
        assert line.x == sorted(line.x)
        assert line.y == sorted(line.y, reverse=True)
    best, (drawn,) = (
        answer.best,
        [layer for layer in chart.layers if isinstance(layer, Points) and layer.symbol == "ring"],
    )
    assert drawn.x == [1e3 / best["tpot_ms"]]
    assert chart.layers[-2].x == [1e3 / limit, 1e3 / limit]
    assert chart.x.high > 1e3 / limit


def test_front_figure_without_limit_has_no_limit_line(small):
    last = front_figure(made(small)).layers[-1]
    assert isinstance(last, Note)
    assert last.text == "best"


def test_stacked_bars_start_at_first_segment():
    segments = [Segment("a", "@measured", [1.0, 2.0]), Segment("b", "@library", [3.0, 0.0])]
    bars = stacked_bars(["x", "<y>"], segments, "time, ms", Mark("all", [5.0, math.nan]))
    assert bars.axis.high == pytest.approx(5.2)
    (first, second), (only,) = bars.parts(0), bars.parts(1)
    assert (first[0], second[0]) == (0, bars.axis.position(1.0))
    assert second[1] == pytest.approx(bars.axis.position(3.0), abs=0.02)
    assert only[2].name == "a"
    assert bars.mark_positions(0) == {"at": bars.axis.position(5.0)}
    assert bars.mark_positions(1) == {}


def test_report_front_outside_limits(tmp_path, small):
    answer = made(small)
    answer.candidates["pareto"] = False
    text = Page(written(tmp_path, answer)).text
    assert "All candidates on the front violate a limit" in text


def test_report_infeasible_plan_writes_nothing(tmp_path, small):
    answer = made(small, requirements=Requirements(tpot_ms=1e-9))
    with pytest.raises(UsageError, match="no deployment meets the limits"):
        written(tmp_path, answer)
    assert list(tmp_path.iterdir()) == []


def test_report_unwritable_path_is_one_line(tmp_path, small):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="there is no folder") as error:
        written(tmp_path / "file", made(small))
    assert "\n" not in str(error.value)


@pytest.mark.browser
def test_report_is_drawn_by_browser(tmp_path, small, browser):
    answer = made(small, requirements=Requirements(tpot_ms=50.0), intervals=True)
    written(tmp_path, answer, commands={"vllm": "vllm serve small"})
    for width in (1280, 500):
        image = browser.screenshot(tmp_path / "report.html", width, 6000)
        assert (image == (0, 114, 178)).all(axis=2).sum() > 1000
        assert browser.width_of_content(tmp_path / "report.html", width) <= width
