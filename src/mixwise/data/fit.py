"""Geometry: how a picture of any shape comes to the size that a model takes."""

import math

from PIL import Image

from mixwise.config import Preprocess, Size

FILTERS = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
    "nearest": Image.Resampling.NEAREST,
}
"""Pillow's filters: all but nearest widen with the factor when they shrink, that is, they are antialiased."""

MARGIN = 1.5
"""How much larger than the target, per side, the pictures are that random crops are cut from."""


def fit(picture: Image.Image, pre: Preprocess) -> Image.Image:
    """The evaluation view: exactly `pre.image` large.

    crop: the least size that covers image / crop_pct, keeping the shape, then the centre; for squares the same as
    torchvision's Resize and CenterCrop. squash: resized to the size, whatever the shape. pad: the largest size that
    lies within the image, keeping the shape, centred on the background (transparent where the picture is RGBA).
    """
    height, width = pre.image
    if pre.fit == "squash":
        return _resize(picture, pre.image, pre)
    if pre.fit == "pad":
        return _pad(picture, pre.image, pre)
    least = (math.floor(height / pre.crop_pct), math.floor(width / pre.crop_pct))
    picture = _middle(picture, least)
    if picture.height * least[1] <= picture.width * least[0]:
        size = (least[0], max(least[1], least[0] * picture.width // picture.height))
    else:
        size = (max(least[0], least[1] * picture.height // picture.width), least[1])
    resized = _resize(picture, size, pre)
    top, left = round((size[0] - height) / 2), round((size[1] - width) / 2)
    return resized.crop((left, top, left + width, top + height))


def _middle(picture: Image.Image, shape: Size) -> Image.Image:
    """Of a long strip only the part around its centre: all of it, enlarged, might not fit into memory."""
    width = math.ceil(16 * picture.height * shape[1] / shape[0])
    height = math.ceil(16 * picture.width * shape[0] / shape[1])
    left, top = max(0, (picture.width - width) // 2), max(0, (picture.height - height) // 2)
    return picture.crop((left, top, picture.width - left, picture.height - top)) if left or top else picture


def reduce(picture: Image.Image, pre: Preprocess, scale: float) -> Image.Image:
    """What random crops of at least `scale` of the area are cut from: the whole picture, no larger than needed.

    A crop of share s covers √s of each side, so 1 / √s times the target size loses nothing; `MARGIN` bounds that, so
    the very smallest crops are enlarged a little (by 1.13 per side at scale=0.35). Never enlarges. With fit="pad" the
    picture is on its background already, in the target's shape; with fit="squash" each side is reduced by itself.
    """
    factor = min(MARGIN, 1 / math.sqrt(scale))
    height, width = (math.ceil(factor * side) for side in pre.image)
    shares = height / picture.height, width / picture.width
    if pre.fit == "squash":
        return _resize(picture, (min(height, picture.height), min(width, picture.width)), pre)
    if pre.fit == "pad":
        share = min(1.0, *shares)
        return _pad(picture, (math.ceil(height * share / min(shares)), math.ceil(width * share / min(shares))), pre)
    share = max(shares)
    if share >= 1:
        return picture
    return _resize(picture, (math.ceil(picture.height * share), math.ceil(picture.width * share)), pre)


def _resize(picture: Image.Image, size: Size, pre: Preprocess) -> Image.Image:
    if picture.size == size[::-1]:
        return picture
    return picture.resize(size[::-1], FILTERS[pre.filter])


def _pad(picture: Image.Image, size: Size, pre: Preprocess) -> Image.Image:
    """The picture as large as fits into `size`, centred on the background."""
    share = min(size[0] / picture.height, size[1] / picture.width)
    inner = (
        min(size[0], max(1, round(picture.height * share))),
        min(size[1], max(1, round(picture.width * share))),
    )
    ground = Image.new(picture.mode, size[::-1], _background(pre))
    ground.paste(_resize(picture, inner, pre), ((size[1] - inner[1]) // 2, (size[0] - inner[0]) // 2))
    return ground


def _background(pre: Preprocess) -> int | tuple[int, ...]:
    if pre.channels == 1:
        red, green, blue = pre.background
        return round(0.299 * red + 0.587 * green + 0.114 * blue)
    return (*pre.background, 0) if pre.channels == 4 else pre.background
