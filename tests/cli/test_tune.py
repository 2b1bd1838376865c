"""``foretune tune`` with hard limits and several objectives."""

import math

import pytest
from commands import fails, run_json
from toy_kernel import FakeRunner, MeteredRunner

from foretune.cli import main
from foretune.datasets import read_runs
from foretune.tune import job

TUNE = ("tune", "toy", "--problem", "n=100", "--searcher", "exhaustive", "--budget", "100")


@pytest.fixture(autouse=True)
def _place(toy_place):
    """An empty directory with the toy kernel."""


@pytest.fixture
def metered(monkeypatch):
    """A machine with a meter, of which there is none here: the toy's law answers."""
    monkeypatch.setattr("foretune.collect.runner.IsolatedRunner", lambda d, *_: MeteredRunner(d))
    monkeypatch.setattr(job, "find_meter", lambda kind, index: object())


@pytest.mark.usefixtures("metered")
def test_tune_two_objectives_give_front(capsys):
    out = run_json(capsys, *TUNE, "--objective", "time", "--objective", "energy")
    assert [p["config"]["work"] for p in out["pareto"]] == [1, 2, 4, 8, 16]
    assert 0 < out["hypervolume"] < 1
    assert out["reference"] == {
        "time": 2 * out["default"]["time_ms"],
        "energy": 2 * out["default"]["energy_mj"],
    }
    for point in (*out["pareto"], out["default"]):
        assert point["energy_mj"] == pytest.approx(point["time_ms"] * point["power_w"])
    assert any(step["time_ms"] is None for step in out["trace"])  # failed: JSON has no NaN


@pytest.mark.usefixtures("metered")
def test_tune_front_is_printed_as_table(capsys):
    assert (
        main([*TUNE, "--objective", "time", "--objective", "energy", "--limit", "power_w=50"]) == 0
    )
    out = capsys.readouterr().out
    assert "toy n=100,dtype=fp32 on Toy CPU: Pareto front" in out
    assert "hypervolume 0." in out
    assert "of the box up to 1.6 ms and 20 mJ" in out
    assert "rejected 6 that violated power_w ≤ 50" in out
    (row,) = (line for line in out.splitlines() if "work=2 " in line)
    assert row.split()[:3] == ["0.2", "35.4", "7.07"]
    assert "work=1 " not in out


@pytest.mark.usefixtures("metered")
def test_tune_limit_decides_winner(capsys):
    arguments = (*TUNE, "--limit", "power_w=50", "--limit", "time_ms=1", "--runs", "r.parquet")
    out = run_json(capsys, *arguments)
    assert out["best"]["config"]["work"] == 2
    assert out["best"]["limits"] == {"power_w": 50.0, "time_ms": 1.0}
    statuses = [step["status"] for step in out["trace"]]
    assert out["best"]["rejected"] == statuses.count("rejected") > 6
    assert "rejected" not in set(read_runs("r.parquet")["status"])
    assert read_runs("r.parquet")["power_w"].max() == 100.0


@pytest.mark.usefixtures("metered")
def test_tune_names_default_that_breaks_limit(capsys):
    assert main([*TUNE, "--limit", "power_w=10"]) == 0
    assert "the default violates a limit: power_w 12.5 > 10" in capsys.readouterr().out


@pytest.mark.usefixtures("metered")
def test_tune_nothing_within_limits_is_error(capsys):
    line = fails(capsys, 1, *TUNE, "--limit", "power_w=1")
    assert line.startswith("none of 40 measured configurations is within power_w ≤ 1, nor is the")


@pytest.mark.usefixtures("metered")
def test_tune_limit_on_unknown_column_is_error(capsys):
    line = fails(capsys, 2, *TUNE, "--limit", "static.shared_bytes=1")
    assert "measurements of toy have no static.shared_bytes; they have time_ms, power_w" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--limit", "power_w"], "limit 'power_w' has no '='"),
        (["--limit", "powerw=3"], "unknown limit 'powerw': did you mean 'power_w'"),
        (["--limit", "power_w=lots"], "'lots' is not a number above 0"),
        (["--objective", "time", "--objective", "enrgy"], "did you mean 'energy'"),
    ],
)
def test_tune_bad_input_is_one_line(capsys, options, message):
    assert message in fails(capsys, 2, *TUNE, *options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--objective", "time", "--objective", "energy"],
            "objective 'energy' needs a power meter",
        ),
        (["--limit", "power_w=300"], "limit 'power_w' needs a power meter"),
    ],
)
def test_tune_power_without_meter_is_error(capsys, monkeypatch, options, message):
    monkeypatch.setattr(job, "find_meter", lambda kind, index: None)
    assert message in fails(capsys, 1, *TUNE, *options)


@pytest.mark.usefixtures("metered")
def test_tune_repeated_objective_counts_once(capsys):
    out = run_json(capsys, *TUNE, "--objective", "time", "--objective", "time")
    assert out["best"]["config"]["work"] == 1
    assert math.isclose(out["best"]["speedup"], 8)


class TestStore:
    """What one command measured the others find."""

    @pytest.fixture(autouse=True)
    def _runner(self, monkeypatch):
        monkeypatch.setattr("foretune.collect.runner.IsolatedRunner", lambda *_, **__: FakeRunner())

    def test_tune_reuses_and_writes_run_table(self, capsys):
        problem = ("--problems", "n=100", "--configs", "12")
        collected = run_json(capsys, "collect", "toy", *problem, "--out", "a.parquet")
        assert (collected["rows"], collected["reused"]) == (12, 0)
        tuned = run_json(capsys, *TUNE)["best"]
        assert tuned["known"] == 12
        assert tuned["known"] + tuned["measurements"] == 40
        assert main([*TUNE]) == 0
        printed = capsys.readouterr()
        assert "40 measurements reused from the store, nothing new is measured" in printed.err
        again = run_json(capsys, "collect", "toy", *problem, "--out", "b.parquet")
        assert (again["rows"], again["reused"]) == (0, 12)
        assert len(read_runs("b.parquet")) == 12
        (listed,) = run_json(capsys, "store")["subjects"]
        assert (listed["subject"]["kernel"], listed["measurements"]) == ("toy", 40)
        assert listed["choices"] == 1

    def test_tune_store_none_and_other_store(self, capsys):
        run_json(capsys, *TUNE, "--store", "mine.db")
        run_json(capsys, *TUNE, "--store", "none")
        assert run_json(capsys, *TUNE, "--store", "mine.db")["best"]["known"] == 40
        assert run_json(capsys, *TUNE)["best"]["known"] == 0

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (["--budget", "auto"], "searcher 'exhaustive' cannot estimate its regret: give"),
            (["--budget", "few"], "--budget few: give a number of measurements, auto"),
            (["--budget", "0"], "--budget 0 leaves nothing to do"),
            (["--budget", "auto:few"], "--budget auto:few: give a number of measurements, auto"),
            (["--budget", "0s"], "--budget 0s leaves no time"),
            (["--budget", "9,auto:-1"], "regret -1"),
        ],
    )
    def test_tune_options_that_exclude_each_other(self, capsys, options, message):
        assert message in fails(capsys, 2, *TUNE, *options)

    @pytest.mark.parametrize("option", [["--verify-seconds", "3"], ["--verify-again"]])
    def test_front_takes_no_options_of_a_verification(self, option, capsys, metered):
        two = ("--objective", "time", "--objective", "energy")
        line = fails(capsys, 2, *TUNE, *two, *option)
        assert line.startswith("a Pareto front does not take verify_")

    def test_front_takes_no_regret(self, capsys, metered):
        two = ("--objective", "time", "--objective", "energy")
        line = fails(capsys, 2, *TUNE, *two, "--budget", "auto")
        assert line == "a Pareto search has no regret: give a number as --budget"


def test_tune_verify_again_repeats_verification(capsys, monkeypatch):
    runner = FakeRunner()
    monkeypatch.setattr("foretune.collect.runner.IsolatedRunner", lambda *_, **__: runner)
    words = ("tune", "toy", "--problem", "n=100", "--predictor", "none", "--budget", "8")
    run_json(capsys, *words)

    compared = []
    compare = runner.compare_interleaved
    runner.compare_interleaved = lambda *about: compared.append(about) or compare(*about)
    run_json(capsys, *words)
    assert compared == []
    run_json(capsys, *words, "--verify-again", "--verify-seconds", "3")
    assert len(compared) >= 3
    assert "--verify-seconds 0 leaves no time" in fails(capsys, 2, *words, "--verify-seconds", "0")
