"""Variance components of the deployments' errors."""

from foretune.plan.serve.deployments.group_process import VarianceComponent

COMPONENTS: dict[str, dict[str, VarianceComponent]] = {
    "tpot_ms": {
        "": VarianceComponent(0.01, 0.005),
        "model": VarianceComponent(0.0015, 0.001),
        "model use": VarianceComponent(0.005, 0.0015, 0.0025),
        "model use system formats": VarianceComponent(0.0015, 0.0025, 0.0075),
        "model use system formats layout": VarianceComponent(0.0075, 0.0, 0.001),
        "use version": VarianceComponent(0.0, 0.0, 0.0025),
        "model use version": VarianceComponent(0.0015, 0.0025),
        "model use system version": VarianceComponent(0.0025),
    },
    "ttft_ms": {
        "": VarianceComponent(0.04, 0.06),
        "use": VarianceComponent(0.007, 0.007),
        "use load": VarianceComponent(0.003, 0.007),
        "use system": VarianceComponent(0.01, 0.003),
        "use generation formats": VarianceComponent(0.03),
        "use kind": VarianceComponent(0.02, 0.02),
        "model": VarianceComponent(0.007, 0.01),
        "model use": VarianceComponent(0.007, 0.02, 0.01),
        "model use system formats": VarianceComponent(0.02, 0.01, 0.003),
        "model use system formats layout": VarianceComponent(0.01),
        "model use version": VarianceComponent(0.01),
    },
}
"""Target -> label columns -> variance components.

Chosen on one half of the configurations by leaving out whole groups, and validated on the other
half.
"""
NOISE = {"tpot_ms": 0.02, "ttft_ms": 0.04}
"""Variance of the logarithm of a repeated measurement."""
