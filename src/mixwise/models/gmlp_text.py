"""gMLP and aMLP for text, masked or causal: ids (b, n) → logits (b, n, vocabulary).

    embedding → 18–144 × [x + V (u ⊙ (W norm(v) + b))], [u, v] = gelu(U norm(x)) → norm → hidden layer → logits

Source: Liu et al., "Pay Attention to MLPs", arXiv 2105.08050, section 4 and tables 4 to 6. No positions.

| preset          | depth | dim  | f    | attention | length | parameters  | GMACs   | masked perplexity (paper)  |
|-----------------|-------|------|------|-----------|--------|-------------|---------|----------------------------|
| gmlp_text_base  | 48    | 512  | 3072 | –         | 512    | 130,369,232 | 85.832  | 4.28 on C4/English         |
| gmlp_text_large | 96    | 768  | 3072 | –         | 512    | 365,898,656 | 225.486 | 3.32                       |
| gmlp_text_xlarge| 144   | 1024 | 4096 | –         | 512    | 941,666,416 | 558.480 | 2.89                       |
| amlp_text_base  | 36    | 512  | 3072 | 64        | 512    | 109,080,284 | 71.337  | 3.95                       |
| amlp_text_large | 72    | 768  | 3072 | 128       | 512    | 316,224,440 | 195.287 | 3.19                       |
| gmlp_text_18    | 18    | 512  | 3072 | –         | 128    | 59,293,166  | 8.020   | 5.25 on C4/RealNews        |
| gmlp_text_36    | 36    | 512  | 3072 | –         | 128    | 101,905,628 | 13.908  | 4.35                       |
| gmlp_text_72    | 72    | 512  | 3072 | –         | 128    | 187,130,552 | 25.686  | 3.79                       |
| gmlp_text_144   | 144   | 512  | 3072 | –         | 128    | 357,580,400 | 49.241  | 3.43                       |

GMACs are for one input of full length with logits for every token. The perplexities of the two halves of the table
cannot be compared: the data differ. `gmlp_text` and `gmlp_text_causal` are no models of the paper but of the port by
lucidrains, in the sizes of its documentation (512 wide, f = 2048, 6 blocks, 256 tokens): a full W, logits with a matrix
of their own, all eps 1e-5. Its checkpoints become these, in whatever size they have.

Differs: the paper states neither the head nor whether the embedding is shared. Shared, with a bias, behind BERT's
hidden layer (linear, GELU, layer norm), it gives the paper's counts with a vocabulary of 32,000. Their tiny attention
may have biases in front of the softmax, which is less than 0.01 % of the parameters; this one has none. The causal
form is not in the paper: W loses its upper triangle and the attention is masked, as in the ports. What lucidrains calls
`circulant_matrix` is not the paper's Toeplitz matrix: it has n weights, lets every token see earlier ones only, and
cannot be converted.
"""

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.blocks import Branch
from mixwise.config import GMLPTextConfig
from mixwise.errors import UsageError, unknown
from mixwise.layers import DropPath, Grid, gelu_form
from mixwise.mixers import keyword_options
from mixwise.mixers.spatial_gate import SpatialGate
from mixwise.model import Model, register_architecture
from mixwise.models.registry import register_variants
from mixwise.norms import norm


class TextGate(SpatialGate):
    """A spatial gate across the tokens of a text.

    It takes fewer tokens than it was built for, with the first part of W and b, where that means the same: where
    nothing comes from later tokens (causal) and where W knows distances only (Toeplitz).
    """

    def forward(self, x: Tensor, grid: Grid) -> Tensor:
        n, most = x.shape[1], self.bias.shape[0]
        shorter = self.causal or self.weight.dim() == 1
        if n > most or (n < most and not shorter):
            raise UsageError(
                f"the weights are for texts of {'up to ' if shorter else ''}{most} tokens and the model was given {n}: "
                f"{'cut' if n > most else 'pad'} them, or build it with length={n}"
            )
        return self.mix(x)


class HiddenLayer(nn.Module):
    """norm(gelu(fc(x))), (b, n, c) → (b, n, c): what stands in front of the logits in BERT, arXiv 1810.04805."""

    def __init__(self, dim: int, *, gelu: str, eps: float) -> None:
        super().__init__()
        self.fc = nn.Linear(dim, dim)
        self.gelu = gelu_form(gelu)
        self.norm = norm("layer", dim, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(F.gelu(self.fc(x), approximate=self.gelu))


class Logits(nn.Module):
    """E x + b for every token: (b, n, c) → (b, n, vocabulary), E the embedding or, untied, a matrix of its own."""

    def __init__(self, dim: int, vocabulary: int, *, tied: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocabulary, dim))
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        if self.weight is not None:
            nn.init.normal_(self.weight, std=0.02)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        return F.linear(x, embedding if self.weight is None else self.weight, self.bias)


@register_architecture(GMLPTextConfig)
class GMLPText(Model):
    """A gMLP for text built from its config.

    Shapes: ids (b, n) integer, each below the vocabulary → logits (b, n, vocabulary). n is the `length` of the config;
    causal and Toeplitz models take fewer tokens too, with the first part of W. Raises `UsageError` for another shape.

    >>> model = mixwise.create_model("gmlp_text_base", vocabulary=50, length=12, dim=16, depth=2)
    >>> model(torch.zeros(2, 9, dtype=torch.long)).shape
    torch.Size([2, 9, 50])
    """

    config: GMLPTextConfig

    def __init__(self, config: GMLPTextConfig) -> None:
        super().__init__()
        self.config = config
        dim, eps = config.dim, config.norm_eps
        allowed = keyword_options(TextGate)
        for option in config.gate:
            if option not in allowed:
                raise unknown("option", option, allowed, "gate")
        self.embed = nn.Embedding(config.vocabulary, dim)
        nn.init.normal_(self.embed.weight, std=0.02)
        self.blocks = nn.ModuleList(
            Branch(
                norm("layer", dim, eps=eps),
                TextGate(dim, config.length, (config.length,), **config.gate),
                dim=dim,
                drop_path=DropPath(config.drop_path),
            )
            for _ in range(config.depth)
        )
        self.norm = norm("layer", dim, eps=eps)
        gelu = config.gate.get("gelu", allowed["gelu"])
        self.hidden = HiddenLayer(dim, gelu=gelu, eps=eps) if config.head == "hidden" else nn.Identity()
        self.out = Logits(dim, config.vocabulary, tied=config.tied)

    def features(self, ids: Tensor) -> Tensor:
        """Ids (b, n) → normalised tokens (b, n, c)."""
        if ids.dim() != 2 or ids.is_floating_point():
            raise UsageError(
                f"{self.config.name} takes integer ids (batch, tokens), got {ids.dtype} of shape {tuple(ids.shape)}"
            )
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, (x.shape[1],))
        return self.norm(x)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.hidden(self.features(ids)), self.embed.weight)

    def example(self, batch: int = 1) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(self.config.vocabulary, (batch, self.config.length), generator=generator)

    def fold(self) -> None:
        """There is nothing to fold."""


def gmlp_text(
    *,
    name: str = "gmlp_text",
    vocabulary: int = 32000,
    length: int = 512,
    dim: int = 512,
    depth: int = 48,
    ratio: float = 6.0,
    tiny_attention: int = 0,
    toeplitz: bool = True,
    causal: bool = False,
    split: bool = True,
    gate: Literal["multiply", "add", "linear"] = "multiply",
    gelu: Literal["erf", "tanh"] = "erf",
    gate_act: Literal["identity", "tanh"] = "identity",
    gate_init: Literal["normal", "uniform", "zeros"] = "normal",
    gate_eps: float = 1e-5,
    norm_eps: float = 1e-6,
    head: Literal["linear", "hidden"] = "hidden",
    tied: bool = True,
    drop_path: float = 0.0,
) -> GMLPTextConfig:
    """The config of a gMLP for text.

    Args:
        vocabulary: number of token ids.
        length: tokens that the weights are for.
        ratio: width of the channel MLP over dim, f / d.
        tiny_attention: width of the attention that is added to the gate; 0: none.
        toeplitz: W has one weight per distance, 2 · length - 1 in all; False: one for each pair of places.
        causal: nothing comes from later tokens.
        split, gate: the gates of the paper's table 3; its other three have split=False and ratio=4.
        gelu, gate_act, gate_init, gate_eps: of the gate; the GELU also of the hidden layer.
        head: hidden: a layer as wide as the model in front of the logits.
        tied: whether the matrix of the logits is the embedding.
        drop_path: the same for every block.
    """
    options = {
        "ratio": ratio,
        "tiny_attention": tiny_attention,
        "toeplitz": toeplitz,
        "causal": causal,
        "split": split,
        "gate": gate,
        "gelu": gelu,
        "gate_act": gate_act,
        "init": gate_init,
        "norm_eps": gate_eps,
        "out_bias": True,
    }
    return GMLPTextConfig.parse(
        {
            "name": name,
            "vocabulary": vocabulary,
            "length": length,
            "dim": dim,
            "depth": depth,
            "gate": options,
            "norm_eps": norm_eps,
            "head": head,
            "tied": tied,
            "drop_path": drop_path,
        }
    )


PORT: dict[str, Any] = {
    "vocabulary": 20000,
    "length": 256,
    "depth": 6,
    "ratio": 4.0,
    "toeplitz": False,
    "gate_init": "uniform",
    "norm_eps": 1e-5,
    "head": "linear",
    "tied": False,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gmlp_text": PORT,
    "gmlp_text_causal": PORT | {"causal": True},
    "gmlp_text_base": {},
    "gmlp_text_large": {"depth": 96, "dim": 768, "ratio": 4.0},
    "gmlp_text_xlarge": {"depth": 144, "dim": 1024, "ratio": 4.0},
    "amlp_text_base": {"depth": 36, "tiny_attention": 64},
    "amlp_text_large": {"depth": 72, "dim": 768, "ratio": 4.0, "tiny_attention": 128},
    **{f"gmlp_text_{depth}": {"depth": depth, "length": 128} for depth in (18, 36, 72, 144)},
}
register_variants(gmlp_text, VARIANTS)
