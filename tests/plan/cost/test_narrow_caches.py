"""Attention on caches that no table has: as fast as their bytes allow, no faster, and a guess."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from foretune.device import find_device, roofline_terms_ms
from foretune.features.families.attention import AttentionDecode
from foretune.plan.cost.operator import Part
from foretune.plan.cost.steps import Step, StepTimerFactory
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.describe.catalog import find_system
from foretune.plan.describe.formats import CACHE_FORMATS, DEFAULT_CACHE_FORMATS, Formats
from foretune.plan.describe.layout import Layout
from foretune.plan.describe.model_catalog import describe_model

H100 = find_device("NVIDIA H100 80GB HBM3")
SHAPE = {"problem.heads": 32, "problem.kv_heads": 8, "problem.head_dim": 128, "problem.window": 0}
NARROW = sorted(set(CACHE_FORMATS) - set(DEFAULT_CACHE_FORMATS))


def operator(batch: int, keys: int, kind: str) -> dict[str, object]:
    sizes = {"problem.batch": batch, "problem.kv_len": keys, **SHAPE}
    return {
        "kernel": "attention_decode",
        "config.format": "bf16",
        "config.kv_format": kind,
        **sizes,
    }


class Tables:
    """Attention that takes four microseconds, and what 80 % of the peak rates allow."""

    systems = ("h100_sxm",)

    def backends(self, system: str) -> list[str]:
        return ["vllm"]

    def rows(self, kernel: str, system: str, backend: str) -> pd.DataFrame | None:
        if kernel != "attention_decode":
            return None
        sizes = product([1, 4, 16, 64, 256], [256, 1024, 4096, 16384], DEFAULT_CACHE_FORMATS)
        rows = pd.DataFrame([operator(*one) for one in sizes])
        problem = {c.split(".")[1]: rows[c].to_numpy() for c in rows if c.startswith("problem.")}
        config = {c.split(".")[1]: rows[c].to_numpy() for c in rows if c.startswith("config.")}
        least = np.max(
            roofline_terms_ms(AttentionDecode().cost(problem, config), H100.specs), axis=0
        )
        specs = {f"device.{name}": value for name, value in H100.specs.items()}
        return rows.assign(time_ms=0.004 + least / 0.8, device=H100.name, status="ok", **specs)


@pytest.fixture(scope="module")
def times() -> pd.DataFrame:
    clock = OperatorTimer(H100, Tables(), "h100_sxm", "vllm")
    asked = [operator(64, keys, kind) for kind in CACHE_FORMATS for keys in (1536, 6144)]
    found = vars(clock.times(pd.DataFrame(asked)))
    return pd.DataFrame({**found, "kind": [o["config.kv_format"] for o in asked]}).set_index("kind")


@pytest.mark.parametrize("kind", [kind for kind in NARROW if kind != "fp32"])
def test_narrow_cache_gains_what_its_bytes_allow(times, kind):
    share = CACHE_FORMATS[kind].bytes_per_value(128) / CACHE_FORMATS["fp8"].bytes_per_value(128)
    ratio = times.loc[kind, "ms"].to_numpy() / times.loc["fp8", "ms"].to_numpy()
    assert (ratio >= share - 1e-9).all()
    assert ratio[1] < 1.1 * share + 0.1
    assert set(times.loc[kind, "source"]) == {"predicted"}
    assert "predicted" not in set(times.loc["fp8", "source"])


def test_narrow_cache_makes_step_a_guess():
    model = describe_model("meta-llama/Llama-3.1-8B")
    system = find_system("h100_sxm")
    steps = [
        Step(model, Layout(), Formats(kv=kind), Part(64, 1, 8192, "decode"))
        for kind in ("fp8", "nvfp4")
    ]
    clock = StepTimerFactory(None)(system, "vllm")
    eight, four = clock.times(steps)["attention"]
    bytes_ratio = CACHE_FORMATS["nvfp4"].bytes_per_value(128)
    assert four == pytest.approx(bytes_ratio * eight, rel=0.05)
    assert clock.times(steps)["guessed"].tolist() == pytest.approx([1.0, 1.0])
