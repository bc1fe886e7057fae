"""PCT: classification of point clouds with self-attention or external attention between points.

    embedding → 2 × (farthest points, maximum over their neighbours) → 4 attention layers → fusion → maximum → MLP

Source: Guo et al., "PCT: Point Cloud Transformer", arXiv 2012.09688, section 3, as in the authors' code and in the
port that they point to (PCT_Pytorch); external attention instead of the self-attention: Guo et al., "Beyond
Self-attention: External Attention", arXiv 2105.02358.

| preset | attention | points kept | dim | parameters | GMACs, 1024 points | published, trained on ModelNet40 |
|---|---|---|---|---|---|---|
| pct | self, offset | 512, 256 | 256 | 2,876,136 | 2.220 | 93.2 (paper; README of the port) |
| pct_position | self, offset | 512, 256 | 256 | 2,811,112 | 2.203 | 93.3, best of five (README) |
| pct_ea | external, S = 64 | 512, 256 | 256 | 2,678,504 | 2.085 | – |
| spct | self, offset | all | 128 | 1,360,552 | 1.377 | – |

The port computes the queries, which are the keys, a second time, and the distances as matrix products; counted with
these it is 2.238 GMACs for pct and 2.087 with external attention. Re-parameterised, pct takes 1.452 and pct_ea 1.251.

Differs: a cloud is a set, so the points are put in order of x, y and z before the farthest ones are taken; the authors
start with the first point of the file, `order="given"`. Their sampling leaves out points within 0.03 of the origin,
here none. Distances come from differences, not from squared norms and products. The attention is normalised in log
space. Clouds of fewer points than a grouping keeps are kept whole. The paper pools by maximum and mean,
`pool="max_mean"`; its code by maximum alone, as here. The head has the port's leaky ReLU; the authors' code has
`head_act="relu"`. No code of external attention for points was published: a layer x + relu(norm(W EA(x))) with S = 64,
without offset and query projection, is a reconstruction, and `offset=True` another. Training comes with the task.
"""

from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from mixwise.config import PCTConfig
from mixwise.errors import UsageError
from mixwise.model import Model, register_architecture
from mixwise.models.maps import fold
from mixwise.models.points import (
    AttentionLayer,
    LinearNorm,
    Neighbourhood,
    farthest_points,
    nearest_points,
    sort_points,
    take,
)
from mixwise.models.registry import register_variants


@register_architecture(PCTConfig)
class PCT(Model):
    """A classifier of point clouds built from its config.

    Shapes: clouds (b, n, 3) of coordinates, centred and scaled to about ± 1 → logits (b, classes); with classes=0 →
    pooled features (b, c). n may change from call to call and must be as many as there are neighbours; the clouds of a
    batch have the same number. Raises `UsageError` for other shapes.

    >>> model = mixwise.create_model("pct_ea", width=8, groups=((16, 4), (8, 4)), classes=5).eval()
    >>> model(torch.randn(2, 30, 3)).shape
    torch.Size([2, 5])
    """

    config: PCTConfig

    def __init__(self, config: PCTConfig) -> None:
        super().__init__()
        self.config = config
        width, dim = config.width, config.dim
        self.embed = nn.Sequential(LinearNorm(3, width), nn.ReLU(), LinearNorm(width, width), nn.ReLU())
        self.groups = nn.ModuleList(Neighbourhood(width << i) for i in range(len(config.groups)))
        before = 0 if not config.groups else 1 if config.positions else 2
        self.before = nn.Sequential(*(m for _ in range(before) for m in (LinearNorm(dim, dim), nn.ReLU())))
        self.position = nn.Linear(3, dim) if config.positions else None
        self.layers = nn.ModuleList(
            AttentionLayer(dim, memory=config.memory, offset=config.offset, eps=config.eps) for _ in range(config.depth)
        )
        wide = dim * (config.depth + bool(config.groups))
        self.fuse = nn.Sequential(LinearNorm(wide, config.fused), nn.LeakyReLU(0.2))
        self.head = _head(config) if config.classes else nn.Identity()
        if config.form == "reparameterized":
            self.fold()

    def features(self, clouds: Tensor) -> Tensor:
        """Clouds (b, n, 3) → the fused points (b, m, c), m those that the last grouping keeps."""
        config = self.config
        _check(config, clouds)
        if config.groups and config.order == "sorted":
            clouds = sort_points(clouds)
        x = self.embed(clouds)
        points = clouds.to(torch.promote_types(clouds.dtype, torch.float32))
        for group, (most, neighbours) in zip(self.groups, config.groups, strict=True):
            centres = farthest_points(points, min(most, points.shape[1]))
            kept = take(points, centres)
            x = group(x, centres, nearest_points(points, kept, neighbours))
            points = kept
        outputs, local = [], [x] if config.groups else []
        x = self.before(x)
        code = None if self.position is None else self.position(points.to(x.dtype))
        for layer in self.layers:
            x = layer(x if code is None else x + code)
            outputs.append(x)
        return self.fuse(torch.cat((*outputs, *local), 2))

    def pool(self, x: Tensor) -> Tensor:
        """Points (b, m, c) → one vector a cloud, what the head takes."""
        most = x.amax(1)
        return most if self.config.pool == "max" else torch.cat((most, x.mean(1)), 1)

    def forward(self, clouds: Tensor) -> Tensor:
        return self.head(self.pool(self.features(clouds)))

    def example(self, batch: int = 1) -> Tensor:
        return torch.randn(batch, self.config.points, 3, generator=torch.Generator().manual_seed(0))

    @torch.no_grad()
    def fold(self) -> None:
        """Every batch norm into the layer before it, external attention's W into its memory.

        The first layer of a grouping then runs on points instead of pairs.
        """
        fold(self)
        for layer in self.layers:
            cast(AttentionLayer, layer).merge()


def _head(config: PCTConfig) -> nn.Sequential:
    layers: list[nn.Module] = []
    inputs = config.fused * (1 if config.pool == "max" else 2)
    for i, width in enumerate(config.hidden):
        act = nn.ReLU() if config.head_act == "relu" else nn.LeakyReLU(0.2)
        layers += [LinearNorm(inputs, width, bias=i > 0), act, nn.Dropout(config.dropout)]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, config.classes))


def _check(config: PCTConfig, clouds: Tensor) -> None:
    if clouds.dim() != 3 or clouds.shape[2] != 3 or not clouds.is_floating_point():
        raise UsageError(
            f"{config.name} takes clouds (b, n, 3) of coordinates, got {clouds.dtype} of shape {tuple(clouds.shape)}"
        )
    if clouds.shape[1] < config.least:
        raise UsageError(
            f"{config.name} takes clouds of at least {config.least} points, as many as it reads neighbours, and was "
            f"given {clouds.shape[1]}; for smaller clouds build it with other groups"
        )


def pct(
    *,
    name: str = "pct",
    points: int = 1024,
    classes: int = 40,
    width: int = 64,
    groups: tuple[tuple[int, int], ...] = ((512, 32), (256, 32)),
    order: Literal["sorted", "given"] = "sorted",
    positions: bool = False,
    depth: int = 4,
    memory: int = 0,
    offset: bool = True,
    eps: float | None = 1e-9,
    fused: int = 1024,
    pool: Literal["max", "max_mean"] = "max",
    hidden: tuple[int, ...] = (512, 256),
    head_act: Literal["leaky_relu", "relu"] = "leaky_relu",
    dropout: float = 0.5,
) -> PCTConfig:
    """The config of a PCT; the fields of `PCTConfig`."""
    return PCTConfig.parse(
        {
            "name": name,
            "points": points,
            "classes": classes,
            "width": width,
            "groups": groups,
            "order": order,
            "positions": positions,
            "depth": depth,
            "memory": memory,
            "offset": offset,
            "eps": eps,
            "fused": fused,
            "pool": pool,
            "hidden": hidden,
            "head_act": head_act,
            "dropout": dropout,
        }
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "pct": {},
    "pct_position": {"positions": True},
    "pct_ea": {"memory": 64, "offset": False},
    "spct": {"width": 128, "groups": ()},
}
register_variants(pct, VARIANTS)
