"""Tuning: predict, search, measure, verify, report."""

from typing import TYPE_CHECKING

from foretune.support.lazy import lazy_exports

if TYPE_CHECKING:
    from foretune.tune.campaign.campaign import PRESETS, Preset, run_campaign
    from foretune.tune.campaign.observer import Campaign
    from foretune.tune.functions.result import Best
    from foretune.tune.pareto import ParetoResult, tune_pareto
    from foretune.tune.results import TuneResult
    from foretune.tune.tuner import tune_problem
    from foretune.tune.verdict import Verdict
    from foretune.tune.workload import Calls, WorkloadResult, tune_workload

__all__ = [
    "PRESETS",
    "Best",
    "Calls",
    "Campaign",
    "ParetoResult",
    "Preset",
    "TuneResult",
    "Verdict",
    "WorkloadResult",
    "run_campaign",
    "tune_pareto",
    "tune_problem",
    "tune_workload",
]

_MODULE_OF = {
    "Best": "foretune.tune.functions.result",
    "Calls": "foretune.tune.workload",
    "Campaign": "foretune.tune.campaign.observer",
    "PRESETS": "foretune.tune.campaign.campaign",
    "ParetoResult": "foretune.tune.pareto",
    "Preset": "foretune.tune.campaign.campaign",
    "TuneResult": "foretune.tune.results",
    "Verdict": "foretune.tune.verdict",
    "WorkloadResult": "foretune.tune.workload",
    "run_campaign": "foretune.tune.campaign.campaign",
    "tune_pareto": "foretune.tune.pareto",
    "tune_problem": "foretune.tune.tuner",
    "tune_workload": "foretune.tune.workload",
}
"""Public name -> module that defines it: the imports above, which only type checkers run."""

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__, _MODULE_OF)
