"""External attention: the block, the multi-head module, EAMLP."""

from mixwise.mixers.multihead_external_attention import MultiheadExternalAttention
from mixwise.models.eamlp import eamlp
from mixwise.weights.eamlp import multihead
from parity.case import Case, Vector, builder, from_format, map_tokens, tokens


@builder("external_attention", "Attention")
def attention(vector: Vector) -> Case:
    a = vector.arguments
    return Case(
        lambda: MultiheadExternalAttention(a["dim"], heads=a["num_heads"], eps=1e-9, bias=True),
        multihead("", ""),
        run=lambda module, x: module(x, (x.shape[1],)),
        inter={
            "expanded": ("expand", tokens),
            "slot_logits": ("key", lambda x: x.transpose(1, 2)),
            "head_values": ("value", lambda x: x.transpose(1, 2)),
        },
    )


@builder("external_attention", "T2T_ViT")
def t2t_vit(vector: Vector) -> Case:
    a = vector.arguments
    config = eamlp(
        image=a["img_size"],
        channels=a.get("in_chans", 3),
        classes=a["num_classes"],
        dim=a["embed_dim"],
        depth=a["depth"],
        heads=a["num_heads"],
        ratio=a["mlp_ratio"],
        token_width=a.get("token_dim", 64),
    )
    return from_format(
        {"performer": "eamlp", "transformer": "eamlp_t"}[a["tokens_type"]],
        config,
        ignored=lambda name: name == "pos_embed",
        inter={
            "token_module1": ("stem.module1", tokens),
            "tokens": ("stem", map_tokens),
            "block0": ("stages.0.blocks.0", tokens),
            "pre_head": ("norm", tokens),
        },
    )
