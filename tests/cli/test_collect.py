"""``foretune collect --operators``."""

import json

import pytest

from foretune.cli import main
from foretune.cli.networks import parse_sizes
from foretune.datasets import read_runs
from foretune.errors import UsageError

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 100,
}


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return str(folder)


def collect(model, out, *more):
    return main(
        [
            "collect",
            "--operators",
            model,
            "--tp",
            "1",
            "--tokens",
            "1,2",
            "--formats",
            "bf16",
            "--device",
            "cpu",
            "--out",
            str(out),
            *more,
        ]
    )


def test_collect_operators_again_measures_only_what_is_missing(model, tmp_path, capsys):
    pytest.importorskip("torch")
    out = tmp_path / "own"
    assert collect(model, out, "--minutes", "0.02", "--json") == 0
    first = json.loads(capsys.readouterr().out)
    assert first["ok"] > 0
    assert len(read_runs(out / "operators.parquet")) == first["rows"]
    assert collect(model, out, "--minutes", "0.02", "--json") == 0
    second = json.loads(capsys.readouterr().out)
    assert second["reused"] == first["rows"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--operators", "meta-llama/Llama-3.1-9B"], "unknown model"),
        (["--minutes", "0"], "give more than 0"),
        (["--tokens", "many"], "write sizes like"),
        (["--tp", "0"], "between 1 and"),
        (["--formats", "fp9"], "did you mean 'fp8'"),
        (["toy"], "--operators does not take kernel"),
        (["--configs", "3"], "leave --configs out"),
    ],
)
def test_collect_operators_wrong_options_are_refused(arguments, says, tmp_path, capsys):
    pytest.importorskip("torch")
    model = [] if "--operators" in arguments else ["--operators", "typical"]
    asked = ["collect", *model, *arguments, "--device", "cpu", "--out", str(tmp_path / "x")]
    assert main(asked) == 2
    assert says in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_collect_kernel_refuses_options_of_operators(capsys):
    assert main(["collect", "toy", "--tp", "2", "--out", "x"]) == 2
    assert "without --operators, collect takes no tp: leave --tp out" in capsys.readouterr().err
    assert main(["collect", "--out", "x"]) == 2
    assert "give a kernel" in capsys.readouterr().err


def test_parse_sizes_lists_and_ranges():
    assert parse_sizes("1..8:x2", "--tokens") == [1, 2, 4, 8]
    assert parse_sizes("5,1..2,2", "--tokens") == [1, 2, 5]
    for text in ("", "8..1", "1..", "-1", "9999999999"):
        with pytest.raises(UsageError):
            parse_sizes(text, "--tokens")
