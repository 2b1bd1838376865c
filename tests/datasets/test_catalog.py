"""Tests the shipped run tables and their cards: `datasets/catalog.py`."""

import dataclasses
import json

import pyarrow.parquet as pq
import pytest

from foretune.datasets import DatasetCard, card, catalog, load, shipped, write_runs
from foretune.errors import RunTableError, UnknownName

MOST_BYTES = 20e6
NAMES = shipped()


def test_shipped_tables_exist_and_are_small():
    assert NAMES
    assert sum(p.stat().st_size for p in catalog.SHIPPED.iterdir()) <= MOST_BYTES
    assert {p.name for p in catalog.SHIPPED.iterdir()} == {
        f"{name}.{kind}" for name in NAMES for kind in ("parquet", "json")
    }


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def test_card_matches_table(name):
    runs, of_it = load(name), card(name)
    assert of_it.name == name
    assert (of_it.rows, of_it.columns) == (len(runs), tuple(runs.columns))
    assert set(runs["device"]) == {of_it.device}
    assert set(runs["kernel"]) == set(of_it.kernels)
    assert (runs["recorded_at"].min(), runs["recorded_at"].max()) == (of_it.began, of_it.ended)
    for spec, value in of_it.specs.items():
        assert runs[f"device.{spec}"].iloc[0] == pytest.approx(value, rel=1e-5)
    for said in (of_it.system, of_it.protocol, of_it.command, of_it.licence, of_it.architecture):
        assert said


def test_shipped_rows_are_of_code_on_card(name):
    runs, of_it = load(name), card(name)
    for kernel, source in of_it.kernels.items():
        environments = set(runs["environment"][runs["kernel"] == kernel])
        assert {e.split()[-1] for e in environments} == {source[:8]}
        assert {e.split()[-2] for e in environments} == {kernel}


def test_shipped_power_needs_meter(name):
    runs, of_it = load(name), card(name)
    assert runs["power_w"].isna().all() == ("No power" in of_it.protocol)


def test_shipped_files_name_no_host(name):
    text = catalog.table_path(name).with_suffix(".json").read_text(encoding="utf-8")
    runs = load(name)
    for words in (text, *(" ".join(map(str, runs[c].unique())) for c in ("error", "source"))):
        assert not any(path in words for path in ("/root", "/home", "/tmp", "/work"))


def test_shipped_tables_are_compressed(name):
    footer = pq.read_metadata(catalog.table_path(name))
    assert footer.row_group(0).column(0).compression == "ZSTD"


def test_shipped_whole_lists_ran_on_many_problems(name):
    runs = load(name)
    runs = runs[runs["counter.repeat"] == 0]
    for _, mine in runs.groupby("kernel"):
        configs = [c for c in mine if c.startswith("config.")]
        problems = [c for c in mine if c.startswith("problem.")]
        per_problem = mine.groupby(problems, dropna=False)[configs[0]].size()
        assert len(per_problem) >= 10
        assert per_problem.median() >= 8


def test_load_unknown_name_offers_nearest():
    with pytest.raises(UnknownName, match=f"did you mean '{NAMES[0]}'"):
        load(NAMES[0][:-1])
    with pytest.raises(UnknownName, match=r"unknown data set '\.\./secret'"):
        card("../secret")


@pytest.fixture
def made(tmp_path, toy_runs):
    """A folder with one table of the toy runs, and its card."""
    write_runs(tmp_path / "toy.parquet", toy_runs)
    made = DatasetCard(
        "toy",
        "Toy CPU",
        "toy",
        {"cores": 4.0},
        "Toy 1.0",
        "2020-01-01T00:00:00+00:00",
        "2020-01-01T01:00:00+00:00",
        "made up",
        "make it up",
        "MIT",
        {"matmul": "0" * 16},
    )
    fields = {n: v for n, v in dataclasses.asdict(made).items() if n not in ("rows", "columns")}
    (tmp_path / "toy.json").write_text(json.dumps(fields))
    return tmp_path, made


def test_card_text_round_trip(made, toy_runs):
    folder, written = made
    assert shipped(folder) == ["toy"]
    rows = dataclasses.replace(written, rows=len(toy_runs), columns=tuple(toy_runs.columns))
    assert card("toy", folder) == rows
    assert len(load("toy", folder)) == len(toy_runs)


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "toy"}', '{"unknown": 1}'])
def test_card_damaged_file_is_refused(made, text):
    folder, _ = made
    (folder / "toy.json").write_text(text)
    with pytest.raises(RunTableError, match="the card of 'toy' cannot be read"):
        card("toy", folder)


def test_load_damaged_table_is_refused(made):
    folder, _ = made
    (folder / "toy.parquet").write_bytes(b"PAR1")
    with pytest.raises(RunTableError, match="the card of 'toy' cannot be read"):
        card("toy", folder)
    with pytest.raises(RunTableError, match="not a readable Parquet file"):
        load("toy", folder)


def test_shipped_lists_tables_with_card_only(made):
    folder, _ = made
    (folder / "toy.json").unlink()
    assert shipped(folder) == []


def test_card_text_leaves_out_counts_of_table(made):
    folder, _ = made
    assert not {"rows", "columns"} & set(json.loads((folder / "toy.json").read_text()))
