"""The loop that ties it together: predict, search, measure, verify, report."""

from foretune.tune.campaign import Campaign, run_campaign
from foretune.tune.tuner import tune_problem

__all__ = ["Campaign", "run_campaign", "tune_problem"]
