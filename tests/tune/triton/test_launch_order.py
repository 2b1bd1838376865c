"""The shipped orders of launches: `tune/triton/launch_order.py`."""

import json
import subprocess
import sys

import numpy as np

from foretune.tune.triton.launch_order import SHIPPED, shipped_orders


def test_shipped_orders_are_small_and_have_a_card():
    card = json.loads(SHIPPED.with_suffix(".json").read_text())
    assert SHIPPED.stat().st_size < 2e6
    for table in card["tables"].values():
        assert {"kernels", "device", "problems", "dtypes", "sha256"} <= set(table)
    # the curves rise, so they keep the order of scores
    for curve in shipped_orders().curves.values():
        assert (np.diff(curve.ratios) > 0).all()


def test_shipped_orders_load_with_numpy_alone():
    code = (
        "import sys\n"
        "from foretune.tune.triton.launch_order import shipped_orders\n"
        "shipped_orders()\n"
        "print({'pandas', 'sklearn', 'xgboost', 'scipy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
