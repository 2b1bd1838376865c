"""Watts of operators on the systems whose power was metered."""

import numpy as np

from foretune.plan.describe import shipped_rows
from foretune.plan.describe.system import System
from foretune.plan.operators.question import Question


def metered_watts(question: Question, system: System, ms: float) -> float | None:
    """Return the mean power of an operator that takes ``ms``; None where none was metered.

    It follows from the utilization of compute and memory (`foretune.plan.cost.power`).
    """
    kernel = question.spec.kernel
    metered = {
        (row["kernel"], row["system"]) for row in shipped_rows("power.csv", "foretune.plan.cost")
    }
    if (kernel, system.name) not in metered:
        return None

    # Table libraries load for metered systems only.
    import pandas as pd

    from foretune.plan.cost.power import OperatorPower

    row = {
        "kernel": kernel,
        **{f"problem.{name}": value for name, value in question.problem.items()},
        **{f"config.{name}": value for name, value in question.config.items()},
    }
    power = OperatorPower(system.device, system.name)
    return float(power.watts(pd.DataFrame([row]), np.array([ms])).watts[0])
