"""Does a format per layer beat the best uniform format at equal quality? On a model made here.

Run: ``python benchmarks/plan_layer_formats.py [--steps 600] [--seed 0]``; needs torch.

A small transformer learns to predict the bytes of Foretune's documentation. Its sensitivities are
measured as a user would: one part (attention or MLP of a layer) at a time is rounded to a format,
and the divergence of the model's predictions (KL, nats per byte) is its loss. For every uniform
format, Foretune finds the assignment with the fewest bytes whose losses add up to no more. Both are
then measured on other text. Beside them: the common rule, which keeps the first and the last layers
in the widest format, and random assignments, with as many bytes as the found one.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from machine import heading, markdown
from torch import nn
from torch.nn import functional

from foretune.collect import local_device
from foretune.plan.describe.formats import find_format
from foretune.plan.describe.sensitivities import (
    ATTENTION,
    MLP,
    UNCHANGED,
    Part,
    Sensitivities,
    smallest_assignment,
)

LAYERS = 8
WIDTH = 128
HEADS = 4
CONTEXT = 128
BATCH = 16
LEARNING_RATE = 3e-3
CALIBRATION_BATCHES = 8
JUDGED_BATCHES = 16
RANDOM_ASSIGNMENTS = 8
MANTISSA_MAX = 6.0
E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
"""Values of four bits with two of exponent (NVFP4)."""


class Layer(nn.Module):
    """A layer of a decoder: attention, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attention = nn.ModuleList([nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)])
        self.mlp = nn.ModuleList([nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the stream after this layer."""
        batch, tokens, _ = x.shape
        qkv = self.attention[0](self.norms[0](x))
        heads = qkv.view(batch, tokens, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.attention[1](attended.transpose(1, 2).reshape(batch, tokens, WIDTH))
        return x + self.mlp[1](functional.gelu(self.mlp[0](self.norms[1](x))))


class Decoder(nn.Module):
    """Predicts the next byte."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the logits of the byte after each of the context's."""
        x = self.embedding(tokens) + self.position.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def main() -> None:
    """Train, measure, assign, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    print(heading("A format per layer", local_device("cpu")))

    # Text to learn, to measure sensitivities on, and to judge on.
    text = "\n".join(p.read_text(encoding="utf-8") for p in sorted(Path("docs").rglob("*.md")))
    data = torch.tensor(list(text.encode()), dtype=torch.long)
    learned, measured, judged = _split(data)
    model = Decoder()
    loss = _train(model, learned, arguments.steps)
    print(f"{sum(p.numel() for p in model.parameters()):,} weights, loss {loss:.2f} nats a byte\n")

    calibration = list(_batches(measured, CALIBRATION_BATCHES, seed=1))
    held_out = list(_batches(judged, JUDGED_BATCHES, seed=2))
    sensitivities = _measure(model, calibration)
    rows = _compare(model, sensitivities, held_out, np.random.default_rng(arguments.seed))
    columns = ["quality of", "bytes, share of uniform", "loss as added", "uniform", "found"]
    print(markdown([*columns, "first and last wide", "random"], rows))
    print("losses are KL divergences on other text, in thousandths of a nat per byte")


def _split(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return eight tenths of the text, and two others."""
    tenth = len(data) // 10
    return data[: 8 * tenth], data[8 * tenth : 9 * tenth], data[9 * tenth :]


def _batches(data: torch.Tensor, count: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield batches of random pieces of a text, a byte longer than the context."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(count):
        starts = torch.randint(0, len(data) - CONTEXT - 1, (BATCH,), generator=rng)
        yield torch.stack([data[start : start + CONTEXT + 1] for start in starts.tolist()])


def _train(model: Decoder, data: torch.Tensor, steps: int) -> float:
    """Train the model, and return the mean loss of the last steps."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, LEARNING_RATE, total_steps=steps)
    losses = []
    for batch in _batches(data, steps, seed=0):
        logits = model(batch[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return float(np.mean(losses[-20:]))


# Rounding to formats


def _integers(bits: int, group: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what rounds a matrix to integers, with a scale per group of a row."""

    def rounded(weight: torch.Tensor) -> torch.Tensor:
        groups = weight.view(-1, group)
        largest = 2 ** (bits - 1) - 1
        scale = groups.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / largest
        return ((groups / scale).round().clamp(-largest - 1, largest) * scale).view_as(weight)

    return rounded


def _fp8(weight: torch.Tensor) -> torch.Tensor:
    """Round a matrix to fp8, with a scale per row."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-8) / 448.0
    return (weight / scale).to(torch.float8_e4m3fn).to(weight.dtype) * scale


def _nvfp4(weight: torch.Tensor) -> torch.Tensor:
    """Round a matrix to NVFP4: four bits, with a scale in fp8 per 16 numbers."""
    groups = weight.view(-1, 16)
    tensor_scale = weight.abs().max().clamp(min=1e-8) / (MANTISSA_MAX * 448.0)
    scale = groups.abs().amax(dim=1, keepdim=True) / MANTISSA_MAX / tensor_scale
    scale = scale.to(torch.float8_e4m3fn).to(weight.dtype).clamp(min=1e-3) * tensor_scale
    nearest = ((groups / scale).abs()[..., None] - E2M1).abs().argmin(dim=-1)
    return (E2M1[nearest] * groups.sign() * scale).view_as(weight)


ROUNDED = {
    "fp8": _fp8,
    "int4_wo_g32": _integers(4, 32),
    "nvfp4": _nvfp4,
    "int3_wo_g32": _integers(3, 32),
    "int2_wo_g32": _integers(2, 32),
}
"""Foretune's name of a format -> what rounds weights to it."""


@contextmanager
def _in_formats(model: Decoder, assignment: Mapping[Part, str]) -> Iterator[None]:
    """Round the weights of parts to their formats, and restore them."""
    kept = []
    with torch.no_grad():
        for (layer, module), name in assignment.items():
            if name == UNCHANGED:
                continue
            for linear in getattr(model.layers[layer], module):
                kept.append((linear.weight, linear.weight.clone()))
                linear.weight.copy_(ROUNDED[name](linear.weight))
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, original in kept:
                weight.copy_(original)


# Losses


def _log_predictions(model: Decoder, batches: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the logarithms of predicted probabilities."""
    with torch.no_grad():
        return [functional.log_softmax(model(batch[:, :-1]), dim=-1) for batch in batches]


def _divergence(
    model: Decoder,
    assignment: Mapping[Part, str],
    batches: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor],
) -> float:
    """Return how far a rounded model's predictions are from the model's own, nats per byte."""
    with _in_formats(model, assignment):
        rounded = _log_predictions(model, batches)
    divergences = [
        functional.kl_div(after, before, log_target=True, reduction="sum") / before[..., 0].numel()
        for after, before in zip(rounded, expected, strict=True)
    ]
    return float(torch.stack(divergences).mean())


def _measure(model: Decoder, batches: Sequence[torch.Tensor]) -> Sensitivities:
    """Return the loss of each part alone in each format."""
    expected = _log_predictions(model, batches)
    losses: dict[Part, dict[str, float]] = {}
    for layer in range(LAYERS):
        for module in (ATTENTION, MLP):
            part = (layer, module)
            losses[part] = {UNCHANGED: 0.0}
            for name in ROUNDED:
                losses[part][name] = _divergence(model, {part: name}, batches, expected)
    return Sensitivities(losses, "measured here")


def _weights(model: Decoder) -> dict[Part, float]:
    """Return the number of weights of each part."""
    return {
        (layer, module): float(
            sum(linear.weight.numel() for linear in getattr(model.layers[layer], module))
        )
        for layer in range(LAYERS)
        for module in (ATTENTION, MLP)
    }


def _bytes(assignment: Mapping[Part, str], weights: Mapping[Part, float]) -> float:
    """Return the bytes of an assignment."""
    return sum(find_format(name).bytes * weights[part] for part, name in assignment.items())


def _compare(
    model: Decoder,
    sensitivities: Sensitivities,
    batches: Sequence[torch.Tensor],
    rng: np.random.Generator,
) -> list[list[str]]:
    """Return a row per uniform format."""
    expected = _log_predictions(model, batches)
    weights = _weights(model)
    formats = sensitivities.formats

    def judged(assignment: Mapping[Part, str]) -> float:
        return 1e3 * _divergence(model, assignment, batches, expected)

    rows = []
    for name in ROUNDED:
        uniform = sensitivities.uniform(name)
        limit = sensitivities.total(uniform)
        found = smallest_assignment(sensitivities, weights, formats, limit)
        assert found is not None
        size = _bytes(found, weights)
        ends = _wide_ends(sensitivities, weights, size)
        others = [
            judged(_random(sensitivities, weights, size, rng)) for _ in range(RANDOM_ASSIGNMENTS)
        ]
        rows.append(
            [
                name,
                f"{size / _bytes(uniform, weights):.2f}",
                f"{1e3 * sensitivities.total(found):.2f} of {1e3 * limit:.2f}",
                f"{judged(uniform):.2f}",
                f"{judged(found):.2f}",
                f"{judged(ends):.2f}",
                f"{np.median(others):.2f}",
            ]
        )
    return rows


def _wide_ends(
    sensitivities: Sensitivities, weights: Mapping[Part, float], size: float
) -> dict[Part, str]:
    """Return the common rule: the narrowest uniform format that fits, the ends in fp8.

    Layers become wide from both ends while the bytes stay below ``size``.
    """
    by_bytes = sorted(ROUNDED, key=lambda name: find_format(name).bytes)
    fitting = [n for n in by_bytes if _bytes(sensitivities.uniform(n), weights) <= size]
    assignment = sensitivities.uniform(fitting[-1] if fitting else by_bytes[0])
    from_ends = sorted(range(LAYERS), key=lambda layer: min(layer, LAYERS - 1 - layer))
    for layer in from_ends:
        for module in (ATTENTION, MLP):
            wider = {**assignment, (layer, module): "fp8"}
            if _bytes(wider, weights) <= size:
                assignment = wider
    return assignment


def _random(
    sensitivities: Sensitivities,
    weights: Mapping[Part, float],
    size: float,
    rng: np.random.Generator,
) -> dict[Part, str]:
    """Return a random assignment of at most ``size`` bytes: parts in random order get wider."""
    by_bytes = sorted(ROUNDED, key=lambda name: find_format(name).bytes)
    assignment = sensitivities.uniform(by_bytes[0])
    parts = list(assignment)
    for number in rng.permutation(len(parts)).tolist():
        for name in by_bytes[1:]:
            wider = {**assignment, parts[number]: name}
            if _bytes(wider, weights) <= size and rng.random() < 0.8:
                assignment = wider
    return assignment


if __name__ == "__main__":
    main()
