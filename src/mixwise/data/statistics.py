"""What the pictures of a data set look like: enough to choose image size, channels and normalisation."""

from dataclasses import dataclass

import numpy as np

from mixwise.config import MAX_PIXELS
from mixwise.data.address import address
from mixwise.data.bad import BadImage
from mixwise.data.catalog import Items
from mixwise.data.decode import decode, size_of
from mixwise.errors import MixwiseError, UsageError

_SIDE = 64
"""JPEGs are read no larger than needed for this side."""

_GREY = 1 / 255
"""Mean difference between the largest and the least of red, green and blue up to which a picture counts as grey."""


@dataclass(frozen=True)
class Statistics:
    """Measured on a sample of `count` pictures; every picture has the same weight."""

    count: int
    height: float
    """Median, pixels, upright."""
    width: float
    grey: float
    """Share of pictures without any colour, whatever their mode."""
    transparent: float
    """Share of pictures with an alpha below 255."""
    bad: int
    """Pictures that could not be read, besides the `count`."""
    mean: tuple[float, ...]
    """Of luma, red, green and blue, on a scale of 0 to 1."""
    std: tuple[float, ...]

    def normalisation(self, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """(mean, std) for `Preprocess` with 1, 3 or 4 channels, to four decimals; alpha is only centred."""
        chosen = {1: slice(0, 1), 3: slice(1, 4), 4: slice(1, 4)}
        if channels not in chosen:
            raise UsageError(f"normalisation: channels must be 1, 3 or 4, got {channels}")
        alpha = (0.5,) if channels == 4 else ()
        mean = tuple(round(value, 4) for value in self.mean[chosen[channels]])
        std = tuple(round(max(value, 1 / 255), 4) for value in self.std[chosen[channels]])
        return mean + alpha, std + alpha


def measure(items: Items, *, limit: int = 256, seed: int = 0, max_pixels: int = MAX_PIXELS) -> Statistics:
    """Look at up to `limit` pictures, chosen by `seed`. Bad ones are counted and left out; all bad raises.

    Colours are those that `decode` gives on a white background, JPEGs read at reduced size.

    >>> from mixwise.data import discover
    >>> measure(discover("digits").splits["train"]).height
    8.0
    """
    if not len(items):
        raise UsageError("measure: there are no pictures")
    chosen = np.random.default_rng(address(seed)).permutation(len(items))[:limit]
    sizes, means, squares = [], [], []
    grey = transparent = 0
    bad: list[BadImage] = []
    for source in (items.sources[index] for index in sorted(chosen.tolist())):
        try:
            size = size_of(source, max_pixels=max_pixels)
            rgba = decode(source, channels=4, hint=(_SIDE, _SIDE), max_pixels=max_pixels)
        except BadImage as error:
            bad.append(error)
            continue
        rgb = decode(rgba)
        values = np.asarray(rgb, np.float32) / 255
        luma = np.asarray(rgb.convert("L"), np.float32) / 255
        both = np.concatenate([luma[:, :, None], values], axis=2)
        sizes.append(size)
        means.append(both.mean(axis=(0, 1)))
        squares.append(np.square(both).mean(axis=(0, 1)))
        grey += bool(np.ptp(values, axis=2).mean() < _GREY)
        transparent += bool(np.asarray(rgba)[:, :, 3].min() < 255)
    if not sizes:
        raise MixwiseError(f"measure: none of the {len(bad)} pictures looked at can be read; the first: {bad[0]}")
    height, width = np.median(sizes, axis=0).tolist()
    mean = np.mean(means, axis=0)
    std = np.sqrt(np.maximum(np.mean(squares, axis=0) - np.square(mean), 0))
    shares = grey / len(sizes), transparent / len(sizes)
    return Statistics(len(sizes), height, width, *shares, len(bad), tuple(mean.tolist()), tuple(std.tolist()))
