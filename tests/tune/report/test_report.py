"""The report: right sentences, safe and self-contained HTML, charts that a browser draws."""

import dataclasses
import math
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.collect.wrapped.function import FunctionKernel
from foretune.device import Device
from foretune.errors import OutputError
from foretune.models.explanation import Importance
from foretune.models.validation.cross_validation import Validation
from foretune.objective import Objective
from foretune.problem import Problem
from foretune.space import Configuration
from foretune.tune.report.campaign_report import ReportData, headline, write_report
from foretune.tune.report.chart import Bars, Line, Points, Spans, linear_axis, value_axis
from foretune.tune.report.figures import (
    Rate,
    pareto_figure,
    rates,
    roofline_figure,
    trace_figure,
    worth_figure,
)
from foretune.tune.report.validation_page import validation_page
from foretune.tune.results import Comparison, SearchStep, TuneResult

DEVICE = Device("Test CPU", "cpu", "x86_64", {"cores": 2, "fp32_gflops": 200.0}, "made up")
DEFAULT = Configuration(tile=8, order="ij")
BEST = Configuration(tile=64, order="ij")
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
EVIL = "<script>alert('x')</script>"


def result(n=512, speedup=1.5, library=0.8, failed=False, objective=Objective.TIME):
    """A search of three measurements; ``library`` is its time over the winner's."""
    best_ms = n / 1000
    steps = [
        SearchStep(
            DEFAULT, "ok", 3 * best_ms, math.nan, 3 * best_ms, 2 * best_ms, best_ms, 4 * best_ms
        ),
        SearchStep(BEST, "ok", best_ms, math.nan, best_ms, best_ms, 0.5 * best_ms, 2 * best_ms),
    ]
    if failed:
        steps.append(SearchStep(BEST, "timeout", math.nan, math.nan, math.inf))
    interval = (speedup * 0.97, speedup * 1.03)
    contenders = [
        Comparison("default", DEFAULT, best_ms * speedup, 1.0, 1.0, 1.0),
        Comparison("candidate 1", BEST, best_ms, speedup, *interval),
    ]
    if library is not None:
        ratio = speedup / library
        contenders.append(Comparison("BLAS", None, best_ms * library, ratio, ratio, ratio))
    return TuneResult(
        "matmul",
        Problem(N=n),
        DEVICE.name,
        objective,
        "surrogate",
        tuple(steps),
        tuple(contenders),
        5,
        100,
        3.0,
    )


def run_table(power=False, kernel="matmul"):
    rng = np.random.default_rng(0)
    runs = pd.DataFrame(
        {
            "kernel": kernel,
            "device": DEVICE.name,
            "status": "ok",
            "problem.N": np.repeat([64, 128], 10),
            "config.tile": np.tile([8, 64], 10),
            "config.order": "ij",
            "time_ms": rng.uniform(1, 2, 20),
            "power_w": rng.uniform(50, 60, 20) if power else np.nan,
            "error": "",
        }
    )
    runs.loc[3, ["status", "time_ms", "error"]] = ["runtime_error", np.nan, f"died: {EVIL}"]
    return runs


def report_data(results, **changes):
    metrics = dict.fromkeys(("mape", "median_ape", "p95_ape", "top1_regret", "coverage90"), 0.0625)
    models = {"xgboost": {**metrics, "spearman": 0.9}, "nearest neighbor": {"mape": math.nan}}
    truth = np.geomspace(0.1, 10, 10)
    held_out = pd.DataFrame(
        {
            "problem": "N=64",
            "truth": truth,
            "prediction": truth * 1.1,
            "low": truth * 0.9,
            "high": truth * 1.3,
        }
    )
    held_out.loc[0, "high"] = 0.95 * truth[0]
    data = ReportData(
        kernel="matmul",
        device=DEVICE,
        objective=Objective.TIME,
        runs=run_table(),
        validation=Validation(
            {"time_ms": {"random": models, "grouped": models}}, {"time_ms": held_out}
        ),
        learned={"rows": 10, "problems": 1},
        results=results,
        importance=pd.DataFrame({"parameter": ["tile", "order"], "factor": [2.5, 1.1]}),
        environment="python 3.11",
        started_at="2026-10-05T12:31:07+00:00",
        seconds=284.0,
        mlflow_uri="sqlite:///mlflow.db",
        space_size=673_920,
    )
    return dataclasses.replace(data, **changes)


def said(data):
    return headline(data.results, data.space_size)


def written(tmp_path, results, **changes):
    return write_report(tmp_path / "report.html", report_data(results, **changes)).read_text(
        "utf-8"
    )


class Page(HTMLParser):
    """Checks that every element is closed in turn; collects what is visible and what is loaded."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.loaded, self.figures, shown = [], [], [], 0, []
        self._shown = shown
        self.feed(text)
        self.close()
        assert self.open == []
        self.text = " ".join(" ".join(shown).split())

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        attrs = dict(attrs)
        if tag in ("script", "img", "iframe", "source"):
            self.loaded.append(attrs.get("src"))
        if tag == "link":
            self.loaded.append(attrs.get("href"))
        self.figures += attrs.get("role") == "img"
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert tag == self.open.pop()

    def handle_data(self, data):
        if "style" not in self.open:
            self._shown.append(data)


def test_page_is_balanced_and_loads_nothing(tmp_path):
    text = written(tmp_path, [result(), result(64, failed=True)])
    page = Page(text)
    assert not any(page.loaded)
    assert "@import" not in text.partition("</style>")[0]
    assert page.tags.count("h1") == page.tags.count("main") == 1
    assert page.tags.count("h2") == page.tags.count("section") == 7
    assert page.figures == 4  # two traces, predictions, parameters
    assert "script" not in page.tags
    assert len(text) < 100_000
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]


def test_sections_state_what_was_found(tmp_path):
    text = Page(written(tmp_path, [result(), result(64, speedup=2.0)])).text
    assert said(report_data([result(), result(64, speedup=2.0)])) in text
    for fact in (
        "Against BLAS: faster on 0 of 2, 0.80× in the geometric mean.",
        "0.80× 0.78 – 0.82 slower than BLAS",
        "1.46 – 1.54",
        "90 % of 10 measurements in the 90 % interval",
        "nearest neighbor",
        "6.2 %",
        "There was no power meter",
        "runtime_error",
        "100 rounds",
        "python 3.11",
        "sqlite:///mlflow.db",
        "streaming multiprocessors",
        "5 min",
    ):
        assert fact in text


@pytest.mark.parametrize(
    ("results", "outcome", "spent"),
    [
        (
            [result(), result(64, speedup=6.0)],
            "2 of 2 unseen problems faster than the default: 3.00× (2.94–3.06) on average",
            "2 measurements each",
        ),
        (
            [result()],
            "1 of 1 unseen problem faster than the default: 1.50× (1.46–1.55)",
            "2 measurements",
        ),
        (
            [result(speedup=0.9)],
            "0 of 1 unseen problem faster than the default: no measurable win",
            "2 measurements",
        ),
        (
            [result(speedup=4.0), result(64, speedup=0.9, failed=True)],
            "1 of 2 unseen problems faster than the default: 2.00× (1.97–2.03) on average",
            "2 to 3 measurements each",
        ),
    ],
)
def test_headline(results, outcome, spent):
    sentence = said(report_data(results))
    assert sentence == f"{outcome}, after {spent} out of 673,920 configurations"


def test_report_without_win_keeps_default(tmp_path):
    page = Page(written(tmp_path, [result(speedup=0.9, library=None)]))
    assert "no measurable win default kept" in page.text
    assert "best candidate 0.90×, 0.87 – 0.93" in page.text
    assert "Against" not in page.text.replace("Against the library", "")


def test_names_and_messages_are_shown_not_run(tmp_path):
    evil = dataclasses.replace(result(), problem=Problem(layout=EVIL))
    text = written(
        tmp_path,
        [evil],
        kernel=EVIL,
        device=dataclasses.replace(DEVICE, name=EVIL, source='" onload="x'),
        environment=EVIL,
        mlflow_uri="javascript:alert(1)",
        importance=pd.DataFrame({"parameter": [EVIL], "factor": [2.0], "best": [EVIL]}),
    )
    page = Page(text)
    assert "<script>alert" not in text
    assert 'href="javascript' not in text
    assert f"{EVIL} on {EVIL}" in page.text
    assert f"died: {EVIL}" in page.text


def test_pareto_charts_where_power_is_known(tmp_path):
    page = Page(written(tmp_path, [result()], runs=run_table(power=True)))
    assert "No power meter" not in page.text
    assert page.figures == 5


def test_pareto_front_holds_those_nobody_beats():
    time_ms, energy_mj = [1.0, 2.0, 3.0, 2.0, 1.0], [9.0, 5.0, 6.0, 5.0, 10.0]
    front = pareto_figure(np.array(time_ms), np.array(energy_mj)).layers[-1]
    assert list(zip(front.x, front.y, strict=True)) == [(1.0, 9.0), (2.0, 5.0)]


def shown_commands(tmp_path, store):
    return written(tmp_path, [result()], store=store).partition("Use it, or do it again")[2]


def test_report_names_the_store_of_the_choices(tmp_path):
    assert "<code>foretune store matmul</code>" in shown_commands(tmp_path, "")
    of_another = shown_commands(tmp_path, "my store.db")
    assert "foretune --store &#39;my store.db&#39; store matmul" in of_another


def test_report_without_a_store_does_not_point_to_one(tmp_path):
    text = shown_commands(tmp_path, None)
    assert "were not stored" in text
    assert "foretune store" not in text


def test_report_without_held_out_rows_or_parameters(tmp_path):
    full = report_data([result()])
    page = Page(
        written(
            tmp_path,
            [result()],
            validation=Validation(),
            importance=full.importance.iloc[:0],
            runs=full.runs.iloc[:2].drop(columns=["power_w", "error"]),
        )
    )
    assert "There are no tunable parameters." in page.text
    assert page.figures == 1


def attribution(*names):
    """Contributions of the named features, each half as strong as the one before."""
    means = [0.8 * 0.5**i for i in range(len(names))]
    features = pd.DataFrame({"feature": names, "group": "config", "mean": means})
    features.loc[features.index[-1], ["group", "mean"]] = ["problem", 0.0]
    groups = pd.DataFrame({"group": ["config", "problem"], "mean": [1.0, 0.0]})
    tables = (t.assign(factor=np.exp(t["mean"])) for t in (features, groups))
    return Importance(*tables, 1000)


def test_report_shows_feature_importance(tmp_path):
    known = attribution("config.tile", "config.order", "problem.N")
    text = written(tmp_path, [result()], attribution=known)
    page = Page(text)
    assert "Feature importance" in page.text
    assert "in the mean over 1,000 runs of training" in page.text
    assert "Configuration 2.72× config.tile 2.23× config.order 1.49×" in page.text
    assert "Sizes of the problem 1.00×" in page.text
    assert "problem.N" not in page.text  # it does nothing
    assert page.tags.count("h2") == page.tags.count("section") == 7


def test_report_names_strongest_features(tmp_path):
    known = attribution(*(f"config.{c}" for c in "abcdefgh"))
    text = Page(written(tmp_path, [result()], attribution=known)).text
    assert "config.d" in text
    assert "config.e" not in text


def test_report_model_without_contributions_has_no_importance(tmp_path):
    assert "Feature importance" not in Page(written(tmp_path, [result()])).text


def test_features_of_any_name_are_shown_not_run(tmp_path):
    text = written(tmp_path, [result()], attribution=attribution(EVIL, "problem.N"))
    assert "<script>alert" not in text
    assert EVIL in Page(text).text


def test_validation_page_shows_held_out_rows_and_scores():
    data = report_data([])
    text = validation_page(f"matmul: {EVIL}", data.validation)
    page = Page(text)
    assert not any(page.loaded)
    assert page.figures == 1
    assert "90 % of 10 measurements in the 90 % interval" in page.text
    assert "nearest neighbor" in page.text
    assert "<script>alert" not in text


def test_validation_page_without_held_out_rows():
    text = Page(validation_page("x", Validation({"time_ms": {}}, level="none"))).text
    assert "No whole problems were held out. (not validated" in text
    assert "Scores" not in text


def test_energy_is_drawn_without_predicted_times():
    chart = trace_figure(result(objective=Objective.ENERGY))
    assert chart.layers[0].x == []
    assert chart.y.title == "energy, mJ"


def test_trace_marks_failures_and_the_best_so_far():
    chart = trace_figure(result(failed=True))
    _, _, default, library, best, measured, failed = chart.layers
    assert default.y[0] == 1.536  # as it was searched; 0.768 when verified
    assert library.y[0] == pytest.approx(0.4096)
    assert best.y == [1.536, 0.512, 0.512]
    assert measured.x == [1, 2]
    assert measured.texts[1] == "2: 0.512 ms\ntile=64, order=ij"
    assert failed.x == [3]
    assert failed.texts[0].startswith("3: timeout")


def test_axes_name_round_values():
    def labels(axis):
        return [label for _, label in axis.ticks]

    assert labels(value_axis([0.3, 42.0], "")) == ["0.5", "1", "2", "5", "10", "20", "50"]
    assert labels(value_axis([0.003, 4200.0], "")) == [
        "0.01",
        "0.1",
        "1",
        "10",
        "100",
        "1,000",
    ]
    assert not value_axis([1.0, 1.2], "").log
    assert labels(linear_axis(0.0, 5200.0, "")) == ["0", "2,000", "4,000"]
    assert labels(linear_axis(1.0, 2.7, "", "×")) == ["1.0×", "1.5×", "2.0×", "2.5×"]
    assert value_axis([math.nan, 0.0], "").ticks == ()


@given(st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=20), st.booleans())
def test_value_axis_positions_every_value(values, log):
    axis = value_axis(values, "", force_log=log)
    places = [axis.position(v) for v in sorted(values)]
    assert all(0 <= p <= 100 for p in places)
    assert places == sorted(places)
    assert len(axis.ticks) <= 17  # a power of ten each
    assert all(0 <= axis.position(value) <= 100 for value, _ in axis.ticks)


def test_places_in_a_chart():
    chart = trace_figure(result())
    x, y = chart.position(chart.x.low, chart.y.high)
    assert (x, y) == (0, 0)
    line = Line([1, 2], [chart.y.low, chart.y.high], "@text", steps=True)
    one, two = chart.x.position(1), chart.x.position(2)
    assert chart.path(line) == f"{one:g},100 {two:g},100 {two:g},0"
    outside = Points([-9, 1], [1.0, 1.0], "@text", texts=["no", "yes"])
    assert [text for *_, text in chart.marks(outside)] == ["yes"]
    endless = Spans([1], [0.0], [math.inf], "@interval")
    assert chart.spans(endless) == [(one, 0.0, 100.0)]


def test_bars_begin_where_they_should():
    bars = worth_figure(pd.DataFrame({"parameter": ["a", "b"], "factor": [1.0, 3.0]}))
    assert isinstance(bars, Bars)
    assert bars.labels == ["b", "a"]
    (only,) = bars.parts(0)
    assert only[0] == bars.axis.position(1.0) == 0
    assert only[1] == bars.axis.position(3.0)
    assert bars.parts(1) == []


def test_roofs_of_the_devices_data_types():
    device = dataclasses.replace(
        DEVICE, specs={"fp32_gflops": 200.0, "fp16_gflops": 400.0, "memory_gbps": 20.0}
    )
    some = [
        Rate("default", 10.0, 2.0, 0.1, "fp32"),
        Rate("tuned", 50.0, 10.0, 0.5, "fp16"),
        Rate("BLAS", 90.0, 18.0, 0.9, "fp16"),
    ]
    chart = roofline_figure(["N=8"], [some], device)
    roofs = [layer for layer in chart.layers if isinstance(layer, Line)]
    assert [(roof.x[1], roof.y[1], roof.y[2]) for roof in roofs] == [
        (10.0, 200.0, 200.0),
        (20.0, 400.0, 400.0),
    ]
    marks = [layer for layer in chart.layers if isinstance(layer, Points)]
    assert [(m.x[0], m.y[0], m.symbol) for m in marks] == [
        (5.0, 10.0, "circle"),
        (5.0, 50.0, "circle"),
        (5.0, 90.0, "diamond"),
    ]
    unknown = roofline_figure(["N=8"], [some], dataclasses.replace(DEVICE, specs={}))
    assert not any(isinstance(layer, Line) for layer in unknown.layers)


def test_write_report_unwritable_path_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=r"there is no folder .*file: create it") as error:
        write_report(tmp_path / "file" / "report.html", report_data([result()]))
    assert "\n" not in str(error.value)


def test_write_report_failure_keeps_old_report(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def full(self, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OutputError, match="No space left"):
        write_report(path, report_data([result()]))
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("report.html", "old")]


@pytest.mark.browser
@pytest.mark.parametrize(("width", "dark"), [(1280, False), (500, True)])
def test_report_is_drawn_by_browser(tmp_path, browser, width, dark):
    some = [[Rate("default", 10.0, 2.0, 0.25, "fp32")], [Rate("tuned", 20.0, 4.0, 0.5, "fp32")]]
    data = report_data([result(failed=True), result(64)], runs=run_table(power=True), rates=some)
    path = write_report(tmp_path / "report.html", data)
    image = browser.screenshot(path, width, 6000, dark=dark)
    ground, marks = ((20, 23, 27), (86, 180, 233)) if dark else ((255, 255, 255), (0, 114, 178))
    assert tuple(image[0, 0]) == ground
    assert (image == marks).all(axis=2).sum() > 1000
    assert browser.width_of_content(path, width) <= width


def test_report_inconclusive_comparison_is_no_win(tmp_path):
    noisy = result(n=128, speedup=1.01)
    page = Page(written(tmp_path, [result(n=64, speedup=4.0), noisy]))
    assert (
        "1 of 2 unseen problems faster than the default: 2.00× (1.97–2.03) on average" in page.text
    )
    assert "1 inconclusive" in page.text
    assert "the interval includes 1 and a relevant gain" in page.text
    nothing = Page(written(tmp_path, [noisy]))
    assert "0 of 1 unseen problem faster than the default: no measurable win" in nothing.text


def test_rates_beside_the_roofline(tmp_path):
    some = [[Rate("default", 10.0, 2.0, 0.25, "fp32"), Rate("tuned", 20.0, 4.0, 0.5, "fp32")]]
    page = Page(written(tmp_path, [result(n=64, speedup=2.0)], rates=some))
    assert "tuned 20.0 4.00 50 %" in page.text.replace("\u00a0", " ")
    assert "foretune tune matmul --problem N=64 --budget" in page.text


def test_rates_of_a_busy_machine_are_named_beside_the_roofline(tmp_path):
    device = dataclasses.replace(DEVICE, source="probe, measured while others kept the CPU busy")
    data = report_data([result(n=64, speedup=2.0)], rates=[[Rate("tuned", 10.0, 5.0, 0.5, "fp32")]])

    path = write_report(tmp_path / "report.html", dataclasses.replace(data, device=device))

    text = path.read_text("utf-8")
    assert "Of the roofline of a busy machine" in text
    assert "they were measured while others kept the CPU busy" in text


def test_rates_kernel_without_cost_has_none(toy_device):
    def rows(x, n=16):
        return x.sum(axis=1)

    kernel = FunctionKernel(rows, {"n": [16, 32]}, (np.ones((4, 4)),))
    assert list(rates(kernel, result(n=64), toy_device)) == []


def test_rates_of_a_kernel(matmul, toy_device):
    problem = matmul.problem(M=64, N=64, K=64)
    default = matmul.default(problem)
    contenders = (
        Comparison("default", default, 2.0, 1.0, 1.0, 1.0),
        Comparison("BLAS", None, 1.0, 2.0, 2.0, 2.0),
    )
    tuned = dataclasses.replace(result(n=64), problem=problem, contenders=contenders)
    own, library = rates(matmul, tuned, toy_device)
    assert own.gflops == pytest.approx(2 * 64**3 / 2e6)
    assert library.roofline == pytest.approx(2 * own.roofline)
    assert (
        list(rates(matmul, dataclasses.replace(tuned, objective=Objective.ENERGY), toy_device))
        == []
    )
