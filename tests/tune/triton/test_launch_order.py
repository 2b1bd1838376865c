"""The shipped order of launches: `tune/triton/launch_order.py`."""

import json
import subprocess
import sys

import numpy as np

from foretune.tune.triton.launch_order import SHIPPED, shipped_order


def test_shipped_order_is_small_and_has_a_card():
    card = json.loads(SHIPPED.with_suffix(".json").read_text())
    assert SHIPPED.stat().st_size < 2e6
    for table in card["tables"].values():
        assert {"kernels", "device", "problems", "dtypes", "sha256"} <= set(table)
    # the curve rises, so it keeps the order of scores
    assert (np.diff(shipped_order().ratios) > 0).all()


def test_shipped_order_loads_with_numpy_alone():
    code = (
        "import sys\n"
        "from foretune.tune.triton.launch_order import shipped_order\n"
        "shipped_order()\n"
        "print({'pandas', 'sklearn', 'xgboost', 'scipy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
