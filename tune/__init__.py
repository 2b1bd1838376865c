"""The loop that ties it together: predict, search, measure, verify, report."""

from foretune.tune.campaign import Campaign, run_campaign
from foretune.tune.preset import PRESETS, Preset
from foretune.tune.results import TuneResult
from foretune.tune.tuner import tune_problem

__all__ = ["PRESETS", "Campaign", "Preset", "TuneResult", "run_campaign", "tune_problem"]
