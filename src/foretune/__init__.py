"""Foretune: predict before you measure, verify before you trust.

Foretune predicts the run time and power of kernel configurations, searches the prediction, and
measures only the few configurations that matter.

Names are imported on first use, so `import foretune` is fast.
"""

from typing import TYPE_CHECKING

from foretune.support.lazy import lazy_exports
from foretune.version import __version__

if TYPE_CHECKING:
    from foretune import plot as plot
    from foretune.collect import (
        InProcessRunner,
        IsolatedRunner,
        RayRunner,
        collect_runs,
        local_device,
    )
    from foretune.datasets import read_runs, write_runs
    from foretune.device import Device, find_device
    from foretune.errors import ForetuneError
    from foretune.family import Cost
    from foretune.kernel import Kernel
    from foretune.measurement import Measurement
    from foretune.models import Predictor, RuntimeRegressor, train_predictor
    from foretune.objective import Limit, Objective
    from foretune.plan.operators.predicting import predict_operator
    from foretune.problem import Problem, ProblemParameter
    from foretune.registry import get_kernel
    from foretune.search import make_searcher, run_search
    from foretune.space import Configuration, SearchSpace
    from foretune.tune import run_campaign, tune_pareto, tune_problem, tune_workload
    from foretune.tune.doors.flashinfer import patch_flashinfer
    from foretune.tune.doors.helion import helion_autotuner
    from foretune.tune.doors.kernel_tuner import KernelTunerStrategy
    from foretune.tune.functions.function import tune_function
    from foretune.tune.functions.kernel_tuner import tune_kernel
    from foretune.tune.functions.program import tune_program
    from foretune.tune.functions.result import best
    from foretune.tune.functions.tunable import tunable
    from foretune.tune.store import Store
    from foretune.tune.triton import autotune, listen, patch_inductor, patch_triton

__all__ = [
    "Configuration",
    "Cost",
    "Device",
    "ForetuneError",
    "InProcessRunner",
    "IsolatedRunner",
    "Kernel",
    "KernelTunerStrategy",
    "Limit",
    "Measurement",
    "Objective",
    "Predictor",
    "Problem",
    "ProblemParameter",
    "RayRunner",
    "RuntimeRegressor",
    "SearchSpace",
    "Store",
    "__version__",
    "autotune",
    "best",
    "collect_runs",
    "find_device",
    "get_kernel",
    "helion_autotuner",
    "listen",
    "local_device",
    "make_searcher",
    "patch_flashinfer",
    "patch_inductor",
    "patch_triton",
    "plot",
    "predict_operator",
    "read_runs",
    "run_campaign",
    "run_search",
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

_MODULE_OF = {
    "Configuration": "foretune.space",
    "Cost": "foretune.family",
    "Device": "foretune.device",
    "ForetuneError": "foretune.errors",
    "InProcessRunner": "foretune.collect",
    "IsolatedRunner": "foretune.collect",
    "Kernel": "foretune.kernel",
    "KernelTunerStrategy": "foretune.tune.doors.kernel_tuner",
    "Limit": "foretune.objective",
    "Measurement": "foretune.measurement",
    "Objective": "foretune.objective",
    "Predictor": "foretune.models",
    "Problem": "foretune.problem",
    "ProblemParameter": "foretune.problem",
    "RayRunner": "foretune.collect",
    "RuntimeRegressor": "foretune.models",
    "SearchSpace": "foretune.space",
    "Store": "foretune.tune.store",
    "autotune": "foretune.tune.triton",
    "best": "foretune.tune.functions.result",
    "collect_runs": "foretune.collect",
    "find_device": "foretune.device",
    "get_kernel": "foretune.registry",
    "helion_autotuner": "foretune.tune.doors.helion",
    "listen": "foretune.tune.triton",
    "local_device": "foretune.collect",
    "make_searcher": "foretune.search",
    "patch_flashinfer": "foretune.tune.doors.flashinfer",
    "patch_inductor": "foretune.tune.triton",
    "patch_triton": "foretune.tune.triton",
    "plot": "foretune.plot",
    "predict_operator": "foretune.plan.operators.predicting",
    "read_runs": "foretune.datasets",
    "run_campaign": "foretune.tune",
    "run_search": "foretune.search",
    "train_predictor": "foretune.models",
    "tunable": "foretune.tune.functions.tunable",
    "tune_function": "foretune.tune.functions.function",
    "tune_kernel": "foretune.tune.functions.kernel_tuner",
    "tune_pareto": "foretune.tune",
    "tune_problem": "foretune.tune",
    "tune_program": "foretune.tune.functions.program",
    "tune_workload": "foretune.tune",
    "write_runs": "foretune.datasets",
}
"""Public name -> module that defines it: the imports above, which only type checkers run."""

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__, _MODULE_OF)
