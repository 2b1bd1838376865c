"""Published watts of GPUs that serve models, and what a plan predicts: for `plan_power.py`."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from foretune.plan import Formats, Layout, ModelDescription, describe_model, find_system
from foretune.plan.cost.operator import Part
from foretune.plan.cost.power import OperatorPower
from foretune.plan.cost.steps import Step, StepTimerFactory
from foretune.plan.serve.deployments.power import deployment_power

ALICE = "api.serialalice.pt/alice-benchmark, June 2026"
GREEN = "ML.ENERGY v3.0 in huggingface.co/datasets/leadgreen/green-token-index"
PROMPT = 256
"""Tokens of the prompts of published runs, which do not say."""
PREFILLED = 16
"""Prompts that are prefilled at once."""
WITHOUT_PAUSES_MS = 1e-6
"""A time per token that leaves no pauses."""
PHI3_MINI = ModelDescription(
    "Phi-3-mini",
    layers=32,
    hidden=3072,
    heads=32,
    kv_heads=32,
    head_dim=96,
    vocab=32064,
    intermediate=8192,
)


@dataclass(frozen=True, kw_only=True)
class Published:
    """A GPU that serves a model in bf16 with vLLM.

    Attributes:
        model, system: The model and the system.
        running: Requests at a time.
        osl: Generated tokens per request.
        watts: Power of the GPU.
        source: Where it was published.
        mj_per_token: Energy per generated token; None if pauses between steps are not known.
    """

    model: ModelDescription
    system: str
    running: int
    osl: int
    watts: float
    source: str
    mj_per_token: float | None = None

    def predicted(self, timers: StepTimerFactory) -> tuple[float, float]:
        """Return watts without pauses, and at the published speed."""
        system = find_system(self.system)
        timer = timers(system, "vllm")

        # A typical step: half of the answers are generated.
        context = PROMPT + self.osl // 2
        decode = Step(self.model, Layout(), Formats(), Part(self.running, 1, context, "decode"))
        prefill = Step(self.model, Layout(), Formats(), Part(PREFILLED, PROMPT, 0, "prefill"))
        steps = timer.times([decode, prefill])
        deployment = pd.DataFrame(
            [
                {
                    "decode": steps["total"][0],
                    "decode_energy_mj": steps["energy_mj"][0],
                    "prefill": steps["total"][1] / PREFILLED,
                    "prefill_energy_mj": steps["energy_mj"][1] / PREFILLED,
                    "running": self.running,
                    "concurrency": self.running,
                    "osl": self.osl,
                    "speculative": 0.0,
                    "tp": 1.0,
                    "pp": 1.0,
                    "prefill_tp": 1.0,
                    "gpus": 1.0,
                    "awake_w": OperatorPower(system.device, self.system).active_idle_w,
                }
            ]
        )

        # All requests get a token in each step.
        published_ms = self.running * (self.mj_per_token or np.nan) / self.watts
        busy_w = _watts(deployment, WITHOUT_PAUSES_MS)
        return busy_w, _watts(deployment, published_ms)


def _watts(deployment: pd.DataFrame, token_ms: float) -> float:
    latency = pd.DataFrame({"tpot_ms": [token_ms], "ttft_ms": [token_ms]})
    return float(deployment_power(deployment, latency)["power_w"][0])


def published_runs() -> list[Published]:
    """Return the runs that were published with their watts."""
    llama = describe_model("meta-llama/Llama-3.1-8B")
    qwen = describe_model("Qwen/Qwen3-8B")
    sparse = describe_model("Qwen/Qwen3-30B-A3B")
    return [
        Published(
            model=llama,
            system="h100_sxm",
            running=511,
            osl=397,
            watts=688.0,
            source=GREEN,
            mj_per_token=70.2,
        ),
        Published(
            model=llama,
            system="b200_sxm",
            running=2043,
            osl=396,
            watts=691.0,
            source=GREEN,
            mj_per_token=46.7,
        ),
        Published(
            model=qwen,
            system="b200_sxm",
            running=1427,
            osl=649,
            watts=801.0,
            source=GREEN,
            mj_per_token=53.1,
        ),
        Published(
            model=sparse,
            system="b200_sxm",
            running=1023,
            osl=928,
            watts=601.0,
            source=GREEN,
            mj_per_token=56.4,
        ),
        Published(
            model=PHI3_MINI,
            system="h200_sxm",
            running=128,
            osl=PROMPT,
            watts=516.9,
            source=ALICE,
        ),
        Published(
            model=PHI3_MINI,
            system="b200_sxm",
            running=128,
            osl=PROMPT,
            watts=606.0,
            source=ALICE,
        ),
    ]
