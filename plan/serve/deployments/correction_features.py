"""Features of the boosted correction: loads, shares and lengths, without model names."""

import numpy as np
import pandas as pd

from foretune.plan.serve.deployments.deployment import ENGINES
from foretune.plan.serve.deployments.serving import memory_wait_ms, prefill_load, prompts_per_token


def correction_features(rows: pd.DataFrame, analytic: pd.DataFrame) -> pd.DataFrame:
    """Return model-independent features of deployments.

    ``rows`` come from `analytic_times`; ``analytic`` has the formulas' ``tpot_ms`` and ``ttft_ms``.
    """
    tpot, ttft = analytic["tpot_ms"].to_numpy(), analytic["ttft_ms"].to_numpy()
    logs = {
        "running": rows["running"], "concurrency": rows["concurrency"], "isl": rows["isl"],
        "osl": rows["osl"], "tp": rows["tp"], "dp": rows["dp"], "moe_tp": rows["moe_tp"],
        "moe_ep": rows["moe_ep"], "tpot": tpot, "ttft": ttft, "prefill": rows["prefill"],
        "prompt": rows["prompt"], "burst": rows["running"] * rows["prefill"],
        "slot": rows["osl"] * tpot / rows["running"], "full": rows["batch"] / rows["most"],
        "growth": rows["decode"] / rows["alone"], "bandwidth": rows["bandwidth"],
    }  # fmt: skip
    plain = {
        "share_projections": rows["share_projections"],
        "share_attention": rows["share_attention"],
        "share_experts": rows["share_experts"],
        "share_communication": rows["share_communication"],
        "share_rest": rows["share_rest"],
        "prompts": prompts_per_token(rows) * rows["prefill"] / tpot,
        "prefill_load": prefill_load(rows, tpot),
        "waits": memory_wait_ms(rows, tpot) / ttft,
        "weights_share": rows["weights_share"],
        "weight_bits": rows["weight_bits"],
        "is_moe": rows["is_moe"],
        "is_latent": rows["is_latent"],
        "apart": rows["apart"],
        "speculative": rows["speculative"],
        "burst_load": (rows["load"] == "burst").astype(float),
    }
    engines = {f"is_{name}": (rows["backend"] == name).astype(float) for name in ENGINES}
    table = {name: np.log(np.asarray(v, dtype=float)) for name, v in logs.items()}
    table |= {name: np.asarray(v, dtype=float) for name, v in (plain | engines).items()}
    return pd.DataFrame(table, index=rows.index)
