"""AITER's tables: similar layers on the same architecture agree on a kernel that can run."""

import pandas as pd
import pytest

from foretune.errors import StoreError
from foretune.plan.engine_files.aiter import TABLE_KINDS, TunedTable
from foretune.problem import Problem

LINEAR = TABLE_KINDS["a8w8_blockscale_tuned_gemm"]
EXPERTS = TABLE_KINDS["tuned_fmoe"]
TOKENS = (16, 256, 4096)
NAME, COMPUTE_UNITS = "gfx942", 304


def kernel(tokens, units=COMPUTE_UNITS):
    return ("wide" if tokens > 1000 else "narrow") + ("" if units in (80, 304) else " of others")


def row(tokens, columns, depth, units=COMPUTE_UNITS, **other):
    return {
        "cu_num": units, "M": tokens, "N": columns, "K": depth, "kernelId": tokens, "splitK": 0,
        "us": 9.0, "kernelName": kernel(tokens, units), "tflops": 1.0, "bw": 1.0, "errRatio": 0.0,
        **other,
    }  # fmt: skip


@pytest.fixture
def rows():
    sizes = [(n, k) for n in (1024, 4096) for k in (1536, 7168)]
    return pd.DataFrame([row(m, *size, units) for size in sizes for m in TOKENS
                         for units in (304, 256)])  # fmt: skip


@pytest.fixture
def table(rows):
    return TunedTable(LINEAR, rows)


@pytest.mark.parametrize("tokens", [1, 16, 300, 4096, 9000])
def test_similar_layers_decide(table, tokens):
    guess = table.guess(Problem(N=3072, K=7168), tokens, NAME, COMPUTE_UNITS)
    nearest = min(TOKENS, key=lambda m: abs(m.bit_length() - tokens.bit_length()))
    assert guess.values == {
        "kernelId": nearest, "splitK": 0, "kernelName": kernel(nearest),
    }  # fmt: skip
    assert 0 < guess.agreement <= 1
    assert guess.nearest == Problem(N=4096, K=7168)


def test_other_architectures_have_no_vote(table):
    other = table.guess(Problem(N=3072, K=7168), 16, "gfx950", 256)
    assert other.values["kernelName"] == "narrow of others"
    assert table.guess(Problem(N=3072, K=7168), 16, "gfx90a", 104) is None
    assert table.architectures == {"gfx942", "gfx950"}


def test_another_device_of_the_architecture_has_one(table):
    assert table.guess(Problem(N=3072, K=7168), 16, NAME, 80).values["kernelName"] == "narrow"


def test_a_column_for_the_architecture_counts(rows):
    table = TunedTable(LINEAR, rows.assign(gfx="gfx1250"))
    assert table.architectures == {"gfx1250"}
    assert list(table.tuned("gfx1250", 304)) == list(table.tuned("gfx1250", 256))
    new = table.with_guesses("gfx1250", 304, {
        (Problem(N=64, K=64), 16): table.guess(Problem(N=4096, K=7168), 16, "gfx1250", 304)
    })  # fmt: skip
    assert new["gfx"].iloc[-1] == "gfx1250"


def test_a_kernel_is_not_given_sizes_that_it_may_refuse(table):
    assert table.guess(Problem(N=3072, K=7168), 16, NAME, COMPUTE_UNITS) is not None
    refused = Problem(N=1536, K=7168)  # all that it was chosen for are multiples of 1024
    assert table.guess(refused, 16, NAME, COMPUTE_UNITS) is None


def test_some_may_have_no_vote(rows):
    layer = Problem(N=1024, K=1536)
    table = TunedTable(LINEAR, rows[(rows.N == 1024) & (rows.K == 1536)])
    assert table.guess(layer, 16, NAME, COMPUTE_UNITS).nearest == layer
    assert table.guess(layer, 16, NAME, COMPUTE_UNITS, without=[layer]) is None


def test_the_fastest_of_several_rows_counts(rows):
    twice = [row(16, 1024, 1536, kernelName="faster", us=1.0), row(16, 1024, 1536, us=8.0)]
    table = TunedTable(LINEAR, pd.concat([rows, pd.DataFrame(twice)]))
    assert len(table.rows) == len(rows)
    mine = table.rows[(table.rows.M == 16) & (table.rows.N == 1024) & (table.rows.K == 1536)]
    assert mine[mine.cu_num == 304].kernelName.item() == "faster"


def test_what_is_tuned_and_for_how_many_tokens(table):
    assert table.tuned(NAME, 304)[Problem(N=1024, K=1536)] == [16, 256, 4096]
    assert table.tuned(NAME, 80) == {}
    assert table.common_token_counts(NAME) == [16, 256, 4096]


def test_rows_that_few_layers_have_are_not_usual(rows):
    table = TunedTable(LINEAR, pd.concat([rows, pd.DataFrame([row(7, 1024, 1536)])]))
    assert table.common_token_counts(NAME) == [16, 256, 4096]


def test_a_completed_table_has_the_device_alone(table):
    layer = Problem(N=3072, K=7168)
    guess = table.guess(layer, 16, NAME, COMPUTE_UNITS)
    full = table.with_guesses(NAME, COMPUTE_UNITS, {(layer, 16): guess})
    assert list(full.columns) == list(table.rows.columns)
    assert set(full.cu_num) == {304}
    last = full.iloc[-1]
    assert (last.M, last.N, last.K, last.kernelId) == (16, 3072, 7168, 16)
    assert pd.isna(last.us)
    assert full.kernelId.dtype.kind == "i"
    assert len(table.with_guesses(NAME, COMPUTE_UNITS, {})) == 12


def expert_row(tokens, quantized, topk=8, **other):
    return {
        "cu_num": 256, "token": tokens, "model_dim": 7168, "inter_dim": 256, "expert": 256,
        "topk": topk, "act_type": "ActivationType.Silu", "dtype": "torch.bfloat16",
        "q_dtype_a": "x", "q_dtype_w": "x", "q_type": f"QuantType.{quantized}", "use_g1u1": 1,
        "doweight_stage1": 0, "block_m": tokens, "ksplit": 0, "us1": 1.0, "kernelName1": quantized,
        "err1": "0.0%", "us2": 1.0, "kernelName2": None, "err2": "0.0%", "us": 2.0,
        "run_1stage": 0, "tflops": 1.0, "bw": 1.0, **other,
    }  # fmt: skip


def test_formats_of_experts_are_told_apart():
    table = TunedTable(EXPERTS, pd.DataFrame([
        expert_row(m, q) for m in (16, 64) for q in ("No", "per_Token")
    ]))  # fmt: skip
    (layer, _) = table.tuned("gfx950", 256)
    assert layer["q_type"] == "QuantType.No"
    other = Problem({**layer, "expert": 129, "topk": 6})  # numbers of experts are not divided
    guess = table.guess(other, 64, "gfx950", 256)
    assert guess.values == {
        "block_m": 64, "ksplit": 0, "kernelName1": "No", "kernelName2": "", "run_1stage": 0
    }  # fmt: skip
    assert (
        table.guess(Problem({**other, "q_type": "QuantType.per_1x32"}), 64, "gfx950", 256) is None
    )


def test_tables_of_a_package_are_read_as_aiter_reads_them(tmp_path, rows):
    configs = tmp_path / "aiter" / "configs"
    (configs / "model_configs").mkdir(parents=True)
    rows.to_csv(configs / f"{LINEAR.name}.csv", index=False)
    rows.assign(N=512).to_csv(configs / "model_configs" / f"{LINEAR.name}_one.csv", index=False)
    untuned = f"{LINEAR.name}_untuned.csv"
    rows.assign(N=256).to_csv(configs / "model_configs" / untuned, index=False)
    rows.assign(N=128, more=1).to_csv(
        configs / "model_configs" / f"{LINEAR.name}_x.csv", index=False
    )
    table = TunedTable.read(tmp_path, LINEAR)
    assert set(table.rows.N) == {512, 1024, 4096}
    assert TunedTable.read(tmp_path, EXPERTS) is None


@pytest.mark.parametrize("content", ["", "cu_num,M\n1,2\n"], ids=["empty", "other columns"])
def test_what_is_no_table_is_said(tmp_path, content):
    path = tmp_path / "configs" / f"{LINEAR.name}.csv"
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(StoreError, match=r"cannot read|lacks the column K, N, us"):
        TunedTable.read(tmp_path, LINEAR)
