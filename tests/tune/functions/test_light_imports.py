"""Tests that tuning a function imports no package that it does not need, which takes seconds."""

import json
import subprocess
import sys

HEAVY = {"joblib", "mlflow", "numba", "optuna", "sklearn", "xgboost"}
CODE = """
import json, sys
import foretune as ft

def double(x, n=1):
    return 2 * x

if __name__ == "__main__":
    ft.tune_function(double, {"n": [1, 2]}, args=(1.0,), progress=False, verify_s=0.05)
    print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def test_tune_function_without_predictor_imports_no_learning_package(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(CODE)
    run = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    modules = json.loads(run.stdout.splitlines()[-1])
    assert sorted(HEAVY & set(modules)) == []
