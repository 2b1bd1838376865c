"""Describing a deployment loads no tables and no learners."""

import subprocess
import sys


def test_planning_arithmetic_imports_nothing_heavy():
    code = (
        "import sys; from foretune.plan import Formats, Layout, Workload, describe_model; "
        "from foretune.plan import find_system; "
        "from foretune.plan.cost.decoder import mixed_operators; "
        "from foretune.plan.cost.operator import Part; "
        "from foretune.plan.cost.memory import max_requests; "
        "model = describe_model('Qwen/Qwen3-32B'); system = find_system('h200_sxm');"
        "mixed_operators(model, Layout(4), Formats('fp8'), [Part(8, 1, 100, 'decode')]);"
        "max_requests(model, Layout(4), Formats(), Workload(100, 100), system.memory_gib); "
        "print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "triton", "mlflow", "optuna", "xgboost", "sklearn", "pandas", "numba", "ray"}
    assert not set(run.stdout.split()) & heavy
