"""RepMLPNet: matrices over the positions with local convolutions and a gate, then a channel MLP; batch norm everywhere.

    patches 4 → 4 stages of [x + repmlp(bn(x)), x + ffn(bn(x))], 2 × 2 patches between them → bn → mean → linear

Source: Ding et al., "RepMLPNet: Hierarchical Vision MLP with Re-parameterized Locality", arXiv 2112.11081, sections 3
and 4; sizes, accuracies and weights of DingXiaoH/RepMLP (repmlpnet.py).

| preset         | blocks      | dims      | share-sets    | parameters  | injected    | GMACs  | injected | top-1 |
|----------------|-------------|-----------|---------------|-------------|-------------|--------|----------|-------|
| repmlpnet_t224 | 2, 2, 6, 2  | 64 … 512  | 1, 4, 16, 128 | 38,293,608  | 38,331,720  | 2.808  | 2.798    | 76.62 |
| repmlpnet_t256 | 2, 2, 6, 2  | 64 … 512  | 1, 4, 16, 128 | 58,687,848  | 58,739,400  | 4.258  | 4.246    | 77.44 |
| repmlpnet_b224 | 2, 2, 12, 2 | 96 … 768  | 1, 4, 32, 128 | 68,242,712  | 68,332,664  | 6.676  | 6.657    | 80.32 |
| repmlpnet_b256 | 2, 2, 12, 2 | 96 … 768  | 1, 4, 32, 128 | 96,447,512  | 96,568,184  | 9.640  | 9.616    | 81.03 |
| repmlpnet_d256 | 2, 2, 18, 2 | 80 … 640  | 1, 4, 16, 128 | 86,887,648  | 86,985,280  | 8.636  | 8.611    | 80.83 |
| repmlpnet_l256 | 2, 2, 18, 2 | 96 … 768  | 1, 4, 32, 256 | 117,641,560 | 117,820,600 | 11.609 | 11.579   | 81.68 |

Top-1 on ImageNet-1k, trained on it, as the authors' README states for its weights; the name has the image size.
"Injected" is the form in which only the RepMLP blocks are folded, as the authors convert: it has more parameters
(a bias per position and set) and hardly fewer MACs. `reparameterize` folds the other batch norms too.

Differs: with several windows (`partitions`) and fewer share-sets than channels the authors' code returns results to
wrong places; here only with `order="official"`. The head starts from a normal distribution of the same variance as
torch's uniform one, its bias at zero. The authors have no stochastic depth (`drop_path` 0).
"""

from typing import Any, Literal

from mixwise.config import BackboneConfig, BranchConfig, Size, StageConfig, pair
from mixwise.errors import UsageError
from mixwise.models.registry import register_variants


def repmlpnet(
    *,
    name: str = "repmlpnet",
    image: Size = (224, 224),
    channels: int = 3,
    classes: int = 1000,
    patch: Size = (4, 4),
    depths: tuple[int, ...] = (2, 2, 6, 2),
    dims: tuple[int, ...] = (64, 128, 256, 512),
    sharesets: tuple[int, ...] = (1, 4, 16, 128),
    partitions: tuple[Size, ...] | None = None,
    order: Literal["window", "official"] = "window",
    kernels: tuple[int, ...] = (1, 3),
    reduce: int = 4,
    ratio: float = 4.0,
    drop_path: float = 0.0,
) -> BackboneConfig:
    """The config of a RepMLPNet; one entry a stage in depths, dims, sharesets and partitions.

    Args:
        sharesets: matrices in each stage; channel c uses number c mod S. Each a divisor of the stage's width.
        partitions: (h, w) of the windows in tokens; None: the whole map, as in every published model. A model for 224
            pixels becomes one for 448 with image=448 and partitions=((56, 56), (28, 28), (14, 14), (7, 7)).
        order: official: results of several windows as the authors' code mixes them up; needs partitions.
        kernels: sizes of the local convolutions.
        reduce: width over the gate's hidden width.
        ratio: hidden width of the FFN over dim.

    Raises `UsageError` where the lists have different lengths.
    """
    lengths = [len(x) for x in (depths, dims, sharesets, *([] if partitions is None else [partitions]))]
    if len(set(lengths)) != 1:
        raise UsageError(f"{name}: depths, dims, sharesets (and partitions) need one entry a stage, got {lengths}")
    ffn = BranchConfig(mixer="mlp", options={"ratio": ratio, "norm": "batch", "out_bias": True})
    relu = {"bias": False, "norm": "batch", "act": "relu"}
    stages = []
    for i, (depth, dim, sets) in enumerate(zip(depths, dims, sharesets, strict=True)):
        options: dict[str, Any] = {"sharesets": sets, "kernels": kernels, "reduce": reduce}
        if partitions is not None:
            options["partition"] = pair(partitions[i])
        if order != "window" and sets != dim:
            options["order"] = order
        branches = (BranchConfig(mixer="repmlp", options=options), ffn)
        stages.append(StageConfig(depth=depth, dim=dim, branches=branches, downsample="patch", downsample_options=relu))
    return BackboneConfig(
        name=name,
        image=pair(image),
        channels=channels,
        classes=classes,
        patch=pair(patch),
        stem_options=relu,
        stages=tuple(stages),
        norm="batch",
        head_options={"std": (3 * dims[-1]) ** -0.5},
        drop_path=drop_path,
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "repmlpnet_t224": {},
    "repmlpnet_t256": {"image": 256},
    "repmlpnet_b224": {"depths": (2, 2, 12, 2), "dims": (96, 192, 384, 768), "sharesets": (1, 4, 32, 128)},
    "repmlpnet_b256": {
        "image": 256,
        "depths": (2, 2, 12, 2),
        "dims": (96, 192, 384, 768),
        "sharesets": (1, 4, 32, 128),
    },
    "repmlpnet_d256": {
        "image": 256,
        "depths": (2, 2, 18, 2),
        "dims": (80, 160, 320, 640),
        "sharesets": (1, 4, 16, 128),
    },
    "repmlpnet_l256": {
        "image": 256,
        "depths": (2, 2, 18, 2),
        "dims": (96, 192, 384, 768),
        "sharesets": (1, 4, 32, 256),
    },
}
register_variants(repmlpnet, VARIANTS)
