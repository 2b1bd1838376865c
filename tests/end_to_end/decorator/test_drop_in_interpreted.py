"""Results in Triton's interpreter: tuning must not change them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

SCRIPT = Path(__file__).parents[2] / "toy" / "interpreted_tuning.py"


STOCK = pytest.param("stock", marks=pytest.mark.extended)  # what is expected is Triton's own


@pytest.fixture(scope="module", params=[STOCK, "foretune"])
def found(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("interpreted")
    run = subprocess.run(
        [sys.executable, str(SCRIPT), request.param],
        env={
            **os.environ,
            "TRITON_INTERPRET": "1",
            "TRITON_CACHE_DIR": str(folder),
            "FORETUNE_STORE": str(folder / "tuned.db"),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
    )
    if "only 0-dimensional arrays can be converted" in run.stderr:
        pytest.skip("the interpreter of this Triton does not work with this NumPy")
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_restored_argument_is_changed_by_the_call_only(found):
    assert found["restored"] == [1.0, 2.0]


def test_zeroed_argument_has_one_launch(found):
    assert found["zeroed"] == [1.0, 2.0]


def test_argument_neither_restored_nor_zeroed_has_all_launches(found):
    first, second = found["bare"]
    assert first > 3
    assert second == first + 1


def test_atomic_sums_are_right(found):
    tuned, true = found["summed"]
    assert tuned == true


def test_every_tile_computes_the_same_product(found):
    assert len(found["multiplied"]) == 5
    assert max(found["multiplied"]) < 1e-4


def test_problems_are_tuned_separately(found):
    assert found["remembered"] == {
        "keys": [[200, "torch.float32"], [200, "torch.float64"]],
        "timings": 3,
        "best_is_known": True,
        "nargs": None,
        "is_stock": True,
    }
