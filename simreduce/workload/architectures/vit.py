"""Vision transformers (Dosovitskiy et al. 2020) as torchvision has them: images of 224 x 224 in
patches of 16 x 16, 1000 classes. A sample is an image: 196 patches and the token of the class.
"""

from __future__ import annotations

from typing import NamedTuple

from simreduce.workload.architectures.shapes import (
    block,
    gradients,
    layer,
    linear,
    norm,
    products,
)
from simreduce.workload.workload import Kept, Layer

CLASSES = 1000
_PATCHES = (224 // 16) ** 2
TOKENS = _PATCHES + 1


class Vit(NamedTuple):
    """A ViT model of `blocks` blocks and that width."""

    blocks: int
    width: int

    def layers(self, tokens: int) -> list[Layer]:
        """The layers for an image, which has `tokens` tokens."""
        h = self.width
        patches = linear("conv_proj", 3 * 16 * 16, h)
        shapes = [("class_token", (h,)), *patches, ("encoder.pos_embedding", (tokens * h,))]
        # Nobody needs the gradient of an image, so that backward is no more than forward.
        once = products(patches, _PATCHES)
        kept = Kept(0.0, 2.0 * _PATCHES * 3 * 16 * 16 + tokens * h)  # the image, and a mask
        found = [Layer("embeddings", gradients("embeddings", shapes), once, once, kept=kept)]
        for i in range(self.blocks):
            heads = [*norm("ln_1", h), *linear("in_proj", h, 3 * h), *linear("out_proj", h, h)]
            mlp = [*norm("ln_2", h), *linear("mlp.0", h, 4 * h), *linear("mlp.3", 4 * h, h)]
            names = f"encoder.{i}.self_attention", f"encoder.{i}.mlp"
            found += block(names, (heads, mlp), tokens, h)
        head = [*norm("ln", h), *linear("head", h, CLASSES)]
        ends = Kept(2.0 * tokens * h, 2.0 * (tokens + 1) * h)
        return [*found, layer("heads", head, 1, kept=ends)]
