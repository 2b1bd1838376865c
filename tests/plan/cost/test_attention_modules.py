"""Sparse attention that tables have in one piece: which models, what work, and where it counts."""

import numpy as np
import pandas as pd
import pytest

from foretune.plan import Formats, Layout, describe_model, find_system
from foretune.plan.cost.kinds import family_of
from foretune.plan.cost.operator import Part
from foretune.plan.cost.sparse_attention import (
    DECODE,
    MODULES,
    PREFILL,
    attention_modules,
    to_module_rows,
)
from foretune.plan.cost.steps import Step, StepTimer
from foretune.plan.cost.tables import OperatorTables
from foretune.plan.cost.times import OperatorTimer
from foretune.plan.engine.stage_times import StageTimes, StepLoad

DEEPSEEK = "deepseek-ai/DeepSeek-V3.2"
GLM = "zai-org/GLM-5"
FORMATS = Formats("fp8_block", kv="fp8")
PER_TOKEN_MS = 0.001


def modules(name, *parts, layout=Layout(8)):  # noqa: B008  # immutable
    return attention_modules(describe_model(name), layout, FORMATS, parts)


def test_models_that_tables_have_in_one_piece():
    prompt, answer = modules(DEEPSEEK, Part(2, 512, 64.0, "prefill"), Part(4, 1, 99.0, "decode"))
    assert (prompt.kernel, prompt.count, prompt.problem["heads"]) == (PREFILL, 61, 16)
    assert (prompt.problem["seq_len"], prompt.problem["prefix_len"]) == (512, 64.0)
    assert (answer.kernel, answer.problem["kv_len"]) == (DECODE, 100.0)
    assert answer.config["gemm_format"] == "fp8_block"
    (glm,) = modules(GLM, Part(1, 1, 99.0, "decode"), layout=Layout(1))
    assert (glm.problem["shape"], glm.problem["heads"], glm.count) == ("glm", 64, 78)
    assert modules("deepseek-ai/DeepSeek-R1", Part(1, 1, 99.0, "decode")) == []
    assert modules(GLM, Part(1, 3, 99.0, "decode")) == []  # checks drafts


def rows(**more):
    one = {"problem.model": GLM, "config.implementation": "sglang_dsa_indexer_trtllm", **more}
    return pd.DataFrame([one])


def test_attention_modules_other_models_and_layers_are_left_out():
    assert to_module_rows(rows())["problem.shape"].tolist() == ["glm"]
    assert len(to_module_rows(rows(**{"problem.model": "zai-org/GLM-5.2"}))) == 0
    assert (
        len(to_module_rows(rows(**{"config.implementation": "sglang_dsa_skip_indexer_trtllm"})))
        == 0
    )


def test_attention_modules_decode_work_by_hand():
    decode = family_of(DECODE)
    problem = {"batch": 2, "heads": 16, "kv_len": 3000, "shape": "deepseek"}
    cost = decode.cost(problem, {"gemm_format": "fp8_block", "kv_format": "fp8"})
    weights = 7168 * (1536 + 512 + 64 + 128) + 1536 * (16 * 192 + 128 * 64)
    weights += 16 * 256 * 512 + 16 * 128 * 7168
    scores = 128 * 64 * 3000
    products = 16 * (128 + 64 + 128) * 2048
    assert cost.flops == pytest.approx(2 * 2 * (weights + scores + products))
    assert cost.bytes_moved > weights + 2 * 2048 * 576
    assert cost.dtype == "fp8"


@pytest.mark.parametrize("kernel", MODULES)
def test_work_in_columns_is_that_of_single_rows_and_grows(kernel):
    known = {
        "batch": [1, 4, 4],
        "heads": [8, 8, 64],
        "shape": ["glm", "deepseek", "glm"],
        "seq_len": [10, 10, 5000],
        "prefix_len": [0, 50, 50],
        "kv_len": [9, 9, 9000],
    }
    columns = {name: np.array(values) for name, values in known.items()}
    together = family_of(kernel).cost(columns, {"gemm_format": "bf16"})
    for i in range(3):
        one = family_of(kernel).cost({n: v[i] for n, v in known.items()}, {"gemm_format": "bf16"})
        assert np.asarray(together.flops)[i] == pytest.approx(one.flops)
        assert np.asarray(together.bytes_moved)[i] == pytest.approx(one.bytes_moved)
    assert together.flops[2] > together.flops[0]


@pytest.fixture
def tables(tmp_path):
    """One engine on one system has GLM-5's attention: a microsecond for each token and key."""
    folder = tmp_path / "h200_sxm" / "sparse_attention" / "sglang" / "0.5.14"
    folder.mkdir(parents=True)
    every = [
        {"batch_size": b, "isl": n, "step": s, "num_heads": h, "tp_size": 64 // h}
        for b in (1, 4, 16, 64)
        for n in (1, 64, 512, 4096)
        for s in (0, 512, 4096)
        for h in (8, 64)
    ]
    same = {
        "framework": "SGLang",
        "version": "0.5.14",
        "device": "NVIDIA H200",
        "model": GLM,
        "kernel_source": "indexer",
        "architecture": "x",
        "mla_dtype": "bfloat16",
        "kv_cache_dtype": "fp8",
        "gemm_type": "fp8_block",
    }
    table = pd.DataFrame(every).assign(**same)
    for kernel, some in ((PREFILL, table[table["isl"] > 1]), (DECODE, table[table["isl"] == 1])):
        made = some.assign(op_name=kernel, latency=PER_TOKEN_MS * (some["isl"] + some["step"] + 50))
        made.to_parquet(folder / f"{kernel}_perf.parquet")
    return OperatorTables(tmp_path)


def test_attention_modules_count_only_where_measured(tables):
    step = Step(describe_model(GLM), Layout(8), FORMATS, Part(4, 512, 0, "prefill"))
    here = StepTimer(OperatorTimer(find_system("h200_sxm").device, tables, "h200_sxm", "sglang"))
    measured = here.times([step]).iloc[0]
    assert measured["attention"] == pytest.approx(78 * PER_TOKEN_MS * 562, rel=1e-6)
    names = [operator.name for operator in here.operators(step)]
    assert "latent" not in names
    assert "index_scores" not in names
    assert {"router", "experts", "sum"} <= set(names)
    there = StepTimer(OperatorTimer(find_system("h100_sxm").device, tables, "h100_sxm", "sglang"))
    assert there.operators(step) == step.operators()
    deepseek = Step(describe_model(DEEPSEEK), Layout(8), FORMATS, Part(4, 512, 0, "prefill"))
    assert here.operators(deepseek) == deepseek.operators()


def test_stages_and_whole_steps_agree(tables):
    clock = StepTimer(OperatorTimer(find_system("h200_sxm").device, tables, "h200_sxm", "sglang"))
    model = describe_model(GLM)
    layout = Layout(8)
    stages = StageTimes(model, layout, FORMATS, clock, 8192, 8192, 64)
    ((decode, _),) = stages(StepLoad(16, 16 * 511.0))
    whole = clock.times([Step(model, layout, FORMATS, Part(16, 1, 511, "decode"))])["total"].iloc[0]
    assert decode == pytest.approx(whole, rel=0.05)
    ((prompt, _),) = stages(StepLoad(0, 0.0, [(4096, 0)], 1))
    whole = clock.times([Step(model, layout, FORMATS, Part(1, 4096, 0, "prefill"))])["total"].iloc[
        0
    ]
    assert prompt == pytest.approx(whole, rel=0.2)
