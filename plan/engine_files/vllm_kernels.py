"""vLLM's own Triton kernels, with the parameters of its tuned files.

They are called as in vLLM, and the reference is the result of vLLM's default. Names and arguments
follow vLLM 0.33 (``fused_moe/fused_moe.py``, ``quantization/utils/fp8_utils.py``).
"""

import hashlib
import importlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from foretune.collect.kernels.triton_kernel import (
    CACHE,
    TensorKernel,
    check_support,
    normal,
    seeded,
    shared_memory_limit,
    torch_device,
    torch_dtype,
)
from foretune.errors import MeasurementError
from foretune.family import Cost
from foretune.kernel import Inputs, Launch, latin_hypercube_problems
from foretune.lazy import require
from foretune.problem import Problem, ProblemParameter
from foretune.space import Configuration, SearchSpace
from foretune.values import Value

BLOCK = 128
"""Rows and columns of weights that share a scale in block quantization."""
FP8_BLOCK = "fp8_block"
FORMATS = ("bf16", "fp8", FP8_BLOCK)
KNOBS: dict[str, tuple[Value, ...]] = {
    "BLOCK_SIZE_M": (16, 32, 64, 128, 256), "BLOCK_SIZE_N": (32, 64, 128, 256),
    "BLOCK_SIZE_K": (64, 128, 256), "GROUP_SIZE_M": (1, 16, 32, 64), "num_warps": (4, 8),
    "num_stages": (2, 3, 4, 5),
}  # fmt: skip
"""Search space of vLLM's own tuner."""
LINEAR_DEFAULT = {
    "BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": BLOCK, "BLOCK_SIZE_K": BLOCK, "GROUP_SIZE_M": 32,
    "num_warps": 4, "num_stages": 2,
}  # fmt: skip
"""Default of ``w8a8_triton_block_scaled_mm`` without a file."""
TOLERANCE = {"bf16": 2e-2, "fp8": 4e-2, FP8_BLOCK: 2e-2}
"""Tolerance for a different summation order, with rounding between the two products.

With one 8-bit scale per matrix, a different maximum changes the rounding of all values.
"""
_LAYERS = "vllm.model_executor.layers."
M = ProblemParameter("M", meaning="tokens of a batch")
TOKENS = (1, 4, 16, 64, 256, 1024, 4096)


class VllmLayer(TensorKernel):
    """A layer as vLLM computes it; subclasses define the call and its inputs."""

    accepts_scalars = True

    @cached_property
    def source_hash(self) -> str:
        """Hash of this code and the version of vLLM, whose code it calls.

        Raises MeasurementError if vLLM is not installed.
        """
        try:
            code = f"{super().source_hash} vllm {version('vllm')}"
        except PackageNotFoundError as e:
            raise _vllm_missing(e) from e
        return hashlib.sha256(code.encode()).hexdigest()[:16]

    @abstractmethod
    def call(self, problem: Problem, inputs: Inputs) -> Callable[[], Any]:
        """Return the call into vLLM."""

    @abstractmethod
    def use_config(
        self, problem: Problem, config: Configuration | None
    ) -> AbstractContextManager[None]:  # fmt: skip
        """Return a context in which vLLM uses a configuration; None is its default."""

    def build(self, problem: Problem, config: Configuration, inputs: Inputs) -> Launch:
        """Return the call under a configuration, after one run to compile and check it.

        On a GPU it replays a CUDA graph, as engines do: Python between the launches of one layer
        would take longer than the kernels.
        """
        torch = require("torch", "gpu", "a layer of vLLM")
        call = self.call(problem, inputs)

        def launch() -> Any:
            with self.use_config(problem, config):
                return call()

        launch()
        if not torch.cuda.is_available():
            return launch
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = launch()

        def replay() -> Any:
            graph.replay()
            return output

        return replay

    def reference(self, inputs: Inputs) -> Any:
        """Return the layer's result under vLLM's default."""
        problem = Problem(inputs["problem"])
        call = self.call(problem, inputs)
        with self.use_config(problem, None):
            return call().clone()

    def error_limit(self, problem: Problem, config: Configuration) -> float:
        """Return the tolerance for another summation order; the quantization is the same."""
        return TOLERANCE[self.format_of(problem)]

    def space(self, problem: Problem) -> SearchSpace:
        """Return the space of vLLM's tuner and the default, limited by shared memory."""
        default = self.default(problem)
        knobs = {k: tuple(sorted({*values, default[k]})) for k, values in KNOBS.items()}
        size = 2 if self.format_of(problem) == "bf16" else 1
        tiles = f"(BLOCK_SIZE_M + BLOCK_SIZE_N) * BLOCK_SIZE_K * {size}"
        rules = [f"{tiles} * (num_stages - 1) <= {shared_memory_limit()}"]
        if self.format_of(problem) == FP8_BLOCK:  # a step must stay in one block with one scale
            rules.append(f"BLOCK_SIZE_K <= {BLOCK}")
        return SearchSpace(knobs, rules)

    def format_of(self, problem: Problem) -> str:
        """Return the format of the weights, one of `FORMATS`."""
        return str(problem.get("dtype", FP8_BLOCK))


class VllmExperts(VllmLayer):
    """Routed experts of one rank: ``fused_experts``, with both products.

    Every token goes to ``top_k`` experts of this rank, drawn uniformly.
    """

    name = "vllm_experts"
    problem_parameters = (
        M,
        ProblemParameter("E", maximum=4096, meaning="experts on this rank"),
        ProblemParameter("top_k", maximum=4096, meaning="experts of a token"),
        ProblemParameter("N", meaning="intermediate size of an expert on this rank"),
        ProblemParameter("K", meaning="width of the tokens"),
        ProblemParameter("dtype", "bf16", choices=FORMATS, meaning="format of the weights"),
        CACHE,
    )

    def default(self, problem: Problem) -> Configuration:
        """Return vLLM's configuration without a file.

        Raises MeasurementError if vLLM is not installed or ignores files.
        """
        quantized, block = problem["dtype"] != "bf16", problem["dtype"] == FP8_BLOCK
        sizes = (int(problem[name]) for name in ("M", "E", "N", "K", "top_k"))
        found = _vllm("fused_moe.fused_moe").get_default_config(
            *sizes, "fp8_w8a8" if quantized else None, [BLOCK, BLOCK] if block else None
        )
        if missing := KNOBS.keys() - found.keys():
            raise MeasurementError(
                f"vLLM's default has no {min(missing)}, so it ignores tuned files: unset "
                "VLLM_BATCH_INVARIANT"
            )
        return Configuration({knob: found[knob] for knob in KNOBS})

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return tokens, weights with scales, and the routing."""
        torch = require("torch", "gpu", "a layer of vLLM")
        tokens, experts, top_k, n, k = (int(problem[p]) for p in ("M", "E", "top_k", "N", "K"))
        kind = str(problem["dtype"])
        hidden = normal((tokens, k), "bf16", self, 4 * seed)
        up = _quantized(normal((experts, 2 * n, k), "bf16", self, 4 * seed + 1), kind)
        down = _quantized(normal((experts, k, n), "bf16", self, 4 * seed + 2), kind)
        device = torch_device(self)
        random = torch.rand(
            (tokens, experts), generator=seeded(device, 4 * seed + 3), device=device
        )
        weights, ids = random.topk(top_k)
        return {
            "problem": dict(problem), "hidden": hidden, "up": up, "down": down,
            "weights": weights / weights.sum(1, keepdim=True), "ids": ids.to(torch.int32),
        }  # fmt: skip

    def call(self, problem: Problem, inputs: Inputs) -> Callable[[], Any]:
        """Return a call of ``fused_experts``."""
        module = _vllm("fused_moe")
        (w1, w1_scale), (w2, w2_scale) = inputs["up"], inputs["down"]
        quantization = None
        if w1_scale is not None:
            quantization = _vllm("fused_moe.config").fp8_w8a8_moe_quant_config(
                w1_scale=w1_scale, w2_scale=w2_scale,
                block_shape=[BLOCK, BLOCK] if problem["dtype"] == FP8_BLOCK else None,
            )  # fmt: skip
        return lambda: module.fused_experts(
            inputs["hidden"], w1, w2, inputs["weights"], inputs["ids"], quant_config=quantization
        )

    def use_config(
        self, problem: Problem, config: Configuration | None
    ) -> AbstractContextManager[None]:  # fmt: skip
        """Return vLLM's ``override_config``."""
        chosen = self.default(problem) if config is None else config
        return _vllm("fused_moe").override_config(dict(chosen))

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 6·N·K FLOPs per token and expert; weights of used experts move once."""
        tokens, experts, top_k, n, k = (1.0 * problem[p] for p in ("M", "E", "top_k", "N", "K"))
        pairs = tokens * top_k
        wanted = experts * (1.0 - (1.0 - top_k / experts) ** tokens)
        size = np.where(np.equal(problem["dtype"], "bf16"), 2.0, 1.0)
        return Cost(
            flops=6.0 * pairs * n * k,
            bytes_moved=3.0 * size * wanted * n * k + 2.0 * (2.0 * tokens * k + 4.0 * pairs * n),
            dtype=_product_dtype(problem["dtype"]),
        )

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return mixture-of-experts layers, from one token to a long prompt."""
        layers = [(8, 2, 1792, 4096), (64, 6, 352, 2048), (128, 8, 192, 2048), (256, 8, 256, 7168)]
        rng = np.random.default_rng(seed)
        every = [(m, *layer, f) for m in TOKENS for layer in layers for f in FORMATS]
        return [
            self.problem(M=m, E=e, top_k=t, N=n_, K=k, dtype=f)
            for m, e, t, n_, k, f in (every[i] for i in rng.permutation(len(every))[:n])
        ]


class VllmLinear(VllmLayer):
    """A block-quantized linear layer: ``w8a8_triton_block_scaled_mm``."""

    name = "vllm_linear"
    problem_parameters = (
        M,
        ProblemParameter("N", meaning="columns of this rank's weights"),
        ProblemParameter("K", meaning="rows of this rank's weights"),
        CACHE,
    )

    def default(self, problem: Problem) -> Configuration:
        """Return vLLM's configuration without a file."""
        return Configuration(LINEAR_DEFAULT)

    def make_inputs(self, problem: Problem, seed: int = 0) -> Inputs:
        """Return tokens and weights, both with scales."""
        check_support("fp8")
        m, n, k = (int(problem[p]) for p in ("M", "N", "K"))
        tokens = _quantized_rows(normal((m, k), "bf16", self, 2 * seed))
        weights = _quantized(normal((n, k), "bf16", self, 2 * seed + 1), FP8_BLOCK)
        return {"problem": dict(problem), "tokens": tokens, "weights": weights}

    def call(self, problem: Problem, inputs: Inputs) -> Callable[[], Any]:
        """Return a call of the product."""
        torch = require("torch", "gpu", "a layer of vLLM")
        module = _vllm("quantization.utils.fp8_utils")
        (a, a_scale), (b, b_scale) = inputs["tokens"], inputs["weights"]
        return lambda: module.w8a8_triton_block_scaled_mm(
            a, b, a_scale, b_scale, [BLOCK, BLOCK], torch.bfloat16
        )

    def use_config(
        self, problem: Problem, config: Configuration | None
    ) -> AbstractContextManager[None]:  # fmt: skip
        """Return a context in which vLLM reads this configuration as its file."""
        file = None if config is None else {int(problem["M"]): dict(config)}
        return _patched_configs(_vllm("quantization.utils.fp8_utils"), file)

    def cost(self, problem: Mapping[str, Any], config: Mapping[str, Any]) -> Cost:
        """Return 2·M·N·K FLOPs; all matrices move once."""
        m, n, k = (1.0 * problem[p] for p in ("M", "N", "K"))
        return Cost(flops=2.0 * m * n * k, bytes_moved=m * k + n * k + 2.0 * m * n, dtype="fp8")

    def training_problems(self, n: int, seed: int = 0) -> list[Problem]:
        """Return projections of models, from one token to a long prompt."""
        choices = {"M": TOKENS, "N": (512, 1536, 2112, 4096, 7168), "K": (256, 2048, 4096, 7168)}
        return latin_hypercube_problems(self, choices, n, seed)


@contextmanager
def _patched_configs(module: Any, file: dict[int, Any] | None) -> Iterator[None]:
    original = module.get_w8a8_block_fp8_configs
    module.get_w8a8_block_fp8_configs = lambda *sizes: file
    try:
        yield
    finally:
        module.get_w8a8_block_fp8_configs = original


def _quantized(weights: Any, kind: str) -> tuple[Any, Any]:
    """Return weights in a format, with vLLM's scales; None as scale in 16 bits.

    ``weights`` has shape (…, rows, columns); ``kind`` is one of `FORMATS`: one scale per expert or
    per block.
    """
    if kind == "bf16":
        return weights, None
    check_support("fp8")
    if kind == "fp8":
        scale = weights.abs().amax((-2, -1)).float() / _largest()
        return _to_fp8(weights, scale[..., None, None]), scale
    torch = require("torch", "gpu", "a layer of vLLM")
    *front, rows, columns = weights.shape
    padded = torch.nn.functional.pad(weights, (0, -columns % BLOCK, 0, -rows % BLOCK))
    tall, wide = padded.shape[-2] // BLOCK, padded.shape[-1] // BLOCK
    largest = padded.reshape(*front, tall, BLOCK, wide, BLOCK).abs().amax((-3, -1))
    scale = (largest.float() / _largest()).clamp(min=1e-12)
    each = scale.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)
    return _to_fp8(weights, each[..., :rows, :columns]), scale


def _quantized_rows(tokens: Any) -> tuple[Any, Any]:
    """Return 8-bit tokens with a scale per 128 columns."""
    torch = require("torch", "gpu", "a layer of vLLM")
    rows, columns = tokens.shape
    padded = torch.nn.functional.pad(tokens, (0, -columns % BLOCK))
    largest = padded.reshape(rows, -1, BLOCK).abs().amax(-1)
    scale = (largest.float() / _largest()).clamp(min=1e-12)
    return _to_fp8(tokens, scale.repeat_interleave(BLOCK, -1)[:, :columns]), scale


def _to_fp8(numbers: Any, scale: Any) -> Any:
    return (numbers.float() / scale).clamp(-_largest(), _largest()).to(torch_dtype("fp8"))


def _largest() -> float:
    """Return the largest 8-bit number."""
    torch = require("torch", "gpu", "a layer of vLLM")
    return float(torch.finfo(torch_dtype("fp8")).max)


def _product_dtype(dtypes: Any) -> Any:
    """Return the formats of the products."""
    if isinstance(dtypes, str):
        return "bf16" if dtypes == "bf16" else "fp8"
    return np.where(np.equal(dtypes, "bf16"), "bf16", "fp8")


def _vllm(module: str) -> Any:
    # vLLM logs to stdout, which is reserved for results.
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    try:
        return importlib.import_module(_LAYERS + module)
    except ImportError as e:
        raise _vllm_missing(e) from e


def _vllm_missing(why: Exception) -> MeasurementError:
    return MeasurementError(f"cannot measure vLLM's kernels, because vLLM does not run here: {why}")
