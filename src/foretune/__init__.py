"""Foretune: predict before you measure, verify before you trust.

Predicts how fast a kernel configuration will run and how much power it will draw, searches that
prediction, and measures only the few configurations that matter.

Names are imported when first used, so that ``import foretune`` costs next to nothing.
"""

from typing import TYPE_CHECKING

from foretune.lazy import lazy_exports
from foretune.version import __version__

if TYPE_CHECKING:
    from foretune.collect import (
        InProcessRunner,
        IsolatedRunner,
        RayRunner,
        Timing,
        collect_runs,
        local_device,
        plan_configurations,
    )
    from foretune.collect.wrapped.wrapped import powers_of_two
    from foretune.datasets import RunLog, read_runs, write_runs
    from foretune.device import Device, find_device
    from foretune.errors import DataWarning, ForetuneError, ForetuneWarning
    from foretune.family import Cost, Family
    from foretune.kernel import Kernel
    from foretune.measurement import Measurement, Status
    from foretune.models import (
        Predictor,
        RuntimeRegressor,
        evaluate_predictor,
        train_predictor,
    )
    from foretune.objective import Limit, Objective
    from foretune.problem import Problem, ProblemParameter
    from foretune.registry import get_kernel
    from foretune.search import make_searcher
    from foretune.space import Configuration, SearchSpace
    from foretune.tune import (
        PRESETS,
        Calls,
        Campaign,
        ParetoResult,
        Preset,
        TuneResult,
        WorkloadResult,
        run_campaign,
        tune_pareto,
        tune_problem,
        tune_workload,
    )
    from foretune.tune.functions.function import tunable, tune_function
    from foretune.tune.functions.kernel_tuner import tune_kernel
    from foretune.tune.functions.lookup import best
    from foretune.tune.functions.program import tune_program
    from foretune.tune.functions.result import Best
    from foretune.tune.judge import Verdict, judge
    from foretune.tune.store import Store
    from foretune.tune.triton import autotune, listen, patch_inductor, patch_triton

__all__ = [
    "PRESETS",
    "Best",
    "Calls",
    "Campaign",
    "Configuration",
    "Cost",
    "DataWarning",
    "Device",
    "Family",
    "ForetuneError",
    "ForetuneWarning",
    "InProcessRunner",
    "IsolatedRunner",
    "Kernel",
    "Limit",
    "Measurement",
    "Objective",
    "ParetoResult",
    "Predictor",
    "Preset",
    "Problem",
    "ProblemParameter",
    "RayRunner",
    "RunLog",
    "RuntimeRegressor",
    "SearchSpace",
    "Status",
    "Store",
    "Timing",
    "TuneResult",
    "Verdict",
    "WorkloadResult",
    "__version__",
    "autotune",
    "best",
    "collect_runs",
    "evaluate_predictor",
    "find_device",
    "get_kernel",
    "judge",
    "listen",
    "local_device",
    "make_searcher",
    "patch_inductor",
    "patch_triton",
    "plan_configurations",
    "powers_of_two",
    "read_runs",
    "run_campaign",
    "train_predictor",
    "tunable",
    "tune_function",
    "tune_kernel",
    "tune_pareto",
    "tune_problem",
    "tune_program",
    "tune_workload",
    "write_runs",
]

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(
        __name__,
        {
            "collect": [
                "InProcessRunner",
                "IsolatedRunner",
                "RayRunner",
                "Timing",
                "collect_runs",
                "local_device",
                "plan_configurations",
            ],
            "datasets": ["RunLog", "read_runs", "write_runs"],
            "device": ["Device", "find_device"],
            "errors": ["DataWarning", "ForetuneError", "ForetuneWarning"],
            "family": ["Cost", "Family"],
            "kernel": ["Kernel"],
            "objective": ["Limit", "Objective"],
            "measurement": ["Measurement", "Status"],
            "models": ["Predictor", "RuntimeRegressor", "evaluate_predictor", "train_predictor"],
            "problem": ["Problem", "ProblemParameter"],
            "registry": ["get_kernel"],
            "search": ["make_searcher"],
            "space": ["Configuration", "SearchSpace"],
            "tune": [
                "PRESETS",
                "Calls",
                "Campaign",
                "ParetoResult",
                "Preset",
                "TuneResult",
                "WorkloadResult",
                "run_campaign",
                "tune_pareto",
                "tune_problem",
                "tune_workload",
            ],
            "tune.triton": ["autotune", "listen", "patch_inductor", "patch_triton"],
            "tune.store": ["Store"],
            "collect.wrapped.wrapped": ["powers_of_two"],
            "tune.judge": ["judge", "Verdict"],
            "tune.functions.result": ["Best"],
            "tune.functions.lookup": ["best"],
            "tune.functions.function": ["tunable", "tune_function"],
            "tune.functions.kernel_tuner": ["tune_kernel"],
            "tune.functions.program": ["tune_program"],
        },
    )
