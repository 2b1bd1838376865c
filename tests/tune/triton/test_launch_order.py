"""An order of launches that learned from other kernels."""

import json
import subprocess
import sys

import numpy as np

from foretune.tune.triton.launch_order import SHIPPED, shipped_order


def test_the_shipped_one_is_small_and_says_what_it_learned_from():
    card = json.loads(SHIPPED.with_suffix(".json").read_text())
    assert SHIPPED.stat().st_size < 2e6
    for table in card["tables"].values():
        assert {"kernels", "device", "problems", "dtypes", "sha256"} <= set(table)
    # curves rise: what is ordered stays ordered
    assert (np.diff(shipped_order().ratios) > 0).all()


def test_the_shipped_one_is_read_without_what_it_was_made_with():
    code = (
        "import sys\n"
        "from foretune.tune.triton.launch_order import shipped_order\n"
        "shipped_order()\n"
        "print({'pandas', 'sklearn', 'xgboost', 'scipy'} & set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
