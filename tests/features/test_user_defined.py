"""Work given by the user as expressions: `features/families/user_defined.py`."""

import numpy as np
import pandas as pd
import pytest

from foretune.errors import PredictorError, SpaceError
from foretune.features.families.gemm import Gemm
from foretune.features.families.user_defined import UserDefinedCost
from foretune.features.families_of_runs import family_for
from foretune.features.roofline import row_cost, row_parts_ms, row_roofline_ms
from foretune.models import Predictor

FLOPS = "2 * M * N * K"
BYTES = "2 * (M*K + K*N + M*N)"
BLOCKS = "-(-M // BLOCK) * -(-N // BLOCK)"


@pytest.fixture
def runs():
    rng = np.random.default_rng(0)
    sizes = {f"problem.{s}": 2.0 ** rng.integers(6, 13, 120) for s in "MNK"}
    rows = pd.DataFrame({"kernel": "theirs", "device": "d", "status": "ok", **sizes})
    rows = rows.assign(
        **{
            "config.BLOCK": rng.choice([32, 64, 128], 120),
            "problem.dtype": "fp16",
            "device.cores": 16.0,
            "device.fp16_gflops": 1e4,
            "device.memory_gbps": 1e3,
        }
    )
    ms = row_parts_ms(UserDefinedCost("theirs", FLOPS, BYTES, BLOCKS), rows).max(axis=1)
    return rows.assign(time_ms=1.3 * ms + 0.01)


def test_user_defined_cost_equals_family(runs):
    given = row_cost(UserDefinedCost("theirs", FLOPS, BYTES), runs)
    known = row_cost(Gemm(), runs)
    np.testing.assert_allclose(given.flops, known.flops)
    np.testing.assert_allclose(given.bytes_moved, known.bytes_moved)
    assert set(given.dtype) == {"fp16"}


def test_user_defined_blocks_make_whole_waves(runs):
    parts = row_parts_ms(UserDefinedCost("theirs", FLOPS, BYTES, BLOCKS), runs)
    plain = row_parts_ms(UserDefinedCost("theirs", FLOPS, BYTES), runs)
    blocks = np.ceil(runs["problem.M"] / runs["config.BLOCK"]) * np.ceil(
        runs["problem.N"] / runs["config.BLOCK"]
    )
    waste = np.ceil(blocks / 16) * 16 / blocks
    np.testing.assert_allclose(parts[:, 0], plain[:, 0] * waste)
    np.testing.assert_allclose(parts[:, 1], plain[:, 1])


def test_user_defined_cost_is_saved_with_predictor(runs, tmp_path):
    known = Predictor(kernel=UserDefinedCost("theirs", FLOPS, BYTES, BLOCKS)).fit(runs)
    assert {"log2_flops", "waves_blocks", "fill_blocks"} <= set(known.features_.columns_)
    known.save(tmp_path / "p")
    loaded = Predictor.load(tmp_path / "p")
    pd.testing.assert_frame_equal(loaded.predict(runs), known.predict(runs))
    assert loaded.kernel.to_json() == known.kernel.to_json()
    error = np.abs(known.predict(runs)["time_ms"] / runs["time_ms"] - 1)
    assert error.median() < 0.1


def test_user_defined_cost_reads_columns(runs):
    cost = row_cost(Gemm(), runs)
    work = runs.assign(**{"problem.flops": cost.flops, "problem.bytes": cost.bytes_moved})
    family = family_for("theirs", work)
    assert isinstance(family, UserDefinedCost)
    np.testing.assert_allclose(row_roofline_ms(family, work), row_roofline_ms(Gemm(), runs))
    assert family_for("theirs", runs) is None


@pytest.mark.parametrize("text", ["2 *", "M.x", "open('x')", "__import__('os')"])
def test_user_defined_expression_with_code_is_refused(text):
    with pytest.raises(SpaceError, match="flops"):
        UserDefinedCost("theirs", text, BYTES)


def test_user_defined_missing_column_is_named(runs):
    with pytest.raises(PredictorError, match=r"problem\.batch"):
        row_cost(UserDefinedCost("theirs", f"batch * {FLOPS}", BYTES), runs)
    with pytest.raises(SpaceError, match="text"):
        row_cost(UserDefinedCost("theirs", "2 * dtype", BYTES), runs)
    with pytest.raises(PredictorError, match="negative in some rows"):
        row_cost(UserDefinedCost("theirs", "-M", BYTES), runs)
