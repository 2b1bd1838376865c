"""Losses of layers: read completely or refused, and the smallest assignment under a limit."""

from itertools import product

import numpy as np
import pytest

from foretune.errors import RunTableError, UnknownName, UsageError
from foretune.plan import describe_model
from foretune.plan.describe.formats import find_format
from foretune.plan.describe.sensitivities import (
    ATTENTION,
    MLP,
    Sensitivities,
    part_weights,
    read_sensitivities,
    smallest_assignment,
)

FORMATS = ("fp8", "nvfp4")


def rows_of(layers, loss=lambda layer, module, name: 0.1):
    lines = ["layer,module,format,loss"]
    lines += [
        f"{layer},{module},{name},{loss(layer, module, name)}"
        for layer, module, name in product(range(layers), ("attention", "mlp"), FORMATS)
    ]
    return "\n".join(lines) + "\n"


def write(folder, text):
    path = folder / "losses.csv"
    path.write_text(text, encoding="utf-8")
    return path


def test_losses_are_read(tmp_path):
    text = rows_of(2, lambda layer, module, name: layer + (name == "nvfp4"))
    found = read_sensitivities(write(tmp_path, text), layers=2)
    assert found.formats == ["bf16", "fp8", "nvfp4"]
    assert found.losses[1, MLP] == {"bf16": 0.0, "fp8": 1.0, "nvfp4": 2.0}
    assert found.total(found.uniform("nvfp4")) == 2 * 1 + 2 * 2
    assert found.total(found.uniform("bf16")) == 0


def test_names_of_modules_in_checkpoints_are_known(tmp_path):
    text = rows_of(1).replace("attention", "self_attn").replace("mlp", "experts")
    assert set(read_sensitivities(write(tmp_path, text), 1).losses) == {(0, ATTENTION), (0, MLP)}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(",", ";").replace("0.1", "0,1"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace("layer,module,format,loss", "Layer, Module, Format, Loss"),
        lambda text: text.replace("fp8", "FP8"),
        lambda text: f"# measured on a Monday\n{text}",
    ],
    ids=["decimal comma", "tabs", "header", "capitals", "comment"],
)
def test_losses_in_other_dialects_are_read(tmp_path, change):
    text = rows_of(1)
    expected = read_sensitivities(write(tmp_path, text), layers=1)
    assert read_sensitivities(write(tmp_path, change(text)), layers=1) == expected


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text.replace("1,mlp,nvfp4,0.1\n", ""), "mlp of layer 1 in nvfp4"),
        (lambda text: text + "2,mlp,fp8,0.1\n", "row 9: the model has layers 0 to 1, not 2"),
        (lambda text: text + "0,mlp,fp8,0.1\n", "row 9: fp8 of layer 0 is there twice"),
        (lambda text: text.replace("0,mlp,fp8,0.1", "0,mlp,fp8,nan"), "loss is nan"),
        (lambda text: text.replace("0,mlp,fp8,0.1", "0,mlp,fp8,high"), "must be numbers"),
        (lambda text: text.replace("0,mlp,fp8", "0,lm_head,fp8"), "not 'lm_head'"),
        (lambda text: text.replace("format", "kind"), "no column 'format'"),
        (lambda text: "layer,module,format,loss\n", "has no rows"),
    ],
)
def test_losses_that_are_not_complete_are_refused(tmp_path, change, reason):
    path = write(tmp_path, change(rows_of(2)))
    with pytest.raises(RunTableError, match=reason):
        read_sensitivities(path, layers=2)


def test_unknown_format_is_refused(tmp_path):
    with pytest.raises(UnknownName):
        read_sensitivities(write(tmp_path, rows_of(1).replace("fp8", "fp7")), layers=1)


def random_losses(layers, seed):
    rng = np.random.default_rng(seed)
    losses = {
        (layer, module): {
            "bf16": 0.0,
            "fp8": 0.01 * rng.lognormal(),
            "nvfp4": 0.3 * rng.lognormal(sigma=1.5),
        }
        for layer, module in product(range(layers), (ATTENTION, MLP))
    }
    return Sensitivities(losses, "made here")


def bytes_of(assignment, weights):
    return sum(find_format(name).bytes * weights[part] for part, name in assignment.items())


@pytest.mark.parametrize("seed", range(4))
def test_smallest_assignment_is_that_of_all_assignments(seed):
    sensitivities = random_losses(layers=3, seed=seed)
    parts = list(sensitivities.losses)
    weights = {part: 1.0 + (part[1] == MLP) for part in parts}
    limit = 0.5 * sensitivities.total(sensitivities.uniform("nvfp4"))
    found = smallest_assignment(sensitivities, weights, sensitivities.formats, limit)

    allowed = [
        bytes_of(dict(zip(parts, names, strict=True)), weights)
        for names in product(sensitivities.formats, repeat=len(parts))
        if sensitivities.total(dict(zip(parts, names, strict=True))) <= limit
    ]
    assert sensitivities.total(found) <= limit * (1 + 1e-6)
    assert bytes_of(found, weights) == pytest.approx(min(allowed), rel=1e-3)


def test_no_loss_allowed_is_unchanged():
    sensitivities = random_losses(layers=2, seed=0)
    weights = dict.fromkeys(sensitivities.losses, 1.0)
    found = smallest_assignment(sensitivities, weights, sensitivities.formats, 0.0)
    assert set(found.values()) == {"bf16"}
    assert smallest_assignment(sensitivities, weights, ["nvfp4"], 0.0) is None


def test_weights_of_parts_add_up_to_the_layers():
    model = describe_model("meta-llama/Llama-3.1-8B")
    counts = model.weights()
    weights = part_weights(model)
    assert len(weights) == 64
    expected = counts.attention + counts.key_value + counts.replicated + counts.mlp
    assert sum(weights.values()) == pytest.approx(expected)


def test_models_with_unlike_layers_are_refused():
    with pytest.raises(UsageError, match="its layers differ"):
        part_weights(describe_model("deepseek-ai/DeepSeek-V3"))
