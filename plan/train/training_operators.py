"""Operators of training.

They are those of one rank for one micro-batch in all layers, in both passes. Counts are of the
whole model; a stage has its share. The backward pass of a projection has two products, for its
input and its weight; the latter is added to fp32 gradients. Attention's takes `BACKWARD_RATIOS`
times the forward pass.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from math import ceil
from typing import NamedTuple

from foretune.plan.cost.attention import attention_operators
from foretune.plan.cost.decoder import dense_operators
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
"""For other operators: experts have two products instead of one, norms read two tensors for one."""
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
MAX_TABLE_TOKENS = 16384
"""Maximum measured tokens of experts; more take proportionally longer."""
BALANCED_ROUTING = "balanced"
"""Name of uniform routing in measured tables."""


class MicroBatch(NamedTuple):
    """Operators of one rank for one micro-batch in all layers."""

    forward: list[Operator]
    backward: list[Operator]
    weights: list[Operator]  # gradients of weights, a part of ``backward``
    recomputed: list[Operator]  # repeated by selective recomputation
    first: list[Operator]  # the embedding, in both passes
    last: list[Operator]  # the output projection and the loss, in both passes


def micro_batch_operators(
    model: ModelDescription, recipe: Recipe, task: TrainingTask
) -> MicroBatch:
    """Return the operators of one rank for one micro-batch of ``recipe``."""
    layout = recipe.layout
    tokens = recipe.local_tokens(task)
    residual_tokens = recipe.residual_tokens(task)
    attention = list(_attention(model, recipe, task))
    norms = [
        rowwise(
            kernel,
            name,
            phase="prefill",
            count=count,
            rows=residual_tokens,
            columns=model.hidden,
            tp=layout.tp,
        )
        for kernel, name, count in (
            ("norm", "norm", 2 * model.layers + 1),
            ("elementwise", "add", 2 * model.layers),
        )
    ]
    kind = table_name(task.formats.weights)
    dense = dense_operators(model, layout.tp, kind, tokens, "prefill", fused=False)
    forward = [*attention, *norms, *dense, *_experts(model, recipe, task, tokens)]
    if task.precision == "fp8":
        forward += _casts(forward, layout.tp)
    recomputed_names = SELECTIVE_RECOMPUTE[task.attention]
    tp = layout.tp
    width = ceil(model.vocab / layout.tp)
    table = rowwise(
        "elementwise",
        "embedding",
        phase="prefill",
        count=1,
        rows=residual_tokens,
        columns=model.hidden,
        tp=tp,
    )
    head = gemm("head", phase="prefill", count=1, m=tokens, n=width, k=model.hidden, kind="bf16")
    loss = rowwise(
        "elementwise", "loss", phase="prefill", count=LOSS_PASSES, rows=tokens, columns=width, tp=tp
    )
    return MicroBatch(
        forward=forward,
        backward=list(_backward(forward)),
        weights=list(_weight_gradients(forward)),
        recomputed=[op for op in forward if op.name in recomputed_names],
        first=[table, *_backward([table])],
        last=[head, *_backward([head]), loss],
    )


def _attention(model: ModelDescription, recipe: Recipe, task: TrainingTask) -> Iterator[Operator]:
    """Yield attention and its projections.

    With context parallelism, a rank projects its piece, and computes its share of all scores.
    """
    layout = Layout(recipe.layout.tp)
    cp = recipe.layout.cp
    piece = Part(recipe.micro_batch, task.sequence // cp, 0, "prefill")
    for op in attention_operators(model, layout, task.formats, [piece], "prefill"):
        if op.kernel not in ATTENTION_KERNELS:
            yield op

    for part, share in _document_parts(recipe, task):
        for op in attention_operators(model, layout, task.formats, [part], "prefill"):
            if op.kernel not in ATTENTION_KERNELS:
                continue
            if op.kernel == "attention_prefill" and task.attention == "unfused":
                yield from _unfused(op, recipe.layout.tp)
            else:
                yield replace(op, count=share * op.count / cp)


def _document_parts(recipe: Recipe, task: TrainingTask) -> Iterator[tuple[Part, float]]:
    """Yield micro-batches of documents of one length each, and the share of tokens in such.

    One launch computes the documents of all lengths, so that none of them is alone on the GPU:
    each kind takes its share of the time of a micro-batch that is full of it.
    """
    documents = task.documents
    if documents is None:
        yield Part(recipe.micro_batch, task.sequence, 0, "prefill"), 1.0
        return
    tokens = recipe.micro_batch * task.sequence
    for length, share in zip(documents.lengths, documents.token_shares, strict=True):
        batch = max(round(tokens / length), 1)
        yield Part(batch, length, 0, "prefill"), share * tokens / (batch * length)


def _unfused(op: Operator, tp: int) -> Iterator[Operator]:
    """Yield attention as two batched products, with all scores between them."""
    sizes = {name: float(value) for name, value in op.problem.items()}
    rows = sizes["batch"] * sizes["heads"] * sizes["seq_len"]
    keys = sizes["seq_len"]
    dim = sizes["head_dim"]
    yield gemm("scores", phase="prefill", count=op.count, m=rows, n=keys, k=dim, kind="bf16")
    yield rowwise(
        "elementwise",
        "softmax",
        phase="prefill",
        count=SCORE_PASSES * op.count,
        rows=rows,
        columns=keys,
        tp=tp,
    )
    yield gemm("weighted", phase="prefill", count=op.count, m=rows, n=dim, k=keys, kind="bf16")


def _experts(
    model: ModelDescription, recipe: Recipe, task: TrainingTask, tokens: float
) -> Iterator[Operator]:
    """Yield router and experts; tables count the tokens of all ranks that share the experts."""
    if not model.is_moe:
        return
    layout = recipe.layout
    rank_tokens = tokens / recipe.layout.tp
    yield gemm(
        "router",
        phase="prefill",
        count=model.moe_layers,
        m=rank_tokens,
        n=model.experts,
        k=model.hidden,
        kind="bf16",
    )
    groups = _expert_groups(model, layout.ep, rank_tokens)
    ep = layout.ep // groups
    tokens = rank_tokens * layout.ep / groups
    repeats = max(tokens / MAX_TABLE_TOKENS, 1.0)
    problem = Problem(
        tokens=tokens / repeats,
        hidden=model.hidden,
        intermediate=model.moe_intermediate,
        top_k=model.experts_per_token,
        experts=model.experts // groups,
        distribution=BALANCED_ROUTING,
    )
    config = Configuration(format=table_name(task.formats.moe), tp=1, ep=ep)
    yield Operator(
        "moe",
        problem=problem,
        count=repeats * model.moe_layers,
        phase="prefill",
        config=config,
        name="experts",
    )


def _expert_groups(model: ModelDescription, ep: int, rank_tokens: float) -> int:
    """Return the number of groups of ranks for looking up a layer, each with other experts."""
    # With uniform routing, a rank's work is equal; whole batches have more tokens than any table.
    groups = 1
    while (
        rank_tokens * ep / groups > MAX_TABLE_TOKENS
        and ep % (2 * groups) == 0
        and model.experts % (2 * groups) == 0
        and model.experts // (2 * groups) >= 2 * model.experts_per_token
    ):
        groups *= 2
    return groups


def _casts(forward: Iterable[Operator], tp: int) -> list[Operator]:
    """Return the casts of fp8 products' inputs; weights are cast once per step."""
    return [
        rowwise(
            "elementwise",
            "cast",
            phase="prefill",
            count=op.count,
            rows=op.problem["M"],
            columns=op.problem["K"],
            tp=tp,
        )
        for op in forward
        if op.kernel == "gemm" and op.config["format"] == "fp8"
    ]


@lru_cache(2**14)
def _gemm_backward(op: Operator) -> tuple[Operator, ...]:
    """Return the products for the gradients of input and weight, and the latter's accumulation."""
    m = op.problem["M"]
    n = op.problem["N"]
    k = op.problem["K"]
    weight_format = str(op.config["format"])
    inputs = gemm(
        f"{op.name}_input", phase=op.phase, count=op.count, m=m, n=k, k=n, kind=weight_format
    )
    weights = gemm(
        f"{op.name}_weight", phase=op.phase, count=op.count, m=n, n=k, k=m, kind=weight_format
    )
    passes = ACCUMULATE_PASSES * op.count
    added = rowwise(
        "elementwise", "accumulate", phase=op.phase, count=passes, rows=n, columns=k, tp=1
    )
    if op.name in SELECTIVE_RECOMPUTE["unfused"]:  # both factors are activations
        return inputs, weights
    return inputs, weights, added


def _weight_gradients(forward: Iterable[Operator]) -> Iterator[Operator]:
    for op in forward:
        if op.kernel == "gemm" and op.name not in SELECTIVE_RECOMPUTE["unfused"]:
            yield from _gemm_backward(op)[1:]
        elif op.kernel == "moe":  # as many products for weights as for inputs
            yield op


def _backward(forward: Iterable[Operator]) -> Iterator[Operator]:
    for op in forward:
        if op.kernel == "gemm":
            yield from _gemm_backward(op)
        else:
            ratio = BACKWARD_RATIOS.get(op.kernel, DEFAULT_BACKWARD_RATIO)
            yield replace(op, count=ratio * op.count)
