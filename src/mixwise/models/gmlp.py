"""gMLP and aMLP: one branch a block, a channel MLP in whose middle half the channels gate the rest across tokens.

    patches → 30 × [x + V (u ⊙ (W norm(v) + b))], [u, v] = gelu(U norm(x)) → norm → read-out

Source: Liu et al., "Pay Attention to MLPs", arXiv 2105.08050, section 3 and tables 1, 2 and 7; aMLP: section 4.3.

| preset              | read-out        | dim | parameters | GMACs  | ImageNet-1k top-1                          |
|---------------------|-----------------|-----|------------|--------|--------------------------------------------|
| gmlp_ti16_224       | mean            | 128 | 5,867,328  | 1.329  | –                                          |
| gmlp_s16_224        | mean            | 256 | 19,422,656 | 4.392  | 79.65 (timm's weights ra3_in1k, its table) |
| gmlp_b16_224        | mean            | 512 | 73,075,392 | 15.720 | –                                          |
| gmlp_ti16_224_paper | token and layer | 128 | 5,895,788  | 1.338  | 72.3 (paper, table 2)                      |
| gmlp_s16_224_paper  | token and layer | 256 | 19,500,524 | 4.419  | 79.6 (paper)                               |
| gmlp_b16_224_paper  | token and layer | 512 | 73,350,380 | 15.810 | 81.6 (paper)                               |
| amlp_ti16_224       | mean            | 128 | 7,353,408  | 1.766  | –                                          |
| amlp_s16_224        | mean            | 256 | 22,394,816 | 5.118  | –                                          |
| amlp_b16_224        | mean            | 512 | 79,019,712 | 17.024 | –                                          |
| gmlp                | as asked        | 256 | 19,422,656 | 4.392  | – (for other sizes; as S where not named)  |

All have patches of 16 pixels and 30 blocks, and are trained on ImageNet-1k at 224 pixels only. The authors released
neither code nor weights. The aMLPs are the gMLPs with a tiny attention of width 64: the paper has it in text only.

Differs: the paper says of its read-out only that it is ViT's. Its counts of parameters fit a class token among the
tokens and a hidden layer (tanh) in the head, and nothing else; timm takes the mean. So there are both. timm's layer
norms have eps 1e-6, the one in the gate 1e-5; lucidrains' all 1e-5 (the converter sets it), with f = 4 · dim unless
asked for 6. Stochastic depth: the paper gives the probability to keep a block (1, 0.95 and 0.8 for Ti, S and B) and not
how it is spread: constant here, per sample and rescaled as in timm. lucidrains drops whole layers for the batch without
rescaling (`drop_path_batch`, `drop_path_rescale`). The paper says of the start of U, V and stem nothing: here Xavier
uniform and LeCun normal as in timm, the biases of U and V as in torch's linear layers (timm: near zero). The weights
stay with the number of tokens that they are built for.
"""

from typing import Any, Literal

from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig, pair
from mixwise.errors import unknown
from mixwise.models.registry import register_variants

READ_OUTS: dict[str, dict[str, Any]] = {
    "mean": {},
    "token": {"class_token": True, "pool": "token"},
    "hidden": {"class_token": True, "pool": "token", "head": "hidden"},
}
"""What each read-out means for the backbone."""


def gmlp(
    *,
    name: str = "gmlp",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (16, 16),
    dim: int = 256,
    depth: int = 30,
    ratio: float = 6.0,
    tiny_attention: int = 0,
    read_out: Literal["mean", "token", "hidden"] = "mean",
    toeplitz: bool = False,
    causal: bool = False,
    gelu: Literal["erf", "tanh"] = "erf",
    gate_act: Literal["identity", "tanh"] = "identity",
    gate_init: Literal["normal", "uniform", "zeros"] = "normal",
    gate_eps: float = 1e-5,
    norm_eps: float = 1e-6,
    drop_path: float = 0.0,
    drop_path_schedule: Literal["constant", "linear"] = "constant",
    drop_path_batch: bool = False,
    drop_path_rescale: bool = True,
) -> BackboneConfig:
    """The config of a gMLP.

    Args:
        ratio: width of the channel MLP over dim, f / d.
        tiny_attention: width of the attention that is added to the gate: 64 or 128 in the paper; 0: none.
        read_out: mean over the tokens; the class token; or the class token and a hidden layer as wide as the model.
        toeplitz: W has one weight per distance along the tokens in order, as in the paper's language models.
        causal: nothing comes from later tokens.
        gate_act: of the gate.
        gate_init: how W starts.
        gate_eps: of the norm inside the gate.
        norm_eps: of the other norms.
        drop_path: probability to drop a block; constant over the blocks, or rising linearly from 0 to it.
        drop_path_batch: one draw for the whole batch.
        drop_path_rescale: whether what is kept is divided by the probability to keep it.
    """
    if read_out not in READ_OUTS:
        raise unknown("read_out", read_out, READ_OUTS, f"model {name!r}")
    options = {
        "ratio": ratio,
        "tiny_attention": tiny_attention,
        "toeplitz": toeplitz,
        "causal": causal,
        "gelu": gelu,
        "gate_act": gate_act,
        "init": gate_init,
        "norm_eps": gate_eps,
        "out_bias": True,
    }
    branches = (BranchConfig(mixer="spatial_gate", options=options),)
    return BackboneConfig.parse(
        {
            "name": name,
            "image": pair(image),
            "channels": channels,
            "classes": classes,
            "patch": pair(patch),
            "stem_init": "lecun",
            "stages": (StageConfig(depth=depth, dim=dim, branches=branches),),
            "norm_eps": norm_eps,
            "drop_path": drop_path,
            "drop_path_schedule": drop_path_schedule,
            "drop_path_batch": drop_path_batch,
            "drop_path_rescale": drop_path_rescale,
        }
        | ({"head_options": {"std": 0.0}} if read_out != "hidden" else {})
        | READ_OUTS[read_out]
    )


SIZES: dict[str, dict[str, Any]] = {
    "ti16_224": {"dim": 128},
    "s16_224": {"dim": 256, "drop_path": 0.05},
    "b16_224": {"dim": 512, "drop_path": 0.2},
}
VARIANTS: dict[str, dict[str, Any]] = {
    "gmlp": {},
    **{f"gmlp_{size}": values for size, values in SIZES.items()},
    **{f"gmlp_{size}_paper": values | {"read_out": "hidden"} for size, values in SIZES.items()},
    **{f"amlp_{size}": values | {"tiny_attention": 64} for size, values in SIZES.items()},
}
register_variants(gmlp, VARIANTS)
