"""What is said of a best plan whose layers have different formats, beside the uniform one."""

from foretune.plan.serve.layer_formats import find_layer_formats
from foretune.plan.serve.planner import Plan
from foretune.plan.serve.ranking import best_row


def describe_layer_formats(plan: Plan) -> list[str]:
    """Return sentences on a best plan with a format per layer; empty if its format is uniform."""
    best = plan.deployment(plan.best)
    mixed = find_layer_formats(plan.request.layer_formats, best.formats)
    if mixed is None:
        return []
    said = [
        f"a format per layer: {mixed}",
        (
            f"its losses add up to {mixed.loss:.4g}, those of {mixed.uniform} to "
            f"{mixed.uniform_loss:.4g} ({mixed.source}): that the sum tells the quality is assumed"
        ),
    ]

    # The best of the uniform formats that lose no more.
    feasible = plan.feasible
    formats = [plan.deployment(row).formats for _, row in feasible.iterrows()]
    is_uniform = [(f.weights, f.moe) == (mixed.uniform, mixed.uniform) for f in formats]
    rivals = feasible[is_uniform]
    if rivals.empty:
        return [*said, f"no plan in {mixed.uniform} meets the limits"]
    rival = best_row(rivals, plan.requirements)
    gain = plan.best["tokens_per_s_per_gpu"] / rival["tokens_per_s_per_gpu"] - 1.0
    faster = rival["tpot_ms"] / plan.best["tpot_ms"] - 1.0
    comparison = (
        f"{rival['formats']} alone: {rival['tokens_per_s_per_gpu']:,.1f} tokens/s per GPU, "
        f"{rival['tpot_ms']:.2f} ms per token; the mixture has {100 * gain:+.1f} % tokens/s, "
        f"{100 * faster:+.1f} % speed per token"
    )
    return [*said, comparison]
