"""The models that timm lacks, under timm's own names and conventions: `import mixwise.timm`.

    timm.create_model("mixer_h14_224", num_classes=10, img_size=224, drop_path_rate=0.1)

Every preset for images of ours that timm has no model of is registered with it, so that `forward_features`,
`forward_head`, `get_classifier`, `reset_classifier`, `features_only=True`, `checkpoint_path=` and timm's own train and
validate scripts work with them. Their weights have the very names of ours: a file of `mixwise train` or `convert` is a
`checkpoint_path`. Models that timm has stay timm's; `mixwise convert --to timm` writes files for those.

A model takes part if its class has `features`, `pool` and `pyramid` as `Backbone` has them, and keeps its read-out in
`head`. `register()` is called on import; call it again for presets that were registered later.
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import timm
import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from mixwise.backbone import Features
from mixwise.config import ModelConfig, VisionConfig, pair
from mixwise.device import shapes_only
from mixwise.errors import UsageError
from mixwise.mixers import keyword_options
from mixwise.model import ARCHITECTURES, Model, build
from mixwise.models import list_models, model_config, presets
from mixwise.weights.bare import usual_preprocessing
from mixwise.weights.convert import load_state
from mixwise.weights.identify import identify, matching
from mixwise.weights.pretrained import adapted, load_start
from mixwise.weights.published import PRETRAINED

NAMES = {"num_classes": "classes", "in_chans": "channels", "img_size": "image", "drop_path_rate": "drop_path"}
"""timm's keywords and ours."""
CLASSIFIERS = {"hidden": "head.fc2", "mlp": "head.fc2", "distilled": ("head.label", "head.teacher")}
"""Where the last layer of a head stands, if it is not the head itself."""
ADDRESS = ("position", "prefix_tokens")
"""What the names of parameters contain that timm gives no weight decay."""


@runtime_checkable
class Classifier(Protocol):
    """What a model must offer to take part."""

    def features(self, images: Tensor) -> Features:
        """Images → tokens (b, n, c) and grid."""

    def pool(self, features: Features) -> Tensor:
        """Tokens → pooled features."""

    def pyramid(self, images: Tensor) -> list[Tensor]:
        """Images → one map (b, c, h, w) per stage."""


class TimmModel(Model):
    """timm's conventions on top of a model of ours; stands before its class in a class of both."""

    config: VisionConfig
    head: nn.Module
    features: Callable[[Tensor], Features]
    pool: Callable[[Features], Tensor]
    pyramid: Callable[[Tensor], list[Tensor]]
    num_classes: int
    num_features: int
    head_hidden_size: int
    feature_info: list[dict[str, Any]]

    def forward_features(self, x: Tensor) -> Tensor:
        """Images (b, channels, h, w) → tokens (b, n, c), prefix tokens first."""
        return self.features(x).tokens

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Tokens (b, n, c) → logits (b, classes), or with `pre_logits` the pooled features (b, c)."""
        pooled = self.pool(Features(x, (x.shape[1],)))
        return pooled if pre_logits else self.head(pooled)

    def get_classifier(self) -> nn.Module:
        """The head."""
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A fresh head for so many classes; 0: none. The way of pooling belongs to the model."""
        if global_pool is not None:
            raise UsageError(f"{self.config.name} pools in one way: leave out global_pool")
        self.config = self.config.model_copy(update={"classes": num_classes})
        head = build(self.config).get_submodule("head")
        self.head = head.to(next(self.parameters()).device)
        self.num_classes = num_classes

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | tuple[int, ...] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """Images → maps (b, c, h, w), one per stage, without the final norm; and the tokens in front of them.

        Args:
            indices: which stages; a number: so many last ones; None: all.
            intermediates_only: the maps alone.
        """
        if norm or output_fmt not in ("NCHW", "NHWC"):
            raise UsageError(f"{self.config.name} gives maps before the norm, NCHW or NHWC")
        del stop_early  # the maps end with the last stage in any case
        maps = self.pyramid(x)
        if isinstance(indices, int):
            indices = list(range(len(maps)))[-indices:]
        chosen = maps if indices is None else [maps[i] for i in indices]
        if output_fmt == "NHWC":
            chosen = [m.permute(0, 2, 3, 1) for m in chosen]
        return chosen if intermediates_only else (self.forward_features(x), chosen)

    def prune_intermediate_layers(
        self, indices: int | list[int] | tuple[int, ...] | None = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Drop the head, which maps do not need; the stages asked for, counted from the first."""
        count = len(self.feature_info)
        if prune_head:
            self.reset_classifier(0)
        wanted = range(count)[-indices:] if isinstance(indices, int) else range(count) if indices is None else indices
        return [range(count)[i] for i in wanted]

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        """Positions and prefix tokens."""
        return {name for name, _ in self.named_parameters() if any(part in name for part in ADDRESS)}

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """Groups for layer-wise learning rates: stem, blocks (stages if `coarse`), norm."""
        blocks = r"^stages\.(\d+)" if coarse else [(r"^stages\.(\d+)\.blocks\.(\d+)", None), (r"^stages\.(\d+)", (0,))]
        return {"stem": r"^stem|^position|^prefix_tokens", "blocks": blocks}

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Not offered."""
        if enable:
            raise UsageError(f"{self.config.name} has no gradient checkpointing")

    def load_pretrained(self, checkpoint_path: str, prefix: str = "") -> None:
        """Weights from any file that `mixwise convert` reads; the head is left alone where the classes differ."""
        del prefix
        start = load_start(self.config.name, Path(checkpoint_path))
        changes = {"classes": self.config.classes, "image": self.config.image, "channels": self.config.channels}
        self.load_state_dict(adapted(start, changes).state_dict())


@functools.cache
def _class(cls: type[Model]) -> type[TimmModel]:
    name = f"Timm{cls.__name__}"
    made = type(name, (TimmModel, cls), {"__module__": __name__, "__doc__": f"{cls.__name__} with timm's conventions."})
    globals()[name] = made  # where pickle looks for it
    return made


def _build(name: str, **arguments: Any) -> TimmModel:
    """A model for timm's keywords; ours of the preset are allowed too."""
    known = keyword_options(presets()[name])
    if arguments.pop("drop_rate", 0.0):
        raise UsageError(f"{name} has no dropout in front of its head: leave out drop_rate")
    if arguments.pop("global_pool", None) not in (None, ""):
        raise UsageError(f"{name} pools in one way: leave out global_pool")
    changes = {NAMES.get(key, key): value for key, value in arguments.items()}
    if not changes.get("drop_path") and "drop_path" not in known:
        changes.pop("drop_path", None)
    if "image" in changes:
        changes["image"] = pair(changes["image"])
    config = model_config(name, **changes)
    assert isinstance(config, VisionConfig)
    model = _class(ARCHITECTURES[config.kind][1])(config)
    model.num_classes = config.classes
    model.feature_info, model.num_features = _measure(config)
    model.head_hidden_size = model.num_features
    return model


def _measure(config: VisionConfig) -> tuple[list[dict[str, Any]], int]:
    """timm's description of the maps, and the width of the pooled features; found on the meta device."""
    with shapes_only():
        model: Any = build(config).eval()
        images = torch.empty(1, config.channels, *config.image)
        maps, pooled = model.pyramid(images), model.pool(model.features(images))
    info = [
        {"num_chs": m.shape[1], "reduction": round(config.image[0] / m.shape[2]), "module": f"stages.{i}"}
        for i, m in enumerate(maps)
    ]
    return info, pooled.shape[-1]


def checkpoint_filter_fn(state: dict[str, Tensor], model: TimmModel) -> dict[str, Tensor]:
    """A state of any format that `convert` reads, under our names; ours stays as it is."""
    if state.keys() == model.state_dict().keys():
        return state
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    form = matching(shapes, None, Path("the checkpoint"))[0]
    state = form.tidy(state)
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    config = identify(form, shapes, Path("the checkpoint"), model=model.config.name, image=model.config.image)
    return dict(load_state(form, state, config).state_dict())


def _settings(config: VisionConfig) -> dict[str, Any]:
    """timm's pretrained config of a preset."""
    given = usual_preprocessing(config)
    settings = {
        "input_size": (config.channels, *config.image),
        "num_classes": config.classes,
        "fixed_input_size": True,
        "classifier": CLASSIFIERS.get(getattr(config, "head", "linear"), "head"),
        "crop_pct": given.get("crop_pct", 0.875),
        "interpolation": given.get("filter", "bicubic"),
        "crop_mode": {"crop": "center", "squash": "squash", "pad": "border"}[given.get("fit", "crop")],
    }
    return settings | {"mean": given["mean"], "std": given["std"]}


def _cfgs(config: VisionConfig) -> dict[str, Any]:
    """timm's table of weights for a preset: the public ones that a program can fetch."""
    settings = _settings(config)
    found = {
        f"{config.name}.{entry.tag}": settings | {"url": entry.url, "custom_load": True}
        for entry in PRETRAINED.get(config.name, ())
        if entry.url
    }
    return found or {config.name: settings}


def _entrypoint(name: str) -> Callable[..., nn.Module]:
    def create(pretrained: bool = False, **arguments: Any) -> nn.Module:
        return build_model_with_cfg(
            functools.partial(_build, name),
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": None, "feature_cls": "getter"},
            **arguments,
        )

    create.__name__ = create.__qualname__ = name
    create.__doc__ = f"{name} of mixwise."
    return create


def fits(config: ModelConfig) -> bool:
    """Whether a model can take part."""
    made_of: Any = ARCHITECTURES[config.kind][1]
    return isinstance(config, VisionConfig) and issubclass(made_of, Classifier)


def register() -> list[str]:
    """Register with timm every preset for images that it lacks; the names that are new."""
    new = [name for name in list_models() if not timm.is_model(name) and fits(model_config(name))]
    for name in new:
        config = model_config(name)
        assert isinstance(config, VisionConfig)
        default_cfgs.update(generate_default_cfgs(_cfgs(config)))
        _class(ARCHITECTURES[config.kind][1])  # a process that unpickles a model has made none before
        globals()[name] = _entrypoint(name)
        register_model(globals()[name])
    return new


default_cfgs: dict[str, Any] = {}
"""Where timm looks for the weights of what is registered."""
register()
