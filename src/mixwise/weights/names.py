"""Class names for weights that come without them."""

from collections import Counter

from timm.data import ImageNetInfo, infer_imagenet_subset


def imagenet_names(classes: int) -> tuple[tuple[str, ...], str] | None:
    """(names, which ImageNet) by the number of classes, as timm lists them; None where no ImageNet has so many.

    A name that several classes share gets its WordNet number: "crane (n02012849)".
    """
    subset = infer_imagenet_subset({"num_classes": classes})
    if subset is None:
        return None
    info = ImageNetInfo(subset)
    names, numbers = info.label_descriptions(), info.label_names()
    counts = Counter(names)
    unique = (f"{n} ({w})" if counts[n] > 1 else n for n, w in zip(names, numbers, strict=True))
    return tuple(unique), subset


def default_names(classes: int) -> tuple[tuple[str, ...], str]:
    """Names for so many classes, and where they come from: an ImageNet's, else the digits "0", "1", …"""
    found = imagenet_names(classes)
    if found is not None:
        return found[0], f"the class names are those of {found[1]}, by the number of classes; --labels gives others"
    if not classes:
        return (), "the file has no head: the model gives features; --new-head makes an untrained head"
    return tuple(map(str, range(classes))), "the classes have no names: they are called by their number; --labels names"
