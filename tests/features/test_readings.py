"""What an unknown kernel may be, by the names of its sizes."""

import json

import numpy as np
import pandas as pd
import pytest

from foretune.datasets.plain_tables import plain_runs
from foretune.features.arrays import Rows
from foretune.features.families.attention import AttentionDecode
from foretune.features.families.gemm import Gemm
from foretune.features.reading_templates import TEMPLATES
from foretune.features.readings import RenamedFamily, possible_readings
from foretune.features.roofline import row_cost
from foretune.registry import registered

COUNTS = [64, 128, 256, 512]


def runs(**columns):
    return plain_runs(pd.DataFrame({**columns, "time_ms": [1.0, 2.0, 3.0, 4.0]}))


def readings(**columns):
    return {r.template.family: r for r in possible_readings(runs(**columns))}


@pytest.mark.parametrize(
    "names", [("M", "N", "K"), ("rows", "cols", "inner"), ("tokens", "out_features", "in_features")]
)
def test_sizes_of_a_product_have_many_names(names):
    found = readings(**dict.fromkeys(names, COUNTS))["gemm"]
    pairs = ", ".join(f"{size} = {name}" for size, name in zip("MNK", names, strict=True))
    assert str(found) == f"read as a matrix product: {pairs}"


def test_work_is_that_of_the_family_under_other_names():
    theirs = runs(rows=COUNTS, cols=[32, 64, 32, 64], inner=[8, 8, 16, 16], dtype=["fp32"] * 4)
    ours = theirs.rename(
        columns={"problem.rows": "problem.M", "problem.cols": "problem.N"}
        | {"problem.inner": "problem.K"}
    )
    reading = next(r for r in possible_readings(theirs) if r.template.family == "gemm")
    read = row_cost(RenamedFamily("theirs", reading), Rows(theirs))
    declared = row_cost(Gemm(), Rows(ours))
    np.testing.assert_array_equal(read.flops, declared.flops)
    # The format of a table's column counts.
    np.testing.assert_array_equal(read.bytes_moved, declared.bytes_moved)
    assert set(read.dtype) == {"fp32"}


def test_optional_sizes_and_settings_are_found():
    columns = {"batch_size": COUNTS, "step": COUNTS, "num_heads": [8] * 4, "head_dim": [128] * 4}
    found = readings(**columns, num_kv_heads=[2] * 4, window_size=[0] * 4)["attention_decode"]
    assert found.columns["kv_heads"] == "problem.num_kv_heads"
    assert found.columns["window"] == "problem.window_size"
    read = RenamedFamily("theirs", found)
    assert read.source_hash == AttentionDecode().source_hash


def test_an_optional_size_with_texts_is_left_out():
    columns = {"m": COUNTS, "n": COUNTS, "k": COUNTS, "b": ["row", "col", "row", "col"]}
    reading = readings(**columns)["gemm"]
    assert "batch" not in reading.columns
    cost = row_cost(RenamedFamily("theirs", reading), Rows(runs(**columns)))
    np.testing.assert_array_equal(cost.flops, 2.0 * np.array(COUNTS) ** 3)


def test_a_size_that_is_missing_or_a_text_hints_at_nothing():
    assert "gemm" not in readings(rows=COUNTS, cols=COUNTS)
    assert "gemm" not in readings(m=COUNTS, n=COUNTS, k=["a", "b", "c", "d"])
    assert readings(alpha=COUNTS) == {}


def test_one_column_stands_for_one_size():
    for reading in possible_readings(runs(tokens=COUNTS, n=COUNTS, k=COUNTS, hidden=COUNTS)):
        columns = list(reading.columns.values())
        assert len(columns) == len(set(columns))


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda template: template.family)
def test_every_template_is_of_a_family_and_survives_saving(template):
    assert template.family in registered("families")
    columns = {names[0]: COUNTS for names in template.sizes.values()}
    reading = readings(**columns)[template.family]
    saved = json.loads(json.dumps(RenamedFamily("theirs", reading).to_json()))
    restored = RenamedFamily.from_json("theirs", saved)
    assert restored.reading == reading
    cost = row_cost(restored, Rows(runs(**columns)))
    assert (np.asarray(cost.bytes_moved) > 0).all()
