"""Pictures to tensors: one way for evaluation, random ways for training; plain classes, which can be pickled."""

import math
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from mixwise.config import Augment, Preprocess, Size
from mixwise.data.fit import FILTERS, fit, reduce
from mixwise.errors import UsageError


class Transform(Protocol):
    """A decoded picture to a tensor, in a fixed step that may be cached and a step that is done every time."""

    @property
    def hint(self) -> Size | None:
        """(height, width) that `decode` may reduce a JPEG to; None where every pixel counts."""

    def prepare(self, picture: Image.Image) -> Image.Image:
        """The fixed step: as small as the second one allows."""

    def finish(self, picture: Image.Image) -> Tensor:
        """The second step: (c, h, w) float32, normalised."""

    def __call__(self, picture: Image.Image) -> Tensor:
        """Both steps."""


def evaluation_transform(pre: Preprocess) -> "Evaluation":
    """What every verb does to a picture that `decode` read with the same `pre.channels` and `pre.background`.

    Returns: a callable, Pillow image → (c, h, w) float32, (x / 255 - mean) / std.

    >>> pre = Preprocess(image=(4, 6), mean=(0.5,) * 3, std=(0.5,) * 3)
    >>> evaluation_transform(pre)(Image.new("RGB", (20, 20), (255, 255, 255))).unique()
    tensor([1.])
    """
    return Evaluation(pre)


def training_transform(pre: Preprocess, augment: Augment) -> "Training":
    """Random views of a picture; all randomness is torch's global generator. In this order:

    1. scale < 1: a random resized crop, of the picture itself with fit="crop", of the picture squashed to the target's
       shape with "squash", of the picture on its background with "pad"; the crop's shape is the target's, changed by at
       most `ratio`. scale = 1: the evaluation view, and `ratio` has no meaning.
    2. shift, flip, rotate. What a shift or a rotation uncovers takes the median colour of the picture's border.
    3. colour: brightness, contrast and saturation; grey pictures have no saturation, alpha is left alone.
    4. randaugment, then to a tensor and normalised, then erase: a random rectangle becomes 0, the mean colour.

    `mixup` and `cutmix` need a batch: they belong to the training step. Raises `UsageError` for randaugment with 4
    channels, which torchvision does not have, and for a shift as large as the image.
    """
    if augment.randaugment and pre.channels == 4:
        raise UsageError("randaugment works on pictures of 1 or 3 channels, got channels=4; set randaugment=0")
    if augment.shift >= min(pre.image):
        raise UsageError(f"shift must be smaller than the image {pre.image[0]} x {pre.image[1]}, got {augment.shift}")
    return Training(pre, augment)


def unnormalize(images: Tensor, pre: Preprocess) -> Tensor:
    """Normalised (…, c, h, w) back to uint8 0 to 255, for people to look at."""
    mean, std = _constants(pre)
    return (images.detach().float().cpu() * std + mean).round().clamp(0, 255).to(torch.uint8)


class Evaluation:
    """The evaluation view of a picture."""

    hint: Size | None = None

    def __init__(self, pre: Preprocess) -> None:
        self.pre = pre
        self.mean, self.std = _constants(pre)

    def prepare(self, picture: Image.Image) -> Image.Image:
        return fit(picture, self.pre)

    def finish(self, picture: Image.Image) -> Tensor:
        return _normalised(picture, self.mean, self.std)

    def __call__(self, picture: Image.Image) -> Tensor:
        return self.finish(self.prepare(picture))


class Training:
    """A random view of a picture; see `training_transform`."""

    def __init__(self, pre: Preprocess, augment: Augment) -> None:
        self.pre = pre
        self.augment = augment
        self.mean, self.std = _constants(pre)
        self.randaugment: Callable[[Image.Image], Image.Image] | None = None
        self.erase: Callable[[Tensor], Tensor] | None = None
        if augment.randaugment or augment.erase:
            # torchvision takes as long to import as torch: only who asks for these pays for it.
            from torchvision.transforms import InterpolationMode, v2

            if augment.randaugment:
                mode = InterpolationMode.NEAREST if pre.filter == "nearest" else InterpolationMode.BILINEAR
                fill = [round(255 * value) for value in pre.mean]
                self.randaugment = v2.RandAugment(augment.randaugment, augment.magnitude, 31, mode, fill)
            if augment.erase:
                self.erase = v2.RandomErasing(augment.erase, value=0)

    @property
    def hint(self) -> Size | None:
        """Large enough for the crops; a picture that is only shifted is seen as in evaluation, from all its pixels."""
        if self.augment.scale == 1:
            return None
        return math.ceil(2 * self.pre.image[0]), math.ceil(2 * self.pre.image[1])

    def prepare(self, picture: Image.Image) -> Image.Image:
        if self.augment.scale == 1:
            return fit(picture, self.pre)
        return reduce(picture, self.pre, self.augment.scale)

    def finish(self, picture: Image.Image) -> Tensor:
        augment = self.augment
        if augment.scale < 1:
            box = _random_box(picture.size, self.pre, augment)
            picture = picture.resize(self.pre.image[::-1], FILTERS[self.pre.filter], box)
        if augment.shift:
            picture = _shifted(picture, augment.shift)
        if augment.flip and _uniform(0, 1) < augment.flip:
            picture = picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        if augment.rotate:
            filter = Image.Resampling.NEAREST if self.pre.filter == "nearest" else Image.Resampling.BILINEAR
            angle = _uniform(-augment.rotate, augment.rotate)
            picture = picture.rotate(angle, filter, fillcolor=_border(picture))
        if augment.colour:
            picture = _recoloured(picture, augment.colour)
        if self.randaugment is not None:
            picture = self.randaugment(picture)
        tensor = _normalised(picture, self.mean, self.std)
        return tensor if self.erase is None else self.erase(tensor)

    def __call__(self, picture: Image.Image) -> Tensor:
        return self.finish(self.prepare(picture))


def _uniform(low: float, high: float) -> float:
    return low + (high - low) * torch.rand(()).item()


def _random_box(size: Size, pre: Preprocess, augment: Augment) -> tuple[float, float, float, float]:
    """(left, top, right, bottom) of a crop with a random share of the area and a random shape near the target's."""
    width, height = size
    shape = width / height if pre.fit == "squash" else pre.image[1] / pre.image[0]
    stretch = math.log(augment.ratio)
    for _ in range(10):
        area = width * height * _uniform(augment.scale, 1)
        ratio = shape * math.exp(_uniform(-stretch, stretch))
        wide, high = math.sqrt(area * ratio), math.sqrt(area / ratio)
        if wide <= width and high <= height:
            left, top = _uniform(0, width - wide), _uniform(0, height - high)
            return left, top, left + wide, top + high
    wide, high = min(width, height * shape), min(height, width / shape)
    left, top = (width - wide) / 2, (height - high) / 2
    return left, top, left + wide, top + high


def _border(picture: Image.Image) -> int | tuple[int, ...]:
    """The median colour of the outermost pixels."""
    pixels = np.asarray(picture)
    pixels = pixels.reshape(picture.height, picture.width, -1)
    edge = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    edge.sort(axis=0)
    middle = tuple(edge[len(edge) // 2].tolist())
    return middle if len(middle) > 1 else middle[0]


def _shifted(picture: Image.Image, most: int) -> Image.Image:
    down, right = torch.randint(-most, most + 1, (2,)).tolist()
    if down == right == 0:
        return picture
    moved = Image.new(picture.mode, picture.size, _border(picture))
    moved.paste(picture, (right, down))
    return moved


def _recoloured(picture: Image.Image, strength: float) -> Image.Image:
    alpha = picture.getchannel("A") if picture.mode == "RGBA" else None
    coloured = picture.convert("RGB") if alpha is not None else picture
    kinds = [ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color]
    for kind in kinds[: 2 if picture.mode == "L" else 3]:
        coloured = kind(coloured).enhance(_uniform(1 - strength, 1 + strength))
    if alpha is not None:
        coloured.putalpha(alpha)
    return coloured


def _constants(pre: Preprocess) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation on the scale of bytes, (c, 1, 1)."""
    return 255 * torch.tensor(pre.mean)[:, None, None], 255 * torch.tensor(pre.std)[:, None, None]


def _normalised(picture: Image.Image, mean: Tensor, std: Tensor) -> Tensor:
    pixels = torch.from_numpy(np.array(picture)).reshape(picture.height, picture.width, -1).permute(2, 0, 1)
    return pixels.to(torch.float32, memory_format=torch.contiguous_format).sub_(mean).div_(std)
