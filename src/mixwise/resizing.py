"""`mixwise resize`: a model at another image size, with its weights carried over."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch

from mixwise.comparison import answers, preprocessing, some_pictures
from mixwise.config import Decision, Size, VisionConfig, pair
from mixwise.errors import MixwiseError, UsageError, unknown
from mixwise.files import check_output
from mixwise.mixers.base import ResizeMethod
from mixwise.model import Model, build
from mixwise.weights import Header, load_file, resolve, save

PICTURES = 128
"""At most so many pictures say how much the answers moved."""


def resize(model: Model | str | Path, image: Size | int, *, method: ResizeMethod = "auto") -> Model:
    """A new model for images of another size, in evaluation mode where it comes from a file; the original stays.

    Patches stay as large as they are, so there are more or fewer tokens, and what belongs to tokens is carried over by
    the rule of its family, stated in the docstring of the mixer and in docs/resolution.md. Nothing else changes, and to
    the same size nothing at all.

    Args:
        model: a model, a run folder or a `.safetensors` file.
        image: (height, width) in pixels, or one side.
        method: "smooth" interpolates; "expand" lets the weights work on each sub-image of the old size, as MLP-Mixer's
            paper and RepMLP do, where the new grids are multiples; "auto" is each mixer's own choice.

    Raises `UsageError` for a size that the patches do not divide, and for mixers without a rule.

    >>> model = mixwise.create_model("token_mlp_nano", image=32, classes=10)
    >>> mixwise.resize(model, (48, 64))(torch.randn(1, 3, 48, 64)).shape
    torch.Size([1, 10])
    """
    if method not in get_args(ResizeMethod):
        raise unknown("method", method, get_args(ResizeMethod), "resize")
    source = load_file(resolve(model))[0] if isinstance(model, str | Path) else model
    fitted = copy.deepcopy(source)
    size = pair(image)
    if size[0] < 1 or size[1] < 1:
        raise UsageError(f"an image has at least one pixel, got {size[0]}×{size[1]}")
    if isinstance(source.config, VisionConfig) and size == source.config.image:
        return fitted
    config = fitted.refit(size, method)
    state = fitted.state_dict()
    with torch.random.fork_rng(devices=[]):
        made = build(config)
    wanted = {name: tensor.shape for name, tensor in made.state_dict().items()}
    wrong = sorted(
        name for name in wanted.keys() | state.keys() if name not in state or state[name].shape != wanted.get(name)
    )
    if wrong:
        raise MixwiseError(
            f"{config.name} has weights for its own image size and no rule for {size[0]}×{size[1]}: "
            f"{wrong[0]} does not fit, and {len(wrong) - 1} more"
        )
    made.load_state_dict(state, assign=True)
    made.trainable_when_fused = source.trainable_when_fused
    for fresh, old in zip(made.parameters(), source.parameters(), strict=True):
        fresh.requires_grad_(old.requires_grad)
    return made.to(next(source.parameters()).device).train(source.training)


def parse_size(text: str) -> Size:
    """(height, width) from "48x64", or from one number for both.

    >>> parse_size("48x64"), parse_size("48")
    ((48, 64), (48, 48))
    """
    sides = text.lower().replace("×", "x").split("x")
    if len(sides) > 2 or not all(side.isascii() and side.isdigit() and int(side) for side in sides):
        raise UsageError(f"an image size is height x width in pixels, such as 48x64, or one side; got {text!r}")
    return int(sides[0]), int(sides[-1])


@dataclass(frozen=True)
class Resized:
    """A resized model file, and how far its answers on pictures are from those before."""

    model: Model
    header: Header
    before: Size
    after: Size
    """The image sizes."""
    parameters: tuple[int, int]
    """Before and after."""
    source: str
    """Where the pictures came from."""
    pictures: int
    same: float
    """Share of the pictures with the same top class, each at its model's own size."""
    change: float
    """Mean absolute difference of the logits (of the features in a model without head)."""
    spread: float
    """Standard deviation of the logits before, to compare with."""


def resize_file(
    model: str | Path,
    out: str | Path,
    image: Size | int,
    *,
    method: ResizeMethod = "auto",
    images: Sequence[str] | None = None,
    pictures: int = PICTURES,
    overwrite: bool = False,
) -> Resized:
    """Resize a model file, measure on pictures how its answers move, and write it.

    Args:
        model: a run folder or a `.safetensors` file.
        out: the file to write, another than `model`. Its header says the new size and forgets what was measured at the
            old one.
        image, method: as in `resize`.
        images: files or folders to compare on; None: the built-in digits.
        pictures: at most so many, evenly spread over what there is.
        overwrite: replace `out` where it is another file than the one that is read.

    Raises `MixwiseError` where the resized model gives numbers that are not finite; then nothing is written.
    """
    file, target = resolve(model), Path(out).expanduser()
    check_output(target, suffixes=(".safetensors",), source=file, overwrite=overwrite)
    source, header = load_file(file)
    made = resize(source, image, method=method)
    if not isinstance(made.config, VisionConfig):
        raise UsageError(f"{made.config.name} is no model of images and has no image size")
    before = cast(VisionConfig, source.config)
    pre = preprocessing(header, before)
    larger = pre.model_copy(update={"image": made.config.image})
    items = some_pictures(images, pictures)
    old, new = answers(source, items, pre), answers(made, items, larger)
    if not bool(new.isfinite().all()):
        raise MixwiseError(f"{before.name} at the new size gives infinite or undefined numbers; nothing was written")
    kept = {"config": made.config, "preprocess": larger if header.preprocess else None}
    header = header.model_copy(update=kept | {"metrics": {}, "decision": Decision()})
    save(target, made.state_dict(), header)
    return Resized(
        model=made,
        header=header,
        before=before.image,
        after=made.config.image,
        parameters=(_count(source), _count(made)),
        source="built-in digits" if images is None else ", ".join(images),
        pictures=len(items),
        same=float((old.argmax(1) == new.argmax(1)).double().mean()),
        change=float((old - new).abs().mean()),
        spread=float(old.std()),
    )


def _count(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())
