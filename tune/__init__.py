"""The loop that ties it together: predict, search, measure, verify, report."""

from foretune.tune.campaign import Campaign, run_campaign
from foretune.tune.pareto import ParetoResult, tune_pareto
from foretune.tune.preset import PRESETS, Preset
from foretune.tune.results import TuneResult
from foretune.tune.tuner import tune_problem

__all__ = [
    "PRESETS",
    "Campaign",
    "ParetoResult",
    "Preset",
    "TuneResult",
    "run_campaign",
    "tune_pareto",
    "tune_problem",
]
