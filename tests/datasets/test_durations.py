"""Durations of several parts, and clocks."""

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets import import_runs
from foretune.datasets.durations import parse_duration
from foretune.datasets.time_units import in_milliseconds, times_with_units
from foretune.errors import UsageError

MINUTE_MS = 60_000.0
HOUR_MS = 60 * MINUTE_MS


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1m 2.3s", MINUTE_MS + 2300),
        ("1m2.3s", MINUTE_MS + 2300),
        ("0m1.234s", 1234),
        ("2 min 3 s", 2 * MINUTE_MS + 3000),
        ("1 minute, 2 seconds", MINUTE_MS + 2000),
        ("1 hour and 5 minutes", HOUR_MS + 5 * MINUTE_MS),
        ("1h2m3s", HOUR_MS + 2 * MINUTE_MS + 3000),
        ("1s 200ms", 1200),
        ("2 min", 2 * MINUTE_MS),
        ("1.5 hours", 1.5 * HOUR_MS),
        ("00:01:02.3", MINUTE_MS + 2300),
        ("00:01:02,3", MINUTE_MS + 2300),
        ("1:02:03", HOUR_MS + 2 * MINUTE_MS + 3000),
        ("0:01.23", 1230),
        ("0 days 00:00:00.012500", 12.5),
        ("1 day, 0:00:01", 24 * HOUR_MS + 1000),
        ("PT1M2.3S", MINUTE_MS + 2300),
        ("PT0.0125S", 12.5),
    ],
)
def test_parse_duration(text, milliseconds):
    duration = parse_duration(text)
    assert duration is not None
    assert duration.milliseconds == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    "text",
    [
        "01:02",  # hours and minutes, or minutes and seconds
        "2m",  # minutes, or a thousandth
        "2s 1m",
        "1m 75s",
        "1.5m 3s",
        "1m 2m",
        "1,234 min",
        "00:61:00",
        "12.5 us",  # one short unit is not read here
        "128x64",
        "PT",
        "",
        "OOM",
    ],
)
def test_parse_duration_refuses_others(text):
    assert parse_duration(text) is None


@given(
    hours=st.integers(0, 99),
    minutes=st.integers(0, 59),
    milliseconds=st.integers(0, 59_999),
)
def test_parse_duration_reads_every_notation_alike(hours, minutes, milliseconds):
    seconds = f"{milliseconds / 1e3:.3f}"
    expected = hours * HOUR_MS + minutes * MINUTE_MS + milliseconds
    texts = (
        f"{hours}h {minutes}m {seconds}s",
        f"{hours:02}:{minutes:02}:{milliseconds / 1e3:06.3f}",
        f"PT{hours}H{minutes}M{seconds}S",
    )
    for text in texts:
        duration = parse_duration(text)
        assert duration is not None, text
        assert duration.milliseconds == pytest.approx(expected, abs=1e-6)


def test_in_milliseconds_reads_durations_beside_units():
    values, unit = in_milliseconds(pd.Series(["1m 2.3s", "45.2s", "OOM"]), "elapsed")
    assert values.tolist()[:2] == pytest.approx([62_300, 45_200])
    assert unit == "min and s and s"


def test_in_milliseconds_reads_durations_of_pandas():
    values, unit = in_milliseconds(pd.Series(pd.to_timedelta([12.5, 20], unit="ms")), "latency")
    assert values.tolist() == pytest.approx([12.5, 20.0])
    assert unit == "durations"


def test_in_milliseconds_refuses_durations_beside_plain_numbers():
    with pytest.raises(UsageError, match=r"with a unit .'1m 2\.3s'. and without one"):
        in_milliseconds(pd.Series(["1m 2.3s", "45.2"]), "elapsed")


def test_times_with_units_of_a_clock_need_a_word_for_a_duration():
    clocks = ["12:30:05", "12:30:07"]
    assert times_with_units(pd.DataFrame({"elapsed": clocks})) == ["elapsed"]
    assert times_with_units(pd.DataFrame({"time": clocks})) == []  # perhaps times of the day


def test_times_with_units_of_hours_are_no_price():
    assert times_with_units(pd.DataFrame({"gpu_hours": [1.5]})) == []


def test_import_of_durations(tmp_path):
    path = tmp_path / "sweep.csv"
    path.write_text("N,duration\n64,1m 2.3s\n128,2 min 3 s\n256,00:00:04.5\n")

    imported = import_runs(path, "generic", kernel="k", device="d", mapping={"problem.N": "N"})

    assert imported.runs["time_ms"].tolist() == pytest.approx([62_300, 123_000, 4500])
    assert "h:mm:ss" in imported.notes[-1]
