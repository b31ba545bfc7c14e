"""Models of torchvision, and a transformer, written anew: parameters have the same shapes, in the
same order, and are used in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn


def _conv_norm(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


class _Mean(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


class _Bottleneck(nn.Module):
    """Three convolutions, and a fourth beside them where the shape changes."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.conv1, self.bn1 = _conv_norm(inputs, width, 1)
        self.conv2, self.bn2 = _conv_norm(width, width, 3, stride)
        self.conv3, self.bn3 = _conv_norm(width, outputs, 1)
        changes = stride > 1 or inputs != outputs
        self.downsample = (
            nn.Sequential(*_conv_norm(inputs, outputs, 1, stride)) if changes else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.bn1(self.conv1(x)))
        y = torch.relu(self.bn2(self.conv2(y)))
        return torch.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def resnet50() -> nn.Module:
    """161 parameters, 25,557,032 elements."""
    layers: list[nn.Module] = [*_conv_norm(3, 64, 7, 2), nn.ReLU()]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(_Bottleneck(inputs, width, stride if block == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, _Mean(), nn.Linear(2048, 1000))


class _Vgg(nn.Module):
    """Convolutions with biases, by torchvision's name `features`, and three linear layers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
            for _ in range(count):
                layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.ReLU()]
                inputs = width
            layers.append(nn.MaxPool2d(2))
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten())
        self.classifier = nn.Sequential(
            nn.Linear(25088, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(),
            nn.Linear(4096, 1000),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


def vgg16() -> nn.Module:
    """32 parameters, 138,357,544 elements."""
    return _Vgg()


class _Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
        super().__init__()
        wide = inputs * factor
        expand = [*_conv_norm(inputs, wide, 1), nn.ReLU6()] if factor > 1 else []
        depth = [*_conv_norm(wide, wide, 3, stride, wide), nn.ReLU6()]
        self.conv = nn.Sequential(*expand, *depth, *_conv_norm(wide, outputs, 1))
        self.adds = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(x) if self.adds else self.conv(x)


def mobilenet_v2() -> nn.Module:
    """158 parameters, 3,504,872 elements."""
    layers: list[nn.Module] = [*_conv_norm(3, 32, 3, 2), nn.ReLU6()]
    inputs = 32
    table = (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)
    for factor, width, blocks, stride in (*table, (6, 160, 3, 2), (6, 320, 1, 1)):
        for block in range(blocks):
            layers.append(_Inverted(inputs, width, stride if block == 0 else 1, factor))
            inputs = width
    head = [*_conv_norm(320, 1280, 1), nn.ReLU6(), _Mean(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, *head)


class Block(nn.Module):
    """A block of GPT-2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1, self.c_attn = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.c_proj, self.ln_2 = nn.Linear(width, width), nn.LayerNorm(width)
        self.c_fc, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.c_attn(self.ln_1(x)).chunk(3, -1)
        x = x + self.c_proj(nn.functional.scaled_dot_product_attention(query, key, value))
        return x + self.down(nn.functional.gelu(self.c_fc(self.ln_2(x))))


class _Gpt(nn.Module):
    """Its output is tied to the word embedding."""

    def __init__(self, blocks: int, width: int, words: int) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(64, width)
        self.h = nn.Sequential(*(Block(width) for _ in range(blocks)))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.wte(x) + self.wpe(torch.arange(x.shape[1]))
        return self.ln_f(self.h(x)) @ self.wte.weight.T


def transformer() -> nn.Module:
    """52 parameters, 13,681,664 elements."""
    return _Gpt(4, 512, 2000)


class _Scaled(nn.Module):
    """A block of ConvNeXt: lists its scale first, and uses it last."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer_scale = nn.Parameter(torch.full((width,), 0.1))
        self.block = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer_scale * self.block(x)


def encoder() -> nn.Module:
    """PyTorch's own encoder, which lists its norms last and never calls `out_proj`."""
    layer = nn.TransformerEncoderLayer(256, 4, 512, dropout=0.0, batch_first=True)
    stack = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(2000, 256), stack, _Scaled(256), _Scaled(256))


def _image() -> Tensor:
    return torch.randn(2, 3, 32, 32)


def _words() -> Tensor:
    return torch.randint(0, 2000, (2, 16))


MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "resnet50": (resnet50, _image),
    "vgg16": (vgg16, _image),
    "mobilenet_v2": (mobilenet_v2, _image),
    "transformer": (transformer, _words),
    "encoder": (encoder, _words),
}
"""How to make each model, and a batch for it."""
