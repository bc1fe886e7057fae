"""The separable convolution of ConvFormer."""

from typing import Literal

from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.layers import Grid, activation, image_view, token_view
from mixwise.mixers.base import Mixer, positive, register


@register("separable_conv")
class SeparableConv(Mixer):
    """Widen each token, convolve each channel by itself, narrow again.

        y = W2 dwconv_k(act(W1 x))        W1 (ratio c, c), W2 (c, ratio c), zero padding

    Source: Sandler et al., "MobileNetV2", arXiv 1801.04381, as used in ConvFormer: Yu et al., "MetaFormer Baselines for
    Vision", arXiv 2210.13452, section 3.3.

    Differs from the paper: nothing.

    Args:
        ratio: hidden width over c.
        kernel: k, odd.
        act: name of the activation.

    Shapes: (b, h·w, c) → (b, h·w, c). Raises `UsageError` for an even k.

    >>> SeparableConv(8, kernel=3)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    spatial = True
    readers = ("fc1",)
    writers = ("fc2",)

    def __init__(
        self,
        dim: int,
        tokens: int | None = None,
        grid: Grid | None = None,
        *,
        ratio: float = 2.0,
        kernel: int = 7,
        act: Literal["gelu", "gelu_tanh", "identity", "relu", "silu", "star_relu"] = "star_relu",
    ) -> None:
        super().__init__(dim, tokens, grid)
        if kernel < 1 or kernel % 2 == 0:
            raise UsageError(f"separable_conv: kernel must be odd, got {kernel}")
        positive("ratio", ratio)
        hidden = max(1, round(dim * ratio))
        self.fc1 = nn.Linear(dim, hidden, bias=False)
        self.act = activation(act)
        self.conv = nn.Conv2d(hidden, hidden, kernel, padding=kernel // 2, groups=hidden, bias=False)
        self.fc2 = nn.Linear(hidden, dim, bias=False)
        nn.init.xavier_uniform_(self.fc1.weight)
        nn.init.xavier_uniform_(self.fc2.weight)

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        x = self.conv(image_view(self.act(self.fc1(x)), grid))
        return self.fc2(token_view(x))
