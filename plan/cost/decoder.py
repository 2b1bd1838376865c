"""Operators of a step: all kernels that one rank runs."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
from foretune.plan.describe.formats import ACTIVATION_BYTES, Formats, find_format, table_name
from foretune.plan.describe.layout import Layout
from foretune.problem import Problem
from foretune.space import Configuration

ROUTING = "power_law_1.2"
"""The distribution of tokens over experts with which measured tables imitate real routers."""
COUNT_DIGITS = 6
"""Digits after the point of the runs of an operator."""
EXPERT_KINDS = {2: "plain", 3: "gated"}
"""Matrices of an expert -> their name in tables."""


@dataclass(frozen=True)
class MoeShape:
    """Routed experts of a layer, and how ranks split them."""

    hidden: int  # width of their input and output
    intermediate: int  # width of one expert
    experts: int
    top_k: int  # experts per token
    matrices: int  # per expert: 3 with a gate, 2 without
    tp: int  # slices of an expert
    ep: int  # groups of experts
    weight_format: str  # as in measured tables


def mixed_operators(
    model: ModelDescription, layout: Layout, formats: Formats, parts: Sequence[Part]
) -> list[Operator]:
    """Return the operators of one rank in a step: projections of all tokens, attention per part.

    With a mixture of formats, each format has its share of the operators' runs.
    """
    shares = formats.pure_parts
    if len(shares) > 1:
        return of_mixture(shares, lambda pure: mixed_operators(model, layout, pure, parts))
    (_, formats), *_ = shares
    parts = [part for part in parts if part.tokens > 0]
    if not parts:
        return []
    phase = phase_of(parts)
    tokens = sum(part.tokens for part in parts)
    # Only the last token of a prompt gets logits.
    rows = sum(p.batch if p.phase == "prefill" else p.tokens for p in parts)
    hidden = model.hidden
    tp = layout.tp
    mlp_format = table_name(formats.mlps(model))
    return [
        rowwise(
            "elementwise", "embedding", phase=phase, count=1, rows=tokens, columns=hidden, tp=tp
        ),
        rowwise(
            "norm", "rms_norm", phase=phase, count=model.norms, rows=tokens, columns=hidden, tp=tp
        ),
        *attention_operators(model, layout, formats, parts, phase),
        *dense_operators(model, tp, mlp_format, tokens, phase),
        *_experts(model, layout, formats, tokens, phase),
        gemm(
            "head",
            phase=phase,
            count=1,
            m=rows,
            n=ceil(model.vocab / tp),
            k=hidden,
            kind=formats.tables,
        ),
        *_communication(
            model, layout=layout, formats=formats, tokens=tokens, rows=rows, phase=phase
        ),
    ]


def of_mixture(
    shares: Sequence[tuple[float, Formats]], make: Callable[[Formats], list[Operator]]
) -> list[Operator]:
    """Return the operators of layers with different formats, equal ones added up.

    ``shares`` are those of the layers; ``make`` returns the operators if all layers had one.
    """
    counts: dict[Operator, float] = {}
    for share, formats in shares:
        for operator in make(formats):
            once = replace(operator, count=1.0)
            counts[once] = counts.get(once, 0.0) + share * operator.count
    return [_counted(operator, round(count, COUNT_DIGITS)) for operator, count in counts.items()]


@lru_cache(CACHE_SIZE)
def _counted(operator: Operator, count: float) -> Operator:
    """Return an operator that runs so often."""
    return replace(operator, count=count)


def phase_of(parts: Sequence[Part]) -> Phase:
    """Return the phase of a step with at least one part."""
    return parts[0].phase if len({part.phase for part in parts}) == 1 else "mixed"


def dense_operators(
    model: ModelDescription, tp: int, kind: str, tokens: float, phase: Phase, fused: bool = True
) -> Iterator[Operator]:
    """Yield the dense MLPs and the shared experts in format ``kind``.

    With ``fused``, the activation is multiplied with its gate, as in serving.
    """
    mlps = [("mlp", layers, width, model.mlp_matrices) for width, layers in model.dense_widths]
    mlps.append(("shared", model.moe_layers, model.shared_width, model.expert_matrices))
    for name, layers, width, matrices in mlps:
        if not layers or not width:
            continue
        inner = ceil(width / tp)
        up = (matrices - 1) * inner
        yield gemm(
            f"{name}_up", phase=phase, count=layers, m=tokens, n=up, k=model.hidden, kind=kind
        )
        if fused:
            yield rowwise(
                "elementwise",
                "silu_and_mul",
                phase=phase,
                count=layers,
                rows=tokens,
                columns=inner,
                tp=tp,
            )
        else:
            yield rowwise(
                "elementwise",
                "activation",
                phase=phase,
                count=layers,
                rows=tokens,
                columns=up,
                tp=tp,
            )
        yield gemm(
            f"{name}_down", phase=phase, count=layers, m=tokens, n=model.hidden, k=inner, kind=kind
        )


def _experts(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: int, phase: Phase
) -> Iterator[Operator]:
    if not model.is_moe:
        return
    layers = model.moe_layers
    yield gemm(
        "router", phase=phase, count=layers, m=tokens, n=model.experts, k=model.hidden, kind="bf16"
    )
    if inner := model.expert_hidden:
        kind = table_name(formats.weights)
        yield gemm(
            "experts_in", phase=phase, count=layers, m=tokens, n=inner, k=model.hidden, kind=kind
        )
        yield gemm(
            "experts_out", phase=phase, count=layers, m=tokens, n=model.hidden, k=inner, kind=kind
        )
    shape = MoeShape(
        hidden=model.expert_hidden or model.hidden,
        intermediate=model.moe_intermediate,
        experts=model.experts,
        top_k=model.experts_per_token,
        matrices=model.expert_matrices,
        tp=layout.moe_tp,
        ep=layout.moe_ep,
        weight_format=table_name(formats.moe),
    )
    yield _moe(shape, tokens=tokens * layout.dp, layers=layers, phase=phase)


@lru_cache(CACHE_SIZE)
def _moe(shape: MoeShape, tokens: int, layers: int, phase: Phase) -> Operator:
    """Return the routed experts; tables count the tokens of all ranks and the whole expert."""
    problem = Problem(
        tokens=tokens,
        hidden=shape.hidden,
        intermediate=shape.intermediate,
        top_k=shape.top_k,
        experts=shape.experts,
        distribution=ROUTING,
    )
    config = Configuration(
        format=shape.weight_format,
        tp=shape.tp,
        ep=shape.ep,
        experts=EXPERT_KINDS[shape.matrices],
    )
    return Operator(
        kernel="moe", problem=problem, count=layers, phase=phase, config=config, name="experts"
    )


def _communication(
    model: ModelDescription, layout: Layout, formats: Formats, tokens: int, rows: int, phase: Phase
) -> Iterator[Operator]:
    """Yield the exchanges: after attention, around MLPs and experts, at both ends, between stages.

    ``rows`` are the tokens that get logits.
    """
    elements = float(tokens * model.hidden)
    is_gathered = layout.dp > 1 and model.is_moe

    # A rank's share of attention or of an MLP is completed by an all-reduce.
    if layout.tp > 1:
        sums = model.attentions + model.mlp_layers
        if not is_gathered:
            sums += model.moe_layers
        logits = float(rows * model.vocab)
        for kernel, name, count, exchanged in (
            ("all_reduce", "sum", sums, elements),
            ("all_reduce", "embedding_sum", 1, elements),
            ("all_gather", "logits", 1, logits),
        ):
            yield collective(
                kernel, name, phase=phase, count=count, elements=exchanged, devices=layout.tp
            )

    # With attention-DP, tokens go to their experts and back.
    if is_gathered:
        expert_inputs = float(tokens * (model.expert_hidden or model.hidden))
        yield from _expert_exchanges(model, layout, formats, expert_inputs, phase)

    # Stages send their results on.
    if layout.pp > 1:
        yield collective(
            "send_recv", "stage", phase=phase, count=layout.pp - 1, elements=elements, devices=2
        )


def _expert_exchanges(
    model: ModelDescription, layout: Layout, formats: Formats, elements: float, phase: Phase
) -> Iterator[Operator]:
    """Yield what brings tokens to their experts, and their outputs back.

    Ranks gather all tokens and scatter the sums. If a token has fewer experts than there are ranks,
    it is sent to its experts only, in the format they multiply. ``elements`` are those of a rank's
    tokens.
    """
    n_ranks = layout.tp * layout.dp
    copies = min(model.experts_per_token, layout.moe_ep)
    if layout.moe_tp == 1 and copies < n_ranks:
        dispatch = combine = "all_to_all"
        sent = elements * copies / layout.tp
    else:
        dispatch = "all_gather"
        combine = "reduce_scatter"
        sent = elements * layout.dp

    # Tokens are quantized before sending: TensorRT-LLM's post-quant all-gather, DeepEP.
    dispatch_scale = ACTIVATION_BYTES[find_format(formats.moe).activations] / BF16_BYTES
    for kernel, name, exchanged in (
        (dispatch, "dispatch", dispatch_scale * sent),
        (combine, "combine", sent),
    ):
        yield collective(
            kernel,
            name,
            phase=phase,
            count=model.moe_layers,
            elements=exchanged,
            devices=n_ranks,
        )
