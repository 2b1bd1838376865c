"""Operators of training: a micro-batch through all layers on one rank, both passes.

Counts are of the whole model; a stage has its share. The backward pass of a projection has two
products, for its input and its weight; the latter is added to fp32 gradients. Attention's takes
`BACKWARD_RATIOS` times the forward pass.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil

from foretune.plan.cost.attention import attention_operators
from foretune.plan.cost.operator import Operator, Part, gemm, rowwise
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import table_name
from foretune.plan.describe.layout import Layout
from foretune.plan.train.recipe import Recipe, TrainingTask
from foretune.problem import Problem
from foretune.space import Configuration

ATTENTION_KERNELS = ("attention_prefill", "mla_prefill", "gdn")
BACKWARD_RATIOS = {"attention_prefill": 2.5, "mla_prefill": 2.5}
"""Backward over forward time: five products instead of two, as in FlashAttention's benchmark
(github.com/Dao-AILab/flash-attention, benchmarks)."""
DEFAULT_BACKWARD_RATIO = 2.0
"""For other operators: experts have two products for one, norms read two tensors for one."""
ACCUMULATE_PASSES = 1.5
"""Additional passes over a weight to add its gradient in fp32."""
SCORE_PASSES = 2.25
"""Passes (2 bytes read, 2 written) over unfused attention's scores: a masked softmax, and dropout
with a one-byte mask."""
SELECTIVE_RECOMPUTE = {
    "unfused": ("scores", "softmax", "weighted"),
    "flash": ("norm", "activation"),
}
"""Kind of attention -> operators that selective recomputation repeats."""
LOSS_PASSES = 4.0
"""Passes over the logits: to fp32, maximum, sum of exponentials, gradient."""
BALANCED_ROUTING = "balanced"
"""Name of uniform routing in measured tables."""


@dataclass(frozen=True)
class MicroBatch:
    """Operators of one rank for one micro-batch in all layers.

    ``recomputed`` is repeated by selective recomputation; ``first`` is the embedding, ``last`` the
    output projection and the loss, each in both passes.
    """

    forward: list[Operator]
    backward: list[Operator]
    recomputed: list[Operator]
    first: list[Operator]
    last: list[Operator]


def micro_batch_operators(
    model: ModelDescription, recipe: Recipe, task: TrainingTask
) -> MicroBatch:
    """Return the operators of one rank for one micro-batch of ``recipe``."""
    layout = recipe.layout
    tokens = recipe.local_tokens(task)
    residual_tokens = tokens / layout.tp if recipe.sequence_parallel else tokens
    attention = list(_attention(model, recipe, task))
    norms = list(_norms(model, residual_tokens, layout.tp))
    products = [*_mlps(model, task, tokens, layout.tp), *_experts(model, recipe, task, tokens)]
    forward = [*attention, *norms, *products]
    if task.precision == "fp8":
        forward += _casts(forward, layout.tp)
    recomputed_names = SELECTIVE_RECOMPUTE[task.attention]
    tp, width = layout.tp, ceil(model.vocab / layout.tp)
    table = rowwise("elementwise", "embedding", "prefill", 1, residual_tokens, model.hidden, tp)
    head = gemm("head", "prefill", 1, tokens, width, model.hidden, "bf16")
    loss = rowwise("elementwise", "loss", "prefill", LOSS_PASSES, tokens, width, tp)
    return MicroBatch(
        forward=forward,
        backward=list(_backward(forward)),
        recomputed=[op for op in forward if op.name in recomputed_names],
        first=[table, *_backward([table])],
        last=[head, *_backward([head]), loss],
    )


def _attention(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> Iterator[Operator]:
    """Yield attention and its projections.

    With context parallelism, a rank projects its piece, and computes its share of all scores.
    """
    layout, cp = Layout(recipe.layout.tp), recipe.layout.cp
    full = Part(recipe.micro_batch, task.sequence, 0, "prefill")
    piece = Part(recipe.micro_batch, task.sequence // cp, 0, "prefill")
    for part in (piece, full):
        for op in attention_operators(model, layout, task.formats, [part], "prefill"):
            if (op.kernel in ATTENTION_KERNELS) != (part is full):
                continue
            if op.kernel not in ATTENTION_KERNELS:
                yield op
            elif op.kernel == "attention_prefill" and task.attention == "unfused":
                yield from _unfused(op, recipe.layout.tp)
            else:
                yield replace(op, count=op.count / cp)


def _unfused(op: Operator, tp: int) -> Iterator[Operator]:
    """Yield attention as two batched products, with all scores between them."""
    sizes = {name: float(value) for name, value in op.problem.items()}
    rows = sizes["batch"] * sizes["heads"] * sizes["seq_len"]
    keys, dim = sizes["seq_len"], sizes["head_dim"]
    yield gemm("scores", "prefill", op.count, rows, keys, dim, "bf16")
    yield rowwise("elementwise", "softmax", "prefill", SCORE_PASSES * op.count, rows, keys, tp)
    yield gemm("weighted", "prefill", op.count, rows, dim, keys, "bf16")


def _norms(model: ModelDescription, residual_tokens: float, tp: int) -> Iterator[Operator]:
    count = 2 * model.layers + 1
    yield rowwise("norm", "norm", "prefill", count, residual_tokens, model.hidden, tp)
    yield rowwise(
        "elementwise", "add", "prefill", 2 * model.layers, residual_tokens, model.hidden, tp
    )


def _mlps(
    model: ModelDescription, task: TrainingTask, tokens: float, tp: int
) -> Iterator[Operator]:
    kind = table_name(task.formats.weights)
    for name, layers, width, matrices in (
        ("mlp", model.mlp_layers, model.intermediate, model.mlp_matrices),
        ("shared", model.moe_layers, model.shared_width, model.expert_matrices),
    ):
        if not layers or not width:
            continue
        inner = ceil(width / tp)
        up = (matrices - 1) * inner
        yield gemm(f"{name}_up", "prefill", layers, tokens, up, model.hidden, kind)
        yield rowwise("elementwise", "activation", "prefill", layers, tokens, up, tp)
        yield gemm(f"{name}_down", "prefill", layers, tokens, model.hidden, inner, kind)


def _experts(
    model: ModelDescription, recipe: Recipe, task: TrainingTask, tokens: float
) -> Iterator[Operator]:
    """Yield router and experts; tables count the tokens of all ranks that share the experts."""
    if not model.is_moe:
        return
    layout, rank_tokens = recipe.layout, tokens / recipe.layout.tp
    yield gemm(
        "router", "prefill", model.moe_layers, rank_tokens, model.experts, model.hidden, "bf16"
    )
    problem = Problem(
        tokens=rank_tokens * layout.ep,
        hidden=model.hidden,
        intermediate=model.moe_intermediate,
        top_k=model.experts_per_token,
        experts=model.experts,
        distribution=BALANCED_ROUTING,
    )
    config = Configuration(format=table_name(task.formats.moe), tp=1, ep=layout.ep)
    yield Operator("moe", problem, model.moe_layers, "prefill", config, "experts")


def _casts(forward: Iterable[Operator], tp: int) -> list[Operator]:
    """Return the casts of fp8 products' inputs; weights are cast once per step."""
    return [
        rowwise("elementwise", "cast", "prefill", op.count, op.problem["M"], op.problem["K"], tp)
        for op in forward
        if op.kernel == "gemm" and op.config["format"] == "fp8"
    ]


@lru_cache(2**14)
def _gemm_backward(op: Operator) -> tuple[Operator, ...]:
    m, n, k = op.problem["M"], op.problem["N"], op.problem["K"]
    kind = str(op.config["format"])
    inputs = gemm(f"{op.name}_input", op.phase, op.count, m, k, n, kind)
    weights = gemm(f"{op.name}_weight", op.phase, op.count, n, k, m, kind)
    added = rowwise("elementwise", "accumulate", op.phase, ACCUMULATE_PASSES * op.count, n, k, 1)
    if op.name in SELECTIVE_RECOMPUTE["unfused"]:  # both factors are activations
        return inputs, weights
    return inputs, weights, added


def _backward(forward: Iterable[Operator]) -> Iterator[Operator]:
    for op in forward:
        if op.kernel == "gemm":
            yield from _gemm_backward(op)
        else:
            ratio = BACKWARD_RATIOS.get(op.kernel, DEFAULT_BACKWARD_RATIO)
            yield replace(op, count=ratio * op.count)
