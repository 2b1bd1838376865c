"""What ``foretune plan serve … --verify`` shows."""

import numpy as np
import pandas as pd

from foretune.cli import plan_verify as verify
from foretune.cli.output import Output
from foretune.plan.check.operators import OperatorCheck


def test_operators_are_shown_with_why_some_were_not_measured(capsys):
    rows = [
        {"name": "qkv", "problem": "M=1", "format": "bf16", "share": 0.75, "predicted_ms": 1.0,
         "low_ms": 0.5, "high_ms": 2.0, "measured_ms": 1.5, "ratio": 1.5, "note": ""},
        {"name": "sum", "problem": "devices=2", "format": "", "share": 0.25, "predicted_ms": 1.0,
         "low_ms": 0.5, "high_ms": 2.0, "measured_ms": np.nan, "ratio": np.nan, "note": "one GPU"},
    ]  # fmt: skip
    verify.show_operators(Output(False), OperatorCheck(pd.DataFrame(rows), "of this CPU"))
    shown = " ".join(capsys.readouterr().out.split())
    for text in ("of this CPU", "one GPU", "1 of 2 operators were measured, 75.0 % of the time",
                 "1.50 times the predicted time, 100.0 % are in their interval"):  # fmt: skip
        assert text in shown
    nothing = pd.DataFrame(rows[1:])
    verify.show_operators(Output(False), OperatorCheck(nothing, "of this CPU"))
    assert "no operator was measured" in capsys.readouterr().out
