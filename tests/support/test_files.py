"""Files from elsewhere: hostile and damaged ones end in one of our errors, in one line."""

import gzip
import io
import json
import os
import time
import zipfile

import fuzzing
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzzing import DECODERS, Decoder, fuzz, gemms

from foretune.datasets import import_runs, read_runs
from foretune.errors import (
    PredictorError,
    RunTableError,
    StoreError,
    UsageError,
)
from foretune.models import Predictor
from foretune.models.trees.boosting import BoostingModel
from foretune.models.trees.forest import ForestModel
from foretune.problem import Problem
from foretune.support import files
from foretune.support.files import MAX_COLUMNS, read_arrays, read_bytes, read_json
from foretune.support.parquet import ParquetFile, read_parquet
from foretune.tune.campaign.folder import read_state

SLOW = {"predictor, boosted": 4, "predictor, forest": 4}
"""Decoders that take long -> inputs; of others as many as take 0.1 s or so are read."""
FAST = (
    "exported store",
    "campaign",
    "recorded calls",
    "vLLM's tuned file",
    "model's configuration",
    "prices",
    "accuracies",
)

NEEDED = {"recorded calls": ("torch", "triton")}
"""Decoders -> optional packages that they import."""


@pytest.mark.parametrize("name", DECODERS)
def test_spoiled_files_are_read_or_refused(tmp_path, name):
    """A few of the inputs of `benchmarks/fuzz.py`."""
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package)
    inputs = SLOW.get(name, 200 if name in FAST else 10)
    tally = fuzz(name, tmp_path, inputs, seed=1)
    assert tally.unexpected == []
    assert tally.inputs == inputs
    assert tally.refused


@pytest.mark.parametrize("outcome", ["fault", "silent loss", "two lines", "hang"])
def test_fuzzer_reports_unexpected_errors(tmp_path, monkeypatch, outcome):
    def read(folder):
        rows = (folder / "x.csv").read_bytes().count(b"row")
        if rows == 3:
            return rows
        if outcome == "fault":
            raise IndexError("raw")
        if outcome == "two lines":
            raise StoreError("one\nand another")
        if outcome == "hang":
            time.sleep(60)
        return rows

    decoder = Decoder(lambda f: (f / "x.csv").write_text("row\nrow\nrow\n"), read, all_rows=True)
    monkeypatch.setattr(fuzzing, "DECODERS", {"mine": decoder})
    monkeypatch.setattr(fuzzing, "SECONDS", 1)
    tally = fuzz("mine", tmp_path, 40 if outcome != "hang" else 2, seed=3)
    says = {
        "fault": "IndexError: raw",
        "silent loss": "of 3 rows, without a word",
        "two lines": "not one line",
        "hang": "it takes more than 1 s",
    }
    assert says[outcome] in tally.unexpected[0][1]


def test_require_regular_file_refuses_others(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in ("/dev/zero", tmp_path / "pipe.json", tmp_path):
        with pytest.raises(OSError, match="not a regular file"):
            read_bytes(path)
    with pytest.raises(RunTableError, match="not a regular file"):
        read_runs("/dev/zero")


def test_archives_unpack_up_to_limit(tmp_path, monkeypatch):
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(b" " * (33 << 20)))
    with pytest.raises(RunTableError, match="32 MiB or more, but the limit is 32"):
        import_runs(tmp_path / "x.json.gz", "t4")
    np.savez_compressed(tmp_path / "x.npz", a=np.zeros(5 << 20))
    with pytest.raises(ValueError, match="40 MiB or more, but the limit is 32"):
        read_arrays(tmp_path / "x.npz")
    with monkeypatch.context() as patch:
        patch.setattr(files, "FREE_BYTES", 1 << 20)  # from where on files of more are read
        (tmp_path / "x.json.gz").write_bytes(gzip.compress(b" " * (2 << 20)))
        with pytest.raises(ValueError, match="1 MiB or more, but the limit is 1"):
            read_bytes(tmp_path / "x.json.gz")
        noise = np.random.default_rng(0).bytes(1 << 20)
        (tmp_path / "x.json.gz").write_bytes(gzip.compress(noise + b" " * (1 << 20)))
        assert len(read_bytes(tmp_path / "x.json.gz")) == 2 << 20
    monkeypatch.setattr(files, "MAX_BYTES", 1 << 20)
    (tmp_path / "large").write_bytes(bytes(3 << 20))
    with pytest.raises(ValueError, match="3 MiB or more"):
        read_bytes(tmp_path / "large")


def test_tables_that_are_larger_than_their_files(tmp_path):
    path = tmp_path / "x.parquet"
    rows = np.zeros(1 << 22, dtype=np.int64)
    cells = pa.table({c: pa.array([1]).take(rows) for c in "abcdefghi"})
    lists = pa.table({"time_ms_samples": pa.array([[1.0] * 16]).take(rows[: (1 << 21) + 1])})
    for table, says in ((cells, "the limit is 33,554,432"), (lists, "33,554,448 cells")):
        pq.write_table(table, path)
        assert path.stat().st_size < 1 << 20
        with pytest.raises(RunTableError, match=says):
            read_runs(path)


def test_texts_that_are_longer_than_their_files(tmp_path):
    path = tmp_path / "x.parquet"
    long = pa.table({"a": pa.array(["x" * (1 << 20)]).take([0] * 33), "b": list(range(33))})
    pq.write_table(long, path)
    for read in (
        read_parquet,
        lambda path: list(ParquetFile(path).batches(40)),
        lambda path: ParquetFile(path).read_row_group(0, ["a"]),
    ):
        with pytest.raises(ValueError, match="33 MiB or more, but the limit is 32"):
            read(path)
    assert read_parquet(path, dictionaries=True)["a"].chunk(0).dictionary.to_pylist() == [
        "x" * (1 << 20)
    ]
    pq.write_table(long.slice(0, 31), path)
    assert read_parquet(path).equals(long.slice(0, 31))


def test_columns_are_bounded_and_plain(tmp_path):
    many = [f"config.{i}" for i in range(MAX_COLUMNS + 1)]
    pq.write_table(pa.table({name: [1] for name in many}), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text(",".join(many) + "\n1\n")
    results = [{"configuration": {n: 1}, "times": {}, "invalidity": "timeout"} for n in many]
    (tmp_path / "x.json").write_text(json.dumps({"results": results}))
    (tmp_path / "y.parquet.journal").write_text("".join(f'{{"{n}": 1}}\n' for n in many))
    for read in (
        lambda: read_runs(tmp_path / "x.parquet"),
        lambda: read_runs(tmp_path / "y.parquet"),
        lambda: import_runs(tmp_path / "x.csv", "generic", kernel="k", device="d"),
        lambda: import_runs(tmp_path / "x.json", "t4", kernel="k", device="d"),
    ):
        with pytest.raises(RunTableError, match=r"it has 4,\d+ columns, but the limit is 4,096"):
            read()
    pq.write_table(pa.table({"config.x": [{"a": {"b": 1}}]}), tmp_path / "x.parquet")
    with pytest.raises(RunTableError, match=r"column 'config\.x' holds struct<.*: leave it out"):
        read_runs(tmp_path / "x.parquet")


def test_integers_have_64_bits(tmp_path):
    digits = "7" * 400
    (tmp_path / "campaign.json").write_text(
        f'{{"request": {{}}, "results": {{}}, "seconds": {digits}}}'
    )
    with pytest.raises(UsageError, match=r"the integer 77777777777777777777… has more than 64"):
        read_state(tmp_path)
    (tmp_path / "campaign.json").write_text('{"request": {}, "results": {}, "seconds": 1e999}')
    with pytest.raises(UsageError, match="'seconds' is inf"):
        read_state(tmp_path)
    (tmp_path / "x.json").write_text(f'{{"a": [{2**64 - 1}, {-(2**63)}, "{digits}", 0.{digits}]}}')
    assert read_json(tmp_path / "x.json")["a"][:3] == [2**64 - 1, -(2**63), digits]
    for number in (2**64, -(2**63) - 1):
        (tmp_path / "x.json").write_text(json.dumps({"a": number}))
        with pytest.raises(ValueError, match="has more than 64 bits"):
            read_json(tmp_path / "x.json")
        with pytest.raises(UsageError, match="n has more than 64 bits"):
            Problem(n=number)


def test_arrays_run_no_code_and_say_how_large_they_are(tmp_path):
    np.savez(tmp_path / "x.npz", a=np.array([print], dtype=object))
    with pytest.raises(ValueError, match="pickle"):
        read_arrays(tmp_path / "x.npz")
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50,)}
    )
    with zipfile.ZipFile(tmp_path / "y.npz", "w") as archive:
        archive.writestr("a.npy", header.getvalue())
    with pytest.raises((ValueError, MemoryError)):
        read_arrays(tmp_path / "y.npz")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "a": 2}', "'a' occurs twice"),
        ("[]", "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_json_of_another_kind(tmp_path, text, says):
    (tmp_path / "x.json").write_text(text)
    with (
        pytest.raises(StoreError, match=says),
        files.translate_read_errors("x", StoreError, "is damaged ({})"),
    ):
        read_json(tmp_path / "x.json")


def test_our_errors_pass_and_reasons_are_short():
    with (
        pytest.raises(RunTableError, match=r"^mine$"),
        files.translate_read_errors("x", StoreError, "{}"),
    ):
        raise RunTableError("mine")
    for error, reason in ((KeyError("a"), "'a' is missing"), (TypeError(), "TypeError")):
        with (
            pytest.raises(StoreError, match=rf"^x is damaged \({reason}\)$"),
            files.translate_read_errors("x", StoreError, "is damaged ({})"),
        ):
            raise error


X = np.random.default_rng(0).normal(0, 1, (200, 3)).astype(np.float32)


def changed(path, part, at, value):
    """Change an array of a saved model; without a value, keep a part of it."""
    arrays = read_arrays(path)
    if value is None:
        arrays[part] = arrays[part][at]
    elif isinstance(value, str):
        arrays[part] = arrays[part].astype(value)
    else:
        arrays[part][at] = value
    np.savez(path, **arrays)


@pytest.fixture
def boosted(tmp_path):
    """A saved boosted model of three trees."""
    path = tmp_path / f"x{BoostingModel.suffix}"
    model = BoostingModel(rounds=3, depth=3).fit(X, X[:, 0])
    model.save(path)
    np.testing.assert_array_equal(BoostingModel.load(path).predict(X), model.predict(X))
    return path


@pytest.mark.parametrize(
    ("part", "at", "value", "says"),
    [
        ("left_children", 0, 10**9, "not come after its parent"),
        ("left_children", 0, -2, "not come after its parent"),
        ("right_children", 1, 0, "not come after its parent"),  # a cycle
        ("left_children", 0, 2, "two parents"),
        ("right_children", -1, 1, "one child"),
        ("left_children", 0, ">i8", "not of its type or length"),
        ("split_indices", 0, 10**9, "features that do not exist"),
        ("split_indices", 0, -5, "features that do not exist"),
        ("split_conditions", slice(2), None, "not of its type or length"),
        ("sizes", 0, 99, "incomplete nodes"),
        ("sizes", slice(2), None, "incomplete nodes"),
    ],
)
def test_hostile_boosted_trees(boosted, part, at, value, says):
    changed(boosted, part, at, value)
    with pytest.raises(ValueError, match=says):
        BoostingModel.load(boosted)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda p: p["learner_model_param"].update(num_class="7"), "more than one output"),
        (lambda p: p["learner_model_param"].update(num_feature="0"), "features that do not exist"),
        (lambda p: p.pop("objective"), "'objective' is missing"),
        (lambda p: p["objective"].update(name="none"), "Unknown objective"),
        (lambda p: p.update(version=0.5), "is damaged"),
    ],
)
def test_hostile_parameters_of_boosted_trees(boosted, change, says):
    parameters = json.loads(str(read_arrays(boosted)["parameters"]))
    change(parameters)
    np.savez(boosted, **{**read_arrays(boosted), "parameters": json.dumps(parameters)})
    with (
        pytest.raises(PredictorError, match=says),
        files.translate_read_errors("x", PredictorError, "is damaged ({})"),
    ):
        BoostingModel.load(boosted)


@pytest.mark.parametrize(
    ("part", "at", "value", "says"),
    [
        ("left_child", 0, 10**9, "not come after its parent"),
        ("right_child", 1, 0, "not come after its parent"),
        ("feature", 0, 10**6, "features that do not exist"),
        ("sizes", 0, 10**9, "incomplete nodes"),
        ("sizes", 0, 0, "incomplete nodes"),
        ("value", 0, np.nan, "leaves have no values"),
        ("threshold", slice(1), None, "not of its type or length"),
    ],
)
def test_hostile_forests(tmp_path, part, at, value, says):
    path = tmp_path / f"x{ForestModel.suffix}"
    model = ForestModel(trees=3).fit(X, X[:, 0])
    model.save(path)
    np.testing.assert_array_equal(ForestModel.load(path).predict(X), model.predict(X))
    changed(path, part, at, value)
    with pytest.raises(ValueError, match=says):
        ForestModel.load(path)


def test_trees_that_are_too_deep():
    from foretune.models.trees.saved_trees import MAX_DEPTH, require_trees

    for levels in (MAX_DEPTH - 2, MAX_DEPTH + 2):
        n = 2 * levels + 1
        inner = np.arange(n) % 2 == 0
        column = np.zeros(n)
        inner[-1] = False
        left, right = (np.where(inner, np.arange(n) + i, -1) for i in (1, 2))
        if levels < MAX_DEPTH:
            require_trees(np.array([n]), 1, left, right, column)
            continue
        with pytest.raises(ValueError, match="levels deep"):
            require_trees(np.array([n]), 1, left, right, column)


def test_predictor_folder_with_device_or_packed_zeros_is_refused(tmp_path, monkeypatch):
    folder = tmp_path / "p"
    Predictor(parameters={"rounds": 5}).fit(gemms(40)).save(folder)
    tree = folder / "time_ms" / "tree.boosted.npz"
    whole = tree.read_bytes()
    np.savez_compressed(tree, sizes=np.zeros(40 << 20, "u1"))
    monkeypatch.setattr(files, "MAX_BYTES", 32 << 20)
    with pytest.raises(PredictorError, match=r"is damaged .*40 MiB or more"):
        Predictor.load(folder)
    tree.write_bytes(whole)
    (folder / "time_ms" / "target.json").unlink()
    (folder / "time_ms" / "target.json").symlink_to("/dev/zero")
    with pytest.raises(PredictorError, match="not a regular file"):
        Predictor.load(folder)
    card = folder / "predictor.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "targets": ["../x"]}))
    (folder / "time_ms" / "target.json").unlink()
    with pytest.raises(PredictorError, match=r"target '\.\./x' is not known"):
        Predictor.load(folder)


def test_store_file_with_repeated_entries_is_refused(tmp_path):
    decoder = DECODERS["exported store"]
    decoder.write(tmp_path)
    path = tmp_path / "store.json"
    good = json.loads(path.read_text())
    (problem, *_) = good["subjects"][0]["problems"]
    problem["measurements"] *= 2
    path.write_text(json.dumps(good))
    with pytest.raises(StoreError, match="occurs twice"):
        decoder.read(tmp_path)
    problem["measurements"] = problem["measurements"][:1]
    problem["choise"] = problem.pop("choice", {})
    path.write_text(json.dumps(good))
    with pytest.raises(StoreError, match="is damaged"):
        decoder.read(tmp_path)
