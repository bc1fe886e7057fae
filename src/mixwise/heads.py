"""From pooled features (b, c) to logits (b, classes)."""

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.folding import absorb_before
from mixwise.layers import activation


class Head(nn.Module):
    """Pooled features (b, c) → logits (b, classes)."""

    def fold_input(self, scale: Tensor | None, shift: Tensor | None) -> None:
        """Absorb a factor and a summand per channel of the features, in place."""
        raise NotImplementedError


class LinearHead(nn.Linear, Head):
    """One linear layer.

    Args:
        std: of the truncated normal that the weights start from; 0: zero; None: Xavier uniform.
        start: the bias at the start; -6.9 = -ln 1000 in big_vision's ImageNet recipes.
    """

    def __init__(self, dim: int, classes: int, *, std: float | None = 0.02, start: float = 0.0) -> None:
        super().__init__(dim, classes)
        if std is None:
            nn.init.xavier_uniform_(self.weight)
        elif std < 0:
            raise UsageError(f"the head's std must not be negative, got {std}")
        else:
            nn.init.trunc_normal_(self.weight, std=std) if std else nn.init.zeros_(self.weight)
        nn.init.constant_(self.bias, start)

    def fold_input(self, scale: Tensor | None, shift: Tensor | None) -> None:
        absorb_before(self, scale, shift)


class HiddenHead(Head):
    """fc2(act(fc1(x))): the read-out that the first ViT was pre-trained with, and by its counts the gMLP paper's.

    Source: Dosovitskiy et al., "ViT", arXiv 2010.11929, section 3.1; vit_jax calls fc1 `pre_logits`.

    Args:
        hidden: width in between; None: c.
        act: name of the activation.
        std: of fc2 at the start, as of a linear head.
    """

    def __init__(
        self, dim: int, classes: int, *, hidden: int | None = None, act: str = "tanh", std: float | None = 0.02
    ) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden or dim)
        self.act = activation(act)
        self.fc2 = LinearHead(hidden or dim, classes, std=std)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.act(self.fc1(x)))

    def fold_input(self, scale: Tensor | None, shift: Tensor | None) -> None:
        absorb_before(self.fc1, scale, shift)


class MLPHead(Head):
    """fc2(dropout(norm(relu(fc1(x))²))), hidden width `ratio` · c: the head of ConvFormer and CAFormer.

    Source: Yu et al., "MetaFormer Baselines for Vision", arXiv 2210.13452. The authors' code has eps 1e-5, timm 1e-6.

    Args:
        ratio: hidden width over c.
        eps: of the norm.
        dropout: behind the norm, as in the authors' code.
        input_dropout: in front of fc1, as in timm.
    """

    def __init__(
        self,
        dim: int,
        classes: int,
        *,
        ratio: float = 4.0,
        eps: float = 1e-5,
        dropout: float = 0.0,
        input_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        hidden = round(ratio * dim)
        self.fc1 = nn.Linear(dim, hidden)
        self.norm = nn.LayerNorm(hidden, eps=eps)
        self.dropout, self.input_dropout = dropout, input_dropout
        self.fc2 = LinearHead(hidden, classes)
        nn.init.trunc_normal_(self.fc1.weight, std=0.02)
        nn.init.zeros_(self.fc1.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.fc1(F.dropout(x, self.input_dropout, self.training))).square()
        return self.fc2(F.dropout(self.norm(x), self.dropout, self.training))

    def fold_input(self, scale: Tensor | None, shift: Tensor | None) -> None:
        absorb_before(self.fc1, scale, shift)
        if self.norm.elementwise_affine:
            absorb_before(self.fc2, self.norm.weight.double(), self.norm.bias.double())
            self.norm = nn.LayerNorm(self.norm.normalized_shape, eps=self.norm.eps, elementwise_affine=False)


class DistilledHead(Head):
    """One linear layer per prefix token (b, 2, c); the answer is the mean of the two logits.

    Source: Touvron et al., "DeiT", arXiv 2012.12877, section 4. `both` gives them apart, for a loss with a teacher.
    `std` is that of both at the start, as of a linear head.
    """

    def __init__(self, dim: int, classes: int, *, std: float | None = 0.02) -> None:
        super().__init__()
        self.label = LinearHead(dim, classes, std=std)
        self.teacher = LinearHead(dim, classes, std=std)

    def both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits from the class token and from the distillation token."""
        return self.label(x[:, 0]), self.teacher(x[:, 1])

    def forward(self, x: Tensor) -> Tensor:
        label, teacher = self.both(x)
        return (label + teacher) / 2

    def fold_input(self, scale: Tensor | None, shift: Tensor | None) -> None:
        absorb_before(self.label, scale, shift)
        absorb_before(self.teacher, scale, shift)


HEADS: dict[str, Any] = {"distilled": DistilledHead, "hidden": HiddenHead, "linear": LinearHead, "mlp": MLPHead}
"""Every head by name."""
