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

if not TYPE_CHECKING:  # to a type checker, any name would do
    __getattr__, __dir__ = lazy_exports(__name__)
