"""What the errors of planned deployments share, and how much measurements repeat themselves."""

from foretune.plan.serve.deployments.group_process import Shares

SHARES: dict[str, dict[str, Shares]] = {
    "tpot_ms": {
        "": Shares(0.01, 0.005),
        "model": Shares(0.0015, 0.001),
        "model use": Shares(0.005, 0.0015, 0.0025),
        "model use system formats": Shares(0.0015, 0.0025, 0.0075),
        "model use system formats layout": Shares(0.0075, 0.0, 0.001),
        "use version": Shares(0.0, 0.0, 0.0025),
        "model use version": Shares(0.0015, 0.0025),
        "model use system version": Shares(0.0025),
    },
    "ttft_ms": {
        "": Shares(0.04, 0.06),
        "use": Shares(0.007, 0.007),
        "use load": Shares(0.003, 0.007),
        "use system": Shares(0.01, 0.003),
        "use generation formats": Shares(0.03),
        "use kind": Shares(0.02, 0.02),
        "model": Shares(0.007, 0.01),
        "model use": Shares(0.007, 0.02, 0.01),
        "model use system formats": Shares(0.02, 0.01, 0.003),
        "model use system formats layout": Shares(0.01),
        "model use version": Shares(0.01),
    },
}
"""What the Gaussian processes take to be shared, chosen with whole groups of one half of the
configurations left out, and checked on the other half."""
NOISE = {"tpot_ms": 0.02, "ttft_ms": 0.04}
"""Variance of the logarithm of a repeated measurement."""
