"""Tests what importers share: files, rejected rows, constants, specs: `datasets/importers/`."""

import gzip
import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretune.datasets import import_runs
from foretune.datasets.importers import FORMATS
from foretune.datasets.importers.columns import concatenated_rows, concatenated_text, relabel
from foretune.datasets.importers.files import files_of
from foretune.datasets.importers.row_times import FAILED_MS
from foretune.datasets.runs import with_specs
from foretune.device import canonical_name, find_device
from foretune.errors import RunTableError, UnknownName, UsageError
from foretune.measurement import Status

NAN = math.nan
HERE = {"kernel": "gemm", "device": "NVIDIA H200"}


def csv(path, **columns):
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def test_formats_can_be_loaded():
    for chosen in FORMATS.values():
        assert callable(chosen.load().read)


def test_import_runs_unknown_format_is_refused(tmp_path):
    with pytest.raises(UnknownName, match="unknown format 'kerneltunr': did you mean 'kerneltuner"):
        import_runs(tmp_path, "kerneltunr")


def test_import_runs_missing_file_is_refused(tmp_path):
    with pytest.raises(RunTableError, match="does not exist: give a file or a folder"):
        import_runs(tmp_path / "none.csv", "generic", **HERE)
    with pytest.raises(RunTableError, match=r"has no file that ends with \.json or \.json\.gz"):
        import_runs(tmp_path, "t4")


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"generic"}))
@pytest.mark.parametrize("name", ["gemm_perf.parquet", "x.csv", "x.json", "x.autotune.json"])
def test_import_runs_wrong_file_names_expected_content(tmp_path, format, name):
    path = tmp_path / name
    if name.endswith(".parquet"):
        pd.DataFrame({"a": [1], "b": ["x"]}).to_parquet(path)
    else:
        path.write_text('{\n"a": 1,\n"b": [1, 2,\n3]}\n' if "json" in name else "a,b\n1,2\n")
    with pytest.raises(RunTableError) as caught:
        import_runs(path, format, device="NVIDIA H200")
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    assert any(word in message for word in ("expected", "with ", "name it", "give --"))


@pytest.mark.parametrize("format", ["kerneltuner", "t4", "triton"])
@pytest.mark.parametrize("content", ["[]", "null", "3", '"text"', "{", "", "[1, 2"])
def test_import_runs_other_json_is_refused(tmp_path, format, content):
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(RunTableError, match=r"x\.json is not"):
        import_runs(path, format, kernel="k", device="d")


def test_import_runs_damaged_file_is_refused(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(RunTableError, match="is not a readable table"):
        import_runs(tmp_path / "x.parquet", "generic", **HERE)
    (tmp_path / "x.csv").write_text("")
    with pytest.raises(RunTableError, match="is not a readable table"):
        import_runs(tmp_path / "x.csv", "generic", **HERE)
    whole = gzip.compress(json.dumps({"results": []}).encode())
    (tmp_path / "x.json.gz").write_bytes(whole[:-9])
    with pytest.raises(RunTableError, match="is not a T4 results file: it is not readable text"):
        import_runs(tmp_path / "x.json.gz", "t4", **HERE)


def test_import_runs_counts_impossible_rows(tmp_path, survives):
    path = csv(
        tmp_path / "runs.csv",
        time_ms=[1.0, 0.0, -2.0, None, np.inf, 3.0, 4.0, 5.0, 6.0],
        power_w=[50.0, None, None, None, None, -1.0, 5000.0, None, None],
        energy_mj=[None] * 7 + [-1.0, None],
        status=["ok"] * 8 + [None],
        **{"problem.M": range(9)},
    )
    imported = import_runs(path, "generic", **HERE)
    assert imported.rejected == {
        "time is not a number": 1,
        "time is zero": 1,
        "time is negative": 1,
        "time is infinite": 1,
        "power is not positive": 1,
        "power is far above the device's limit": 1,
        "energy is not positive": 1,
        f"status is not one of {', '.join(sorted(Status))}": 1,
    }
    assert imported.runs["problem.M"].tolist() == [0]
    survives(imported)


def test_import_runs_counts_rows_without_name(tmp_path):
    path = csv(
        tmp_path / "runs.csv",
        kernel=["a", None, "b"],
        device=["x", "y", None],
        time_ms=[1.0] * 3,
        **{"config.x": [1, 2, 3]},
    )
    assert import_runs(path, "generic").rejected == {"no kernel": 1, "no device": 1}


def test_import_runs_keeps_duplicates(tmp_path):
    path = csv(tmp_path / "runs.csv", time_ms=[1.0, 1.0], **{"problem.M": [8, 8]})
    assert len(import_runs(path, "generic", **HERE).runs) == 2


def test_import_runs_folder_skips_other_files(tmp_path):
    cache = {"results": [result(1.0)]}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "t4.json").write_text(json.dumps(cache))
    (tmp_path / "other.json").write_text('{"a": 1}')
    imported = import_runs(tmp_path, "t4", **HERE)
    assert len(imported.runs) == 1
    assert list(imported.skipped) == [str(tmp_path / "other.json")]
    (tmp_path / "a" / "t4.json").unlink()
    with pytest.raises(RunTableError, match=r"none of 1 files is of format 't4': .*'results'"):
        import_runs(tmp_path, "t4", **HERE)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(RunTableError, match=r"broken\.json is not a T4 results file"):
        import_runs(tmp_path, "t4", **HERE)


def result(time, **config):
    return {
        "configuration": config or {"x": 1},
        "times": {},
        "invalidity": "correct",
        "measurements": [{"name": "time", "value": time, "unit": "ms"}],
    }


def test_import_runs_joins_several_sources(tmp_path, survives):
    for name, x in (("a", 1), ("b", "text")):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"results": [result(1.0, x=x)]}))
    imported = import_runs([tmp_path / "a.json", tmp_path / "b.json"], "t4", **HERE)
    assert imported.runs["config.x"].tolist() == [1, "text"]
    survives(imported)


def test_files_of_sorts_versions_by_number(tmp_path):
    for version in ("0.5.14", "0.5.9", "1.0"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "x.csv").write_text("")
    found = [p.parent.name for p in files_of(tmp_path, (".csv",))]
    assert found == ["0.5.9", "0.5.14", "1.0"]


def test_import_runs_constants_are_in_every_row(tmp_path, survives):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"results": [result(1.0), result(2.0)]}))
    same = {"kernel": "gemm", "device": "NVIDIA H200", "problem.M": 64, "problem.dtype": "fp16"}
    imported = import_runs(path, "t4", constants=same)
    assert imported.runs["problem.M"].tolist() == [64, 64]
    assert imported.kernels == {"gemm": 2}
    survives(imported)
    with pytest.raises(UsageError, match=r"'M' is not a run-table column: use e.g. problem\.M"):
        import_runs(path, "t4", constants={"M": 64})


def test_import_runs_mapping_of_fixed_format_is_refused(tmp_path):
    with pytest.raises(UsageError, match="'t4' has fixed columns: leave --map COLUMN=SOURCE out"):
        import_runs(tmp_path, "t4", mapping={"time_ms": "x"})


def test_import_runs_known_devices_get_specs():
    runs = pd.DataFrame(
        {
            "device": ["NVIDIA H200", "Abacus", None, "NVIDIA L40S"],
            "device.power_limit_w": [500.0, 1.0, NAN, NAN],
        }
    )
    described = with_specs(runs)
    h200, l40s = find_device("NVIDIA H200").specs, find_device("NVIDIA L40S").specs
    expected = [h200["memory_gbps"], NAN, NAN, l40s["memory_gbps"]]
    np.testing.assert_array_equal(described["device.memory_gbps"], expected)
    limits = [500.0, 1.0, NAN, l40s["power_limit_w"]]
    np.testing.assert_array_equal(described["device.power_limit_w"], limits)
    assert "device.vector_bits" not in described


def test_import_runs_device_names_are_canonical():
    assert canonical_name("Intel(R) Arc(TM) Pro B60 Graphics") == "Intel Arc Pro B60"
    assert canonical_name("nvidia h200") == "NVIDIA H200"
    assert canonical_name("Abacus 9000") == "Abacus 9000"


TEXTS = st.one_of(st.none(), st.text("abc", max_size=2))


@given(st.lists(TEXTS, max_size=6))
def test_relabel_names_each_value_once(values):
    renamed = relabel(pd.Series(values, dtype="str"), lambda v: v.upper()[:1])
    expected = [None if v is None else v.upper()[:1] for v in values]
    assert [None if v is None or v != v else v for v in renamed] == expected


@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6))
def test_concatenated_text_joins_with_space(pairs):
    left, right = (pd.Series([p[i] for p in pairs], dtype="str") for i in (0, 1))
    expected = [" ".join(v for v in p if v is not None) for p in pairs]
    assert concatenated_text(left, right).tolist() == expected


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(-1, 1), TEXTS)


@given(st.lists(st.lists(PLAIN, min_size=1, max_size=3), min_size=1, max_size=4), st.booleans())
def test_concatenated_rows_keep_every_value(parts, categorical):
    tables = []
    for i, values in enumerate(parts):
        table = pd.DataFrame({"all": pd.Series(values), f"own {i}": range(len(values))})
        if categorical and isinstance(table["all"].dtype, pd.StringDtype):
            table["all"] = table["all"].astype("category")
        tables.append(table)
    stacked = concatenated_rows(tables)

    def plain(values):
        return [None if v is None or v != v else v for v in values]

    assert plain(stacked["all"]) == [v for t in tables for v in plain(t["all"])]
    for i in range(len(parts)):
        assert plain(stacked[f"own {i}"].dropna()) == list(range(len(parts[i])))


ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "t": st.one_of(st.none(), st.floats(), st.sampled_from([0.0, 1e-3, 5.0])),
            "p": st.one_of(st.none(), st.floats(-10, 2000)),
            "m": st.integers(1, 2**40),
            "mode": TEXTS,
        }
    ),
    min_size=1,
    max_size=8,
)


@given(ROWS)
def test_import_runs_imports_or_counts_every_row(tmp_path, survives, rows):
    path = tmp_path / "rows.parquet"
    pd.DataFrame(rows).astype({"t": float, "p": float, "mode": "str"}).to_parquet(path)
    mapping = {"time_ms": "t*0.001", "power_w": "p", "problem.M": "m", "config.mode": "mode"}
    imported = import_runs(path, "generic", mapping=mapping, **HERE)
    assert len(imported.runs) + sum(imported.rejected.values()) == len(rows)
    believed = survives(imported) if len(imported.runs) else imported.runs
    good = [r for r in rows if r["t"] is not None and 0 < r["t"] * 0.001 < FAILED_MS]
    good = [r for r in good if r["p"] is None or 0 < r["p"] <= 700 * 1.2]
    timed = believed[believed["time_ms"].notna()]
    assert timed["problem.M"].tolist() == [r["m"] for r in good]


@pytest.mark.parametrize("content", ["", "3", '"text"'])
def test_json_without_a_table_is_refused(tmp_path, content):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(RunTableError, match=r"x\.json"):
        import_runs(tmp_path / "x.json", "generic", **HERE)


def test_units_of_rows_may_be_missing_and_never_unknown(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n,real_time,time_unit\n1,2000000,ns\n2,,\n3,3000000,ns\n")
    options = {**HERE, "mapping": {"time_ms": "real_time", "problem.n": "n"}}
    runs = import_runs(path, "generic", **options).runs
    assert runs["time_ms"].dropna().tolist() == [2.0, 3.0]
    path.write_text("n,real_time,time_unit\n1,2,ns\n2,3,ticks\n")
    with pytest.raises(UsageError, match="'ticks' in time_unit is no unit"):
        import_runs(path, "generic", **options)
