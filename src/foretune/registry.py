"""Finding implementations by name: kernels, meters, models, searchers; ours and other packages'.

Ours are listed here, one line each. Another package adds its own as entry points::

    [project.entry-points."foretune.kernels"]
    my_kernel = "my_package.kernels:MyKernel"
"""

import importlib
import warnings
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from foretune.errors import ForetuneError, ForetuneWarning, MissingExtra, UnknownName
from foretune.extras import EXTRA_OF
from foretune.kernel import Kernel
from foretune.place import absolute_location, is_code_location, kernel_at

TRITON_PREFIX = "triton_"
"""How names of kernels in Triton begin: a list of kernels need not import Triton to know them."""

_BUILTIN: dict[str, dict[str, str]] = {
    "kernels": {
        "matmul": "foretune.collect.kernels.matmul:Matmul",
        "quantized_matvec": "foretune.collect.kernels.quantized_matvec:QuantizedMatvec",
        "softmax": "foretune.collect.kernels.softmax:Softmax",
        "conv2d": "foretune.collect.kernels.conv2d:Conv2d",
        "triton_gemm": "foretune.collect.kernels.triton_gemm:TritonGemm",
        "triton_attention_tma": (
            "foretune.collect.kernels.triton_attention_tma:TritonAttentionTma"
        ),
        "triton_gemm_tma": "foretune.collect.kernels.triton_gemm_tma:TritonGemmTma",
        "triton_quantized_gemm": (
            "foretune.collect.kernels.triton_quantized_gemm:TritonQuantizedGemm"
        ),
        "triton_grouped_gemm": "foretune.collect.kernels.triton_grouped_gemm:TritonGroupedGemm",
        "triton_attention": "foretune.collect.kernels.triton_attention:TritonAttention",
        "triton_norm": "foretune.collect.kernels.triton_norm:TritonNorm",
        "triton_softmax": "foretune.collect.kernels.triton_softmax:TritonSoftmax",
    },
    "families": {
        "gemm": "foretune.features.families.gemm:Gemm",
        "batched_gemm": "foretune.features.families.gemm:BatchedGemm",
        "grouped_gemm": "foretune.features.families.gemm:GroupedGemm",
        "attention_prefill": "foretune.features.families.attention:AttentionPrefill",
        "attention_encoder": "foretune.features.families.attention:AttentionEncoder",
        "attention_decode": "foretune.features.families.attention:AttentionDecode",
        "moe": "foretune.features.families.moe:Moe",
        "norm": "foretune.features.families.rowwise:Norm",
        "softmax": "foretune.features.families.rowwise:Softmax",
        "elementwise": "foretune.features.families.rowwise:Elementwise",
        "quantize": "foretune.features.families.rowwise:Quantize",
        "inductor_mm": "foretune.features.families.inductor:InductorMm",
        "inductor_mixed_mm": "foretune.features.families.inductor:InductorMixedMm",
        "inductor_flex_attention": ("foretune.features.families.inductor:InductorFlexAttention"),
        "convolution": "foretune.features.families.convolution:Convolution",
        "all_reduce": "foretune.features.families.collectives:AllReduce",
        "all_gather": "foretune.features.families.collectives:AllGather",
        "all_to_all": "foretune.features.families.collectives:AllToAll",
        "reduce_scatter": "foretune.features.families.collectives:ReduceScatter",
        "send_recv": "foretune.features.families.collectives:SendReceive",
    },
    "meters": {
        "nvml": "foretune.collect.meters:NvmlMeter",
        "rapl": "foretune.collect.meters:RaplMeter",
    },
    "models": {
        "xgboost": "foretune.models.trees.boosting:BoostingModel",
        "random_forest": "foretune.models.trees.forest:ForestModel",
        "ensemble": "foretune.models.trees.ensemble:EnsembleModel",
    },
    "searchers": {
        "random": "foretune.search.random:RandomSearcher",
        "exhaustive": "foretune.search.exhaustive:ExhaustiveSearcher",
        "tpe": "foretune.search.optuna.searchers:TPESearcher",
        "gp": "foretune.search.optuna.searchers:GPSearcher",
        "cmaes": "foretune.search.optuna.searchers:CMAESSearcher",
        "smac": "foretune.search.peers.smac:SMACSearcher",
        "surrogate": "foretune.search.surrogate:SurrogateSearcher",
        "transfer": "foretune.search.transfer:TransferSearcher",
        "policy": "foretune.search.policies.policy_search:PolicySearcher",
        "kt_genetic_algorithm": "foretune.search.peers.kernel_tuner:GeneticAlgorithm",
        "kt_diff_evo": "foretune.search.peers.kernel_tuner:DifferentialEvolution",
        "kt_pso": "foretune.search.peers.kernel_tuner:ParticleSwarm",
        "kt_simulated_annealing": "foretune.search.peers.kernel_tuner:SimulatedAnnealing",
        "kt_dual_annealing": "foretune.search.peers.kernel_tuner:DualAnnealing",
        "kt_adaptive_tabu_greywolf": "foretune.search.peers.kernel_tuner:AdaptiveTabuGreyWolf",
        "kt_hybrid_vndx": "foretune.search.peers.kernel_tuner:HybridVNDX",
        "kt_bayes_opt": "foretune.search.peers.kernel_tuner:BayesOpt",
    },
}

_SINGULAR = {
    "kernels": "kernel",
    "families": "family",
    "meters": "meter",
    "models": "model",
    "searchers": "searcher",
}
"""What messages call one implementation of a group."""


@cache
def registered(group: str) -> dict[str, str]:
    """Return the implementations of a group (``kernels``, …): name -> ``module:class``.

    Warns (`ForetuneWarning`) where another package uses a name that is taken.
    """
    found = dict(_BUILTIN[group])
    for point in entry_points(group=f"foretune.{group}"):
        existing = found.setdefault(point.name, point.value)
        if existing != point.value:
            warnings.warn(
                f"{_SINGULAR[group]} {point.name!r} is {existing}: {point.value} is ignored until its "
                "package registers it under another name",
                ForetuneWarning,
                stacklevel=2,
            )
    return found


def load(group: str, name: str) -> Any:
    """Return the class registered as ``name``.

    Raises:
        UnknownName: there is none; the message lists those there are.
        MissingExtra: it needs a package that is not installed.
        ForetuneError: another package registered it, and it cannot be imported.
    """
    if name not in registered(group):
        raise UnknownName(_SINGULAR[group], name, registered(group))
    what = f"{_SINGULAR[group]} {name!r}"
    module, _, attribute = registered(group)[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as e:
        if isinstance(e, ForetuneError):
            raise
        missing = (getattr(e, "name", None) or "").partition(".")[0]
        if missing in EXTRA_OF and isinstance(e, ModuleNotFoundError):
            raise MissingExtra(missing, EXTRA_OF[missing], what) from e
        raise ForetuneError(f"{what} cannot be imported: {e}") from e


def get_kernel(name: str) -> Kernel:
    """Return a new instance of the kernel registered as ``name``, or of that at a place.

    Args:
        name: as registered; or ``FILE.py:NAME`` or ``MODULE:NAME``, which this process knows by
            the kernel's own name, too, from then on.

    Raises:
        UnknownName: there is none.
        UsageError: there is no such place, or no kernel at it.
    """
    if is_code_location(name):
        kernel = kernel_at(name)
        kernel.location = absolute_location(name)
        kind = type(kernel)
        if not hasattr(kernel, "knobs"):  # of a class, which can be made again
            registered("kernels").setdefault(kernel.name, f"{kind.__module__}:{kind.__qualname__}")
        return kernel
    try:
        kernel = load("kernels", name)()
    except UnknownName as e:
        raise UnknownName("kernel", name, registered("kernels"), "or your own, FILE.py:NAME") from e
    return kernel
