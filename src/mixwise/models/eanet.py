"""EANet: semantic segmentation with one external-attention block on the map of a dilated ResNet.

    ResNet, output stride 8 or 16 → 3 × 3 convolution to 512 → external attention → 3 × 3 to 256 → 1 × 1 → upsampling

Source: Guo et al., "Beyond Self-attention: External Attention", arXiv 2105.02358, section 4.2; the backbone is the
ResNet of PyTorch-Encoding (three 3 × 3 convolutions first, stride on the 3 × 3 of a bottleneck, dilations instead of
the last strides), as in the authors' code.

| preset | blocks | parameters (21 classes) | GMACs at 513 × 513 | published mIoU, trained on |
|---|---|---|---|---|
| eanet_r50_os8 | 3, 4, 6, 3 | 34,846,933 | 157.239 | – |
| eanet_r101_os8 | 3, 4, 23, 3 | 53,839,061 | 237.260 | 45.33 ADE20K, 81.7 Cityscapes (both val, quoted by hyper.ai) |
| eanet_r152_os8 | 3, 8, 36, 3 | 69,482,709 | 303.160 | – |
| eanet_r50_os16 | 3, 4, 6, 3 | 34,846,933 | 53.434 | – |
| eanet_r101_os16 | 3, 4, 23, 3 | 53,839,061 | 74.060 | – |
| eanet_r152_os16 | 3, 8, 36, 3 | 69,482,709 | 94.539 | – |

At output stride 8 the block with external attention is 2.49 GMACs of them; re-parameterised it is 0.28. The authors
released weights of ResNet-101 for PASCAL VOC.

Differs: nothing in the outputs. The query layer has a bias that cannot matter, as in the authors' code. Their key and
value memories share a storage until the model is moved; here they are apart, and Mv starts as a copy of Mk. They start
from the mixer's Xavier weights, in the code from a normal of 0.0625 (0.059 and 0.0625 in standard deviation). Only the
network is here: the backbone's ImageNet weights, the loss and the training come with the task of segmentation.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.config import EANetConfig, Size
from mixwise.layers import image_view, token_view
from mixwise.mixers.external_attention import ExternalAttention
from mixwise.model import Model, image_size, register_architecture
from mixwise.models.maps import ConvNorm, fold
from mixwise.models.registry import register_variants

PLANS = {
    8: ((1, 1, (1,)), (2, 1, (1,)), (1, 2, (1,)), (1, 4, (1, 2, 4))),
    16: ((1, 1, (1,)), (2, 1, (1,)), (2, 1, (1,)), (1, 2, (1, 2, 4))),
}
"""Stride, dilation and multi-grid factors of the four stages by output stride."""


class Bottleneck(nn.Module):
    """relu(conv3(relu(conv2(relu(conv1(x))))) + shortcut(x)), norms behind all: (b, c, h, w) → (b, 4·width, …).

    Source: He et al., "Deep Residual Learning", arXiv 1512.03385, section 4.1.
    """

    def __init__(self, inputs: int, width: int, *, stride: int, dilation: int) -> None:
        super().__init__()
        same = stride == 1 and inputs == 4 * width
        self.conv1 = ConvNorm(inputs, width, 1)
        self.conv2 = ConvNorm(width, width, 3, stride=stride, dilation=dilation)
        self.conv3 = ConvNorm(width, 4 * width, 1)
        self.shortcut = nn.Identity() if same else ConvNorm(inputs, 4 * width, 1, stride=stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv3(F.relu(self.conv2(F.relu(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ExternalAttentionBlock(nn.Module):
    """relu(x + norm(W_o EA(W_q x))) on a map (b, dim, h, w): the block of the authors' EANet."""

    def __init__(self, dim: int, *, memory: int = 64, eps: float | None = None) -> None:
        super().__init__()
        self.query: nn.Module = nn.Conv2d(dim, dim, 1)
        self.attention = ExternalAttention(dim, memory=memory, query=False, eps=eps)
        self.out: nn.Module = ConvNorm(dim, dim, 1)
        _start(self)

    def forward(self, x: Tensor) -> Tensor:
        grid = (x.shape[2], x.shape[3])
        y = self.attention(token_view(self.query(x)), grid)
        return F.relu(x + self.out(image_view(y, grid)))

    def fold(self) -> None:
        """W_q into Mk, and W_o and its norm into Mv, in place: two matrices are left, (S, dim) and (dim, S).

        The query bias adds a constant to a slot's logits, which the softmax over tokens removes.
        """
        query: Any = self.query
        out: Any = self.out
        key, value = self.attention.key, self.attention.value
        kernel, shift = out.kernel_shift()
        key.weight.copy_((key.weight.double() @ query.weight[:, :, 0, 0].double()).to(key.weight.dtype))
        value.weight.copy_((kernel[:, :, 0, 0] @ value.weight.double()).to(value.weight.dtype))
        value.bias = nn.Parameter(shift.to(value.weight.dtype))
        self.query, self.out = nn.Identity(), nn.Identity()


@register_architecture(EANetConfig)
class EANet(Model):
    """Images (b, channels, h, w) → logits (b, classes, h, w); any size.

    >>> mixwise.create_model("eanet_r50_os16", width=8, dim=32, classes=5)(torch.randn(1, 3, 65, 49)).shape
    torch.Size([1, 5, 65, 49])
    """

    config: EANetConfig

    def __init__(self, config: EANetConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        convs = [(config.channels, width, 2), (width, width, 1), (width, 2 * width, 1)]
        layers = [m for i, o, s in convs for m in (ConvNorm(i, o, 3, stride=s), nn.ReLU())]
        self.stem = nn.Sequential(*layers, nn.MaxPool2d(3, stride=2, padding=1))
        inputs, stages = 2 * width, []
        for i, (depth, plan) in enumerate(zip(config.blocks, PLANS[config.output_stride], strict=True)):
            stages.append(_stage(inputs, width * 2**i, depth, *plan))
            inputs = 4 * width * 2**i
        self.stages = nn.Sequential(*stages)
        for module in (self.stem, self.stages):
            _start(module)
        self.reduce = ConvNorm(inputs, config.dim, 3)
        self.block = ExternalAttentionBlock(config.dim, memory=config.memory, eps=config.eps)
        self.refine = ConvNorm(config.dim, config.hidden, 3)
        self.dropout = nn.Dropout2d(config.dropout)
        self.head = nn.Conv2d(config.hidden, config.classes, 1) if config.classes else nn.Identity()
        if config.form == "reparameterized":
            with torch.no_grad():
                self.fold()

    def features(self, images: Tensor) -> Tensor:
        """Images (b, channels, h, w) → the backbone's map (b, 32 · width, h / output stride, …), rounded up."""
        image_size(self.config, images)
        return self.stages(self.stem(images.contiguous(memory_format=torch.channels_last)))

    def forward(self, images: Tensor) -> Tensor:
        x = self.block(F.relu(self.reduce(self.features(images))))
        x = self.head(self.dropout(F.relu(self.refine(x))))
        if not self.config.classes:
            return x
        return F.interpolate(x, size=images.shape[2:], mode="bilinear", align_corners=True)

    def fold(self) -> None:
        """Every batch norm into the convolution before it, and the block's 1 × 1 convolutions into its memories."""
        self.block.fold()
        fold(self)


def _stage(inputs: int, width: int, depth: int, stride: int, rate: int, grids: tuple[int, ...]) -> nn.Sequential:
    """A stage of dilation `rate`: half of it in the first block, times the multi-grid factors in the others."""
    blocks = []
    for i in range(depth):
        dilation = max(1, rate // 2) if i == 0 else rate * grids[min(i, len(grids) - 1)]
        blocks.append(Bottleneck(inputs, width, stride=1 if i else stride, dilation=dilation))
        inputs = 4 * width
    return nn.Sequential(*blocks)


def _start(module: nn.Module) -> None:
    """Convolutions from N(0, 2 / (k² · outputs)), as in the authors' code."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")


def eanet(
    *,
    name: str = "eanet",
    image: Size = (513, 513),
    channels: int = 3,
    classes: int = 21,
    blocks: tuple[int, int, int, int] = (3, 4, 6, 3),
    width: int = 64,
    output_stride: Literal[8, 16] = 8,
    dim: int = 512,
    memory: int = 64,
    eps: float | None = 1e-9,
    hidden: int = 256,
    dropout: float = 0.1,
) -> EANetConfig:
    """The config of an EANet; the fields of `EANetConfig`."""
    return EANetConfig.parse(
        {
            "name": name,
            "image": image,
            "channels": channels,
            "classes": classes,
            "blocks": blocks,
            "width": width,
            "output_stride": output_stride,
            "dim": dim,
            "memory": memory,
            "eps": eps,
            "hidden": hidden,
            "dropout": dropout,
        }
    )


BLOCKS = {"r50": (3, 4, 6, 3), "r101": (3, 4, 23, 3), "r152": (3, 8, 36, 3)}
"""Blocks of the stages by the name of the ResNet."""

VARIANTS: dict[str, dict[str, Any]] = {
    f"eanet_{net}_os{stride}": {"blocks": blocks, "output_stride": stride}
    for stride in (8, 16)
    for net, blocks in BLOCKS.items()
}
register_variants(eanet, VARIANTS)
