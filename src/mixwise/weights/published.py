"""Where public weights are: `PRETRAINED`, and the preprocessing that timm publishes with its own.

What the weights were trained on is said as their authors measured or documented it; nothing here was re-evaluated.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import timm

from mixwise.config import Size
from mixwise.errors import UsageError, unknown
from mixwise.models import list_models

HUB = "https://huggingface.co/timm/{name}.{tag}/resolve/main/model.safetensors"
SAIL = "https://huggingface.co/sail/dl/resolve/main/{family}/{name}.pth"
POOLFORMER = "https://github.com/sail-sg/poolformer/releases/download/v1.0/{name}.pth.tar"
GOOGLE = "https://storage.googleapis.com/mixer_models/{data}/{file}.npz"
FF = "https://github.com/lukemelas/do-you-even-need-attention/releases/download/v0.0.1/linear-{size}-checkpoint.pth"
REPMLP = "https://github.com/DingXiaoH/RepMLP"
EANET = "https://github.com/MenghaoGuo/EANet"
EAMLP = f"{EANET}/raw/59c03cb0a286d3a29a797f8ea07fb89d7af56b60/EAMLP/EAMLP_7_384/model_best.pth.tar"

IN1K, IN21K, IN22K = "ImageNet-1k", "ImageNet-21k", "ImageNet-22k"
DISTILLED = f"{IN1K} with a RegNetY-16GF teacher"


class Published(NamedTuple):
    """One set of public weights of a preset."""

    tag: str
    """How it is asked for: `create_model(name, pretrained=tag)`."""
    url: str
    """The file; empty where only `page` leads to it."""
    trained: str
    """On what."""
    image: int | None = None
    """Side in pixels, where it is not the preset's."""
    page: str = ""
    """A page from which a person downloads the file."""


def _hub(name: str, tags: dict[str, str]) -> tuple[Published, ...]:
    """Weights that timm keeps on the Hugging Face hub, what they were trained on by tag."""
    return tuple(Published(tag, HUB.format(name=name, tag=tag), trained) for tag, trained in tags.items())


def _google(file: str) -> tuple[Published, ...]:
    return (
        Published("google_in1k", GOOGLE.format(data="imagenet1k", file=file), f"{IN1K} from scratch"),
        Published("google_in21k", GOOGLE.format(data="imagenet21k", file=file), IN21K),
    )


def _by_hand(page: str, trained: str = IN1K) -> tuple[Published, ...]:
    return (Published("official", "", trained, page=page),)


_SIZES = ("s12", "s24", "s36", "m36", "m48")
_FIRST_21K, _FIRST_22K = f"{IN21K}, then {IN1K}", f"{IN22K}, then {IN1K}"
_RESMLP = {"fb_in1k": IN1K, "fb_distilled_in1k": DISTILLED}
_MIXER = {"goog_in21k_ft_in1k": f"{IN1K} from scratch, whatever the tag says", "goog_in21k": IN21K}
_MIIL = {"miil_in21k_ft_in1k": f"{IN21K}-P, then {IN1K}", "miil_in21k": f"{IN21K}-P"}
_SAIL = {"sail_in1k": IN1K, "sail_in22k_ft_in1k": _FIRST_22K, "sail_in22k": IN22K}
_VIT = {"augreg_in21k_ft_in1k": _FIRST_21K, "augreg_in1k": IN1K}
_SAM = {"sam_in1k": f"{IN1K} with SAM"}

ON_THE_HUB: dict[str, dict[str, str]] = {
    "mixer_b16_224": _MIXER | _MIIL,
    "mixer_l16_224": _MIXER,
    "gmixer_24_224": {"ra3_in1k": IN1K},
    "gmlp_s16_224": {"ra3_in1k": f"{IN1K}, by timm's maintainer"},
    "resmlp_12_224": _RESMLP,
    "resmlp_24_224": _RESMLP,
    "resmlp_36_224": _RESMLP,
    "resmlp_big_24_224": _RESMLP | {"fb_in22k_ft_in1k": _FIRST_22K},
    **{f"poolformerv2_{size}": {"sail_in1k": IN1K} for size in _SIZES},
    **{f"{family}_{size}": _SAIL for family in ("convformer", "caformer") for size in ("s18", "s36", "m36", "b36")},
    **{f"deit_{size}_patch16_224": {"fb_in1k": IN1K} for size in ("tiny", "small", "base")},
    **{f"deit_{size}_distilled_patch16_224": {"fb_in1k": DISTILLED} for size in ("tiny", "small", "base")},
    "vit_tiny_patch16_224": {"augreg_in21k_ft_in1k": _FIRST_21K},
    "vit_small_patch16_224": _VIT,
    "vit_small_patch32_224": {"augreg_in21k_ft_in1k": _FIRST_21K},
    "vit_base_patch16_224": {"augreg2_in21k_ft_in1k": _FIRST_21K} | _VIT | {"orig_in21k_ft_in1k": _FIRST_21K} | _SAM,
    "vit_base_patch32_224": _VIT | _SAM,
}
"""What timm keeps, by preset and tag."""

ELSEWHERE: dict[str, tuple[Published, ...]] = {
    "mixer_b16_224": _google("Mixer-B_16"),
    "mixer_l16_224": _google("Mixer-L_16"),
    **{f"poolformer_{s}": (Published("official", POOLFORMER.format(name=f"poolformer_{s}"), IN1K),) for s in _SIZES},
    "metaformer_id_s12": (Published("official", POOLFORMER.format(name="metaformer_id_s12"), IN1K),),
    **{
        f"metaformer_{mix}_s12": (Published("official", POOLFORMER.format(name=f"metaformer_{mix}_s12_224"), IN1K),)
        for mix in ("pppa", "ppaa", "pppf", "ppff")
    },
    **{
        f"{family}_{size}": (Published("sail_in1k", SAIL.format(family=family, name=f"{family}_{size}"), IN1K),)
        for family in ("identityformer", "randformer")
        for size in _SIZES
    },
    **{f"ff_{size}_16_224": (Published("official", FF.format(size=size), IN1K),) for size in ("tiny", "base")},
    **{
        f"repmlpnet_{size}": _by_hand(f"{REPMLP} (README, Google Drive: RepMLPNet-{size.upper()}, training form)")
        for size in ("t224", "t256", "b224", "b256", "d256", "l256")
    },
    "repmlp_res50_light_224": _by_hand(f"{REPMLP} (README, Google Drive: RepMLP-Res50-light-224_train.pth)"),
    "eamlp_7_224": (Published("official", EAMLP, IN1K, image=384),),
    "eanet_r101_os8": _by_hand(f"{EANET} (README, Tsinghua cloud)", "PASCAL VOC"),
}
"""What others keep."""

PRETRAINED: dict[str, tuple[Published, ...]] = {
    name: _hub(name, ON_THE_HUB.get(name, {})) + ELSEWHERE.get(name, ()) for name in {**ON_THE_HUB, **ELSEWHERE}
}
"""Public weights by preset, the default first. timm's other tags of a preset work as well: `published` finds them."""


def published(name: str, tag: str = "") -> Published:
    """The public weights of a preset by tag: from `PRETRAINED`, else from timm's own list; no tag: the default.

    Raises `UsageError` that lists the tags.
    """
    known = {entry.tag: entry for entry in PRETRAINED.get(name, ())}
    if not tag and known:
        return next(iter(known.values()))
    if tag in known:
        return known[tag]
    listed = _timm_tags(name)
    if not tag and listed:
        default = timm.get_pretrained_cfg(name)
        tag = "" if default is None else default.tag or ""
    if tag in listed:
        side = listed[tag].input_size[-1]
        return Published(tag, HUB.format(name=name, tag=tag), f"as timm says of {name}.{tag}", side)
    if not known and not listed:
        raise UsageError(f"no public weights of {name} are known; give a file: pretrained=PATH, or --pretrained PATH")
    raise unknown("weights", tag, tags(name), name)


def tags(name: str) -> list[str]:
    """The tags of all public weights of a preset, the default first."""
    return list(dict.fromkeys([entry.tag for entry in PRETRAINED.get(name, ())] + list(_timm_tags(name))))


def _timm_tags(name: str) -> dict[str, Any]:
    """The configs of timm's own weights on the hub, by tag."""
    configs = {full: timm.get_pretrained_cfg(full) for full in timm.list_pretrained(f"{name}.*")}
    return {f.partition(".")[2]: c for f, c in configs.items() if c is not None and c.hf_hub_id == f"timm/{f}"}


def split_tag(name: str) -> tuple[str, str]:
    """A preset and the tag of its weights: "mixer_b16_224.goog_in21k" → ("mixer_b16_224", "goog_in21k").

    Raises `UsageError` for a tag that nobody knows.
    """
    preset, _, tag = name.partition(".")
    if tag:
        published(preset, tag)
    return preset, tag


def preprocessing_of(name: str, tag: str) -> dict[str, Any] | None:
    """The preprocessing that timm publishes for a tag, as settings of `Preprocess`; None: the format's own holds."""
    full = f"{name}.{tag}"
    config = timm.get_pretrained_cfg(full) if full in timm.list_pretrained(f"{name}.*") else None
    return None if config is None else _settings(config.to_dict())


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    chosen = config.get("interpolation", "bicubic")
    return {
        "mean": tuple(config["mean"]),
        "std": tuple(config["std"]),
        "crop_pct": config.get("crop_pct", 0.875),
        "fit": {"center": "crop", "squash": "squash", "border": "pad"}.get(config.get("crop_mode", "center"), "crop"),
        "filter": chosen if chosen in ("bilinear", "bicubic", "lanczos", "nearest") else "bicubic",
    }


class Beside(NamedTuple):
    """What timm's `config.json` in the same folder says of a checkpoint."""

    path: Path
    model: str
    preprocess: dict[str, Any]
    image: Size | None
    """What the weights were trained or evaluated at, where it says so."""


def beside(checkpoint: Path) -> Beside | None:
    """The `config.json` that timm puts beside its weights on the hub; None where there is none of that kind."""
    path = checkpoint.parent / "config.json"
    if checkpoint.name not in ("model.safetensors", "pytorch_model.bin"):
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        config = data["pretrained_cfg"]
        size = config.get("input_size")
        image = None if size is None else (int(size[1]), int(size[2]))
        found = Beside(path, str(data["architecture"]), _settings(config), image)
        return found if found.model in list_models() else None
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
