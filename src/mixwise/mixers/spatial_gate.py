"""The gMLP block: a channel MLP with a spatial gating unit in its middle."""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.errors import UsageError, unknown
from mixwise.layers import Grid, activation, check_tokens, gelu_form, token_linear
from mixwise.mixers.base import Mixer, ResizeMethod, positive, register
from mixwise.mixers.linear import resize_matrix


class TinyAttention(nn.Module):
    """One narrow attention head, (b, n, c) → (b, n, out). Source: arXiv 2105.08050, section 4.3, figure 6."""

    def __init__(self, dim: int, width: int, out: int, *, causal: bool, bias: bool) -> None:
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * width, bias=False)
        self.out = nn.Linear(width, out, bias=bias)
        self.causal = causal

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=3)
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).squeeze(1))


@register("spatial_gate")
class SpatialGate(Mixer):
    """Widen, let one half gate the other across tokens, narrow: a whole gMLP block between norm and residual.

        z = gelu(U x + b_U) = [u, v],   y = V (u ⊙ (W norm(v) + b + tiny(x)))        U (f, c), W (n, n), V (c, f/2)

    Source: Liu et al., "Pay Attention to MLPs", arXiv 2105.08050, sections 2 and 2.1; the gates of table 3. A gate
    starts as u ⊙ 1 (W near zero, b one), an added one as u + 0; a linear one starts with W of variance 1/n.

    Another grid: W and b by the rule of `linear`, for "smooth" (auto) and "expand". Toeplitz and causal gates are for
    text and are refused.

    Differs from the paper: V has no bias by default; the paper's vision models have ratio=6 and out_bias=True.

    Args:
        ratio: f over c.
        split: False: z is gated by itself, u = v = z, and V is (c, f).
        gate: how u meets the spatial projection: "multiply", "add", or "linear" without u, which needs split=False.
        tiny_attention: width of a one-head attention on x that is added to the gate (aMLP: 64); 0: none. Its bias is a
            constant per channel, so it is there only where the gate multiplies.
        toeplitz: W[i, j] = w[n - 1 + j - i], 2n - 1 weights, as in the paper's language models.
        causal: nothing comes from later tokens: W without its upper triangle, attention masked.
        norm_eps: of the norm in the gate. The norm has a scale and a shift per channel.
        gelu: "erf" or "tanh".
        gate_act: of the gate; the paper has none, a common port offers tanh.
        init: how W starts: "normal" with deviation 1e-6 (timm), "uniform" in ±1e-3/n (lucidrains), "zeros" (gpt-neox).
            The paper says near zero.
        out_bias: bias of V.

    Shapes: (b, n, c) → (b, n, c), n as built. Raises `UsageError` for a linear gate with split.

    >>> SpatialGate(8, tokens=12)(torch.randn(2, 12, 8), (3, 4)).shape
    torch.Size([2, 12, 8])
    """

    fixed_grid = True
    writers = ("fc2",)

    def __init__(
        self,
        dim: int,
        tokens: int | None = None,
        grid: Grid | None = None,
        *,
        ratio: float = 2.0,
        split: bool = True,
        gate: Literal["multiply", "add", "linear"] = "multiply",
        tiny_attention: int = 0,
        toeplitz: bool = False,
        causal: bool = False,
        norm_eps: float = 1e-5,
        gelu: Literal["erf", "tanh"] = "erf",
        gate_act: Literal["identity", "tanh"] = "identity",
        init: Literal["normal", "uniform", "zeros"] = "normal",
        out_bias: bool = False,
    ) -> None:
        super().__init__(dim, tokens, grid)
        assert tokens is not None
        if gate not in ("multiply", "add", "linear"):
            raise unknown("gate", gate, ("multiply", "add", "linear"), "spatial_gate")
        if gate == "linear" and split:
            raise UsageError("spatial_gate: gate='linear' leaves one half unused: pass split=False")
        starts = {"normal": 1e-6, "uniform": 1e-3 / tokens, "zeros": 0.0}
        if init not in starts:
            raise unknown("init", init, starts, "spatial_gate")
        if gate == "linear" and init != "normal":
            raise UsageError("spatial_gate: a linear gate starts with W of variance 1/n, so init belongs to the others")
        if tiny_attention < 0:
            raise UsageError(f"spatial_gate: tiny_attention is a width, 0 for none; got {tiny_attention}")
        positive("ratio", ratio)
        positive("norm_eps", norm_eps)
        width = max(1, round(dim * ratio / (2 if split else 1)))
        self.split, self.gate, self.causal = split, gate, causal
        self.gelu, self.act = gelu_form(gelu), activation(gate_act)
        self.fc1 = nn.Linear(dim, 2 * width if split else width)
        self.norm = nn.LayerNorm(width, eps=norm_eps)
        self.weight = nn.Parameter(torch.empty(2 * tokens - 1) if toeplitz else torch.empty(tokens, tokens))
        self.bias = nn.Parameter(torch.full((tokens,), float(gate == "multiply")))
        self.tiny = None
        if tiny_attention:
            self.tiny = TinyAttention(dim, tiny_attention, width, causal=causal, bias=gate == "multiply")
        self.fc2 = nn.Linear(width, dim, bias=out_bias)
        self.readers = ("fc1", "tiny.qkv") if tiny_attention else ("fc1",)
        if init == "uniform":
            nn.init.uniform_(self.weight, -starts[init], starts[init])
        else:
            nn.init.normal_(self.weight, std=tokens**-0.5 if gate == "linear" else starts[init])
        nn.init.xavier_uniform_(self.fc1.weight)
        nn.init.xavier_uniform_(self.fc2.weight)

    def spatial_weight(self, tokens: int | None = None) -> Tensor:
        """W (n, n), however it is stored, or its part for the first so many tokens."""
        n = self.bias.shape[0]
        weight = self.weight.unfold(0, n, 1).flip(0) if self.weight.dim() == 1 else self.weight
        weight = weight if tokens in (None, n) else weight[:tokens, :tokens]
        return weight.tril() if self.causal else weight

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        check_tokens(x, self.bias.shape[0])
        return self.mix(x)

    def mix(self, x: Tensor) -> Tensor:
        """What `forward` does, of n tokens or of fewer, which then are the first ones."""
        z = F.gelu(self.fc1(x), approximate=self.gelu)
        u, v = z.chunk(2, dim=2) if self.split else (z, z)
        v = token_linear(self.norm(v), self.spatial_weight(x.shape[1]), self.bias[: x.shape[1]])
        v = self.act(v if self.tiny is None else v + self.tiny(x))
        if self.gate == "multiply":
            v = u * v
        elif self.gate == "add":
            v = u + v
        return self.fc2(v)

    def resize(self, old: Grid, new: Grid, *, prefix: int = 0, method: ResizeMethod = "auto") -> dict[str, Any]:
        if self.weight.dim() == 1 or self.causal:
            raise UsageError("spatial_gate: toeplitz and causal gates belong to sequences and have no rule for a grid")
        resize_matrix(self.weight, self.bias, old, new, prefix=prefix, method=method)
        return {}
