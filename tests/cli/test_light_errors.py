"""Tests that a wrong command line is answered before packages that take seconds are imported."""

import json
import subprocess
import sys

import pytest

HEAVY = {"joblib", "mlflow", "numba", "optuna", "pandas", "pyarrow", "scipy", "sklearn", "xgboost"}
CODE = """
import json, sys
from foretune.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]))
"""


@pytest.mark.parametrize(
    ("line", "exit_code", "message"),
    [
        ("tune sofmax --problem R=1,C=1", 2, "did you mean 'softmax'?"),
        ("tune softmax --nonsense", 2, "--nonsense"),
        ("tune softmax --problem Q=1", 2, "unknown problem parameter of softmax 'Q'"),
        ("tune softmax --problem R=1,C=64 --searcher tp", 2, "did you mean 'tpe'?"),
        ("tune softmax --problem R=1,C=64 --budget many", 2, "--budget many: give a number"),
        ("campaign sofmax", 2, "did you mean 'softmax'?"),
        ("campaign softmax --model forest", 2, "unknown model 'forest'"),
        ("predict somewhere", 2, "give --problem"),
        ("predict auto --problem R=1,C=1 --config a=1", 2, "--config needs --explain"),
        ("train missing.csv --out p", 1, "missing.csv cannot be read: there is no such file"),
        ("replay missing.parquet", 1, "there is no such file"),
        ("nonsense", 2, "nonsense"),
    ],
)
def test_wrong_line_is_answered_without_heavy_imports(line, exit_code, message):
    run = subprocess.run(
        [sys.executable, "-c", CODE, *line.split()], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(run.stdout.splitlines()[-1])
    assert message in run.stderr
    assert code == exit_code
    assert sorted(HEAVY & set(modules)) == []
