"""Operators of a step: all kernels that one rank runs."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import ceil

from foretune.plan.cost.attention import attention_operators
from foretune.plan.cost.operator import (
    BF16_BYTES,
    CACHE_SIZE,
    Operator,
    Part,
    Phase,
    collective,
    gemm,
    rowwise,
)
from foretune.plan.describe.description import ModelDescription
from foretune.plan.describe.formats import Formats, table_name
from foretune.plan.describe.layout import Layout
from foretune.problem import Problem
from foretune.space import Configuration

ROUTING = "power_law_1.2"
"""How measured tables distribute tokens over experts to imitate real routers."""
EXPERT_KINDS = {2: "plain", 3: "gated"}
"""Matrices of an expert -> its name in tables."""


def mixed_operators(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part]
) -> list[Operator]:
    """Return what one rank runs in a step with prefill and decode parts.

    Projections process the tokens of all parts together; attention runs per part.
    """
    parts = [part for part in parts if part.tokens > 0]
    if not parts:
        return []
    phase = phase_of(parts)
    tokens = sum(part.tokens for part in parts)
    # Only the last token of a prompt gets logits.
    rows = sum(p.batch if p.phase == "prefill" else p.tokens for p in parts)
    hidden, tp = model.hidden, layout.tp
    operators = [rowwise("elementwise", "embedding", phase, 1, tokens, hidden, tp)]
    operators.append(rowwise("norm", "rms_norm", phase, model.norms, tokens, hidden, tp))
    operators.extend(attention_operators(model, layout, formats, parts, phase))
    operators.extend(_dense(model, layout, formats, tokens, phase))
    operators.extend(_experts(model, layout, formats, tokens, phase))
    operators.append(gemm("head", phase, 1, rows, ceil(model.vocab / tp), hidden, "bf16"))
    operators.extend(_communication(model, layout, formats, tokens, rows, phase))
    return operators


def phase_of(parts: Sequence[Part]) -> Phase:
    """Return the phase of a step with at least one part."""
    return parts[0].phase if len({part.phase for part in parts}) == 1 else "mixed"


def _dense(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: int, phase: Phase
) -> Iterator[Operator]:
    """Yield the dense MLPs and the shared experts."""
    kind = table_name(formats.weights)
    for name, layers, width, matrices in (
        *(("mlp", layers, width, model.mlp_matrices) for width, layers in model.dense_widths),
        ("shared", model.moe_layers, model.shared_width, model.expert_matrices),
    ):
        if not layers or not width:
            continue
        inner = ceil(width / layout.tp)
        yield gemm(f"{name}_up", phase, layers, tokens, (matrices - 1) * inner, model.hidden, kind)
        yield rowwise("elementwise", "silu_and_mul", phase, layers, tokens, inner, layout.tp)
        yield gemm(f"{name}_down", phase, layers, tokens, model.hidden, inner, kind)


def _experts(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: int, phase: Phase
) -> Iterator[Operator]:
    if not model.is_moe:
        return
    layers = model.moe_layers
    yield gemm("router", phase, layers, tokens, model.experts, model.hidden, "bf16")
    if inner := model.expert_hidden:
        kind = table_name(formats.weights)
        yield gemm("experts_in", phase, layers, tokens, inner, model.hidden, kind)
        yield gemm("experts_out", phase, layers, tokens, model.hidden, inner, kind)
    yield _moe(
        model.expert_hidden or model.hidden, model.moe_intermediate, model.experts_per_token,
        model.experts, tokens * layout.dp, layout.moe_tp, layout.moe_ep,
        table_name(formats.moe), layers, phase, model.expert_matrices,
    )  # fmt: skip


@lru_cache(CACHE_SIZE)
def _moe(
    hidden: int, intermediate: int, top_k: int, experts: int,
    tokens: int, tp: int, ep: int, kind: str, count: int, phase: Phase,
    matrices: int,
) -> Operator:  # fmt: skip
    """Return the routed experts; tables count the tokens of all ranks and the whole expert."""
    problem = Problem(
        tokens=tokens,
        hidden=hidden,
        intermediate=intermediate,
        top_k=top_k,
        experts=experts,
        distribution=ROUTING,
    )
    config = Configuration(format=kind, tp=tp, ep=ep, experts=EXPERT_KINDS[matrices])
    return Operator("moe", problem, count, phase, config, "experts")


def _communication(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: int, rows: int, phase: Phase
) -> Iterator[Operator]:
    """Yield the exchanges: after attention, around MLPs and experts, at both ends, between stages.

    A rank's share of attention or of an MLP is completed by an all-reduce. With attention-DP, ranks
    gather all tokens and scatter the sums. If a token has fewer experts than there are ranks, it is
    sent to its experts only, in the format they multiply.
    """
    message, tp = float(tokens * model.hidden), layout.tp
    sums = model.attention_layers + model.mlp_layers
    gathered = layout.dp > 1 and model.is_moe
    if not gathered:
        sums += model.moe_layers
    if tp > 1:
        yield collective("all_reduce", "sum", phase, sums, message, tp)
        yield collective("all_reduce", "embedding_sum", phase, 1, message, tp)
        yield collective("all_gather", "logits", phase, 1, float(rows * model.vocab), tp)
    if gathered:
        ranks, layers = layout.tp * layout.dp, model.moe_layers
        message = float(tokens * (model.expert_hidden or model.hidden))
        dispatch_scale = formats.dispatch_bytes / BF16_BYTES
        copies = min(model.experts_per_token, layout.moe_ep)
        if layout.moe_tp == 1 and copies < ranks:
            sent = message * copies / tp
            yield collective("all_to_all", "dispatch", phase, layers, dispatch_scale * sent, ranks)
            yield collective("all_to_all", "combine", phase, layers, sent, ranks)
        else:
            all_elements = message * layout.dp
            yield collective(
                "all_gather", "dispatch", phase, layers, dispatch_scale * all_elements, ranks
            )
            yield collective("reduce_scatter", "combine", phase, layers, all_elements, ranks)
    if layout.pp > 1:
        yield collective("send_recv", "stage", phase, layout.pp - 1, message, 2)
