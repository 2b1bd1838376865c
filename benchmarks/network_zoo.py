"""Eight small networks with random weights: the kinds that torchvision and language models have."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

IMAGE = 64
"""Height and width of images."""
TOKENS = 128
VOCABULARY = 4000


def conv(inputs: int, outputs: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Module:
    """Return a convolution with a batch norm."""
    layer = nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(layer, nn.BatchNorm2d(outputs))


class Residual(nn.Module):
    """Two 3×3 convolutions around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.first = conv(inputs, outputs, stride=stride)
        self.second = conv(outputs, outputs)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else conv(inputs, outputs, 1, stride)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        inside = self.second(functional.relu(self.first(x)))
        return functional.relu(inside + self.shortcut(x))


class Inverted(nn.Module):
    """MobileNet's block: 1×1, depthwise 3×3, 1×1."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1, expand: int = 4) -> None:
        super().__init__()
        wide = expand * inputs
        self.body = nn.Sequential(
            conv(inputs, wide, 1),
            nn.ReLU6(),
            conv(wide, wide, 3, stride, wide),
            nn.ReLU6(),
            conv(wide, outputs, 1),
        )
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the block's output."""
        return x + self.body(x) if self.shortcut else self.body(x)


class Head(nn.Module):
    """Mean over the image, then a classifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classify = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        return self.classify(self.pool(x).flatten(1))


class UNet(nn.Module):
    """Two levels down, two up, with skip connections."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        w = width
        self.pool = nn.MaxPool2d(2)
        self.up = nn.Upsample(scale_factor=2)
        self.down = nn.ModuleList([self.two(3, w), self.two(w, 2 * w)])
        self.middle = self.two(2 * w, 4 * w)
        self.rise = nn.ModuleList([self.two(6 * w, 2 * w), self.two(3 * w, w)])
        self.out = nn.Conv2d(w, 4, 1)

    @staticmethod
    def two(inputs: int, outputs: int) -> nn.Module:
        """Return two convolutions with activations."""
        return nn.Sequential(conv(inputs, outputs), nn.ReLU(), conv(outputs, outputs), nn.ReLU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return a map of four classes."""
        skips = []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = self.pool(x)
        x = self.middle(x)
        for block in self.rise:
            x = block(torch.cat((self.up(x), skips.pop()), dim=1))
        return self.out(x)


class Attention(nn.Module):
    """Self-attention by torch's fused operator."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.inside = nn.Linear(width, 3 * width)
        self.outside = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many tokens."""
        batch, tokens, width = x.shape
        split = self.inside(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.outside(mixed.transpose(1, 2).reshape(batch, tokens, width))


class Encoder(nn.Module):
    """A pre-norm transformer block with GELU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.attention = Attention(width, heads)
        wide = 4 * width
        self.feed = nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many tokens."""
        x = x + self.attention(self.norms[0](x))
        return x + self.feed(self.norms[1](x))


class Decoder(nn.Module):
    """A block of a language model: RMS norm, causal attention, gated feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.RMSNorm(width), nn.RMSNorm(width)])
        self.attention = Attention(width, heads, causal=True)
        wide = 8 * width // 3
        self.gate, self.rise = (
            nn.Linear(width, wide, bias=False),
            nn.Linear(width, wide, bias=False),
        )
        self.fall = nn.Linear(wide, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many tokens."""
        x = x + self.attention(self.norms[0](x))
        inside = self.norms[1](x)
        return x + self.fall(functional.silu(self.gate(inside)) * self.rise(inside))


class Mixer(nn.Module):
    """MLP-Mixer's block: one perceptron over tokens, one over channels."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.mix = nn.Sequential(
            nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens)
        )
        self.feed = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return as many tokens."""
        x = x + self.mix(self.norms[0](x).transpose(1, 2)).transpose(1, 2)
        return x + self.feed(self.norms[1](x))


class Patches(nn.Module):
    """Patches of an image as tokens, blocks, and the mean as input of a classifier."""

    def __init__(self, patch: int, width: int, blocks: list[nn.Module], positions: bool) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        tokens = (IMAGE // patch) ** 2
        self.positions = nn.Parameter(torch.randn(1, tokens, width)) if positions else None
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.LayerNorm(width)
        self.classify = nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        x = self.cut(x).flatten(2).transpose(1, 2)
        x = x if self.positions is None else x + self.positions
        return self.classify(self.norm(self.blocks(x)).mean(dim=1))


def resnet() -> nn.Module:
    """Return a small ResNet."""
    return nn.Sequential(
        conv(3, 32, 7, 2),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        Residual(32, 32),
        Residual(32, 64, 2),
        Residual(64, 64),
        Residual(64, 128, 2),
        Residual(128, 128),
        Head(128),
    )


def mobilenet() -> nn.Module:
    """Return a small MobileNet v2."""
    return nn.Sequential(
        conv(3, 16, 3, 2),
        nn.ReLU6(),
        Inverted(16, 16),
        Inverted(16, 24, 2),
        Inverted(24, 24),
        Inverted(24, 48, 2),
        Inverted(48, 48),
        Inverted(48, 96, 2),
        conv(96, 320, 1),
        nn.ReLU6(),
        Head(320),
    )


def vgg() -> nn.Module:
    """Return a small VGG with biases and without norms."""
    layers: list[nn.Module] = []
    inputs = 3
    for outputs, count in ((32, 1), (64, 1), (128, 2), (192, 2)):
        for _ in range(count):
            layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()]
            inputs = outputs
        layers.append(nn.MaxPool2d(2))
    side = IMAGE // 16
    return nn.Sequential(
        *layers, nn.Flatten(), nn.Linear(192 * side * side, 512), nn.ReLU(), nn.Linear(512, 1000)
    )


def encoder() -> nn.Module:
    """Return a text encoder."""
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 256), *(Encoder(256, 4) for _ in range(4)), nn.LayerNorm(256)
    )


def decoder() -> nn.Module:
    """Return a small language model."""
    return nn.Sequential(
        nn.Embedding(VOCABULARY, 192),
        *(Decoder(192, 6) for _ in range(4)),
        nn.RMSNorm(192),
        nn.Linear(192, VOCABULARY, bias=False),
    )


def mixer() -> nn.Module:
    """Return a small MLP-Mixer."""
    return Patches(8, 256, [Mixer(64, 256) for _ in range(4)], positions=False)


def vit() -> nn.Module:
    """Return a small vision transformer."""
    return Patches(4, 192, [Encoder(192, 3) for _ in range(4)], positions=True)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet": resnet,
    "mobilenet": mobilenet,
    "vgg": vgg,
    "unet": UNet,
    "encoder": encoder,
    "decoder": decoder,
    "mixer": mixer,
    "vit": vit,
}
"""Name -> constructor."""


def export(name: str, batch: int) -> torch.export.ExportedProgram:
    """Return the graph of a network for one batch size, with the same weights every time."""
    torch.manual_seed(0)
    if name in ("encoder", "decoder"):
        inputs = torch.randint(VOCABULARY, (batch, TOKENS))
    else:
        inputs = torch.randn(batch, 3, IMAGE, IMAGE)
    return torch.export.export(NETWORKS[name]().eval(), (inputs,))
