"""Arrays in .npz files: the usual names, shapes and types, and what is refused."""

from pathlib import Path

import numpy as np
import pytest

from mixwise.data import decode, discover
from mixwise.errors import UsageError

GREY = np.random.default_rng(0).integers(0, 256, (12, 6, 5), np.uint8)
LABELS = np.arange(12) % 3


def save(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path / "a.npz", **arrays)
    return path / "a.npz"


@pytest.mark.parametrize(
    ("image", "label", "splits"),
    [
        ("image", "label", ("train",)),
        ("X", "Y", ("train",)),
        ("data", "targets", ("train",)),
        ("x_train", "y_train", ("train",)),
        ("train_images", "train_labels", ("train",)),
        ("test_image", "test_label", ("test",)),
        ("val.images", "val.labels", ("val",)),
        ("image", "subject", ("train",)),
    ],
)
def test_names(tmp_path: Path, image: str, label: str, splits: tuple[str, ...]):
    catalog = discover(save(tmp_path, **{image: GREY, label: LABELS, "shot": LABELS}), split_single=False)
    assert tuple(catalog.splits) == splits
    items = catalog.splits[splits[0]]
    assert catalog.classes == ("0", "1", "2")
    assert (items.labels == LABELS).all()
    assert all((np.asarray(decode(s)) == g[:, :, None]).all() for s, g in zip(items.sources, GREY, strict=True))


def test_splits_and_class_names(tmp_path: Path):
    names = np.array(["zebra", "ant", "cow"])
    path = save(
        tmp_path, train_image=GREY, train_label=LABELS, test_image=GREY[:6], test_label=LABELS[:6], classes=names
    )
    catalog = discover(path)
    assert catalog.classes == ("zebra", "ant", "cow")  # the file's own order
    assert {split: len(items) for split, items in catalog.splits.items()} == {"train": 9, "val": 3, "test": 6}
    assert catalog.splits["test"].names[0] == "test/00000"


def test_da02_numbers_are_their_own_index(tmp_path: Path):
    labels = np.array([0, 1, 2, 10, 11, 9, 3, 4, 5, 6, 7, 8])
    catalog = discover(save(tmp_path, image=GREY, label=labels), split_single=False)
    assert catalog.classes == tuple(map(str, range(12)))
    assert (catalog.splits["train"].labels == labels).all()


RGB = np.random.default_rng(1).integers(0, 256, (4, 6, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("images", "noted"),
    [
        (RGB, False),
        (RGB.transpose(0, 3, 1, 2), False),
        (RGB / 255, False),
        (RGB.astype(np.int64), True),
        (RGB.astype(np.float32), True),
        (RGB.astype(np.uint16) * 257, False),
    ],
    ids=["hwc", "chw", "unit", "int64", "float255", "uint16"],
)
def test_shapes_and_types(tmp_path: Path, images: np.ndarray, noted: bool):
    catalog = discover(save(tmp_path, image=images, label=LABELS[:4].reshape(4, 1)), split_single=False)
    found = [np.asarray(decode(source)) for source in catalog.splits["train"].sources]
    assert (np.stack(found) == RGB).all()
    assert any("read as 0 to 255" in note for note in catalog.notes) == noted


def test_several_labels(tmp_path: Path):
    marks = np.array([[1, 1], [0, 0], [0, 1]])
    catalog = discover(save(tmp_path, image=GREY[:3], labels=marks, classes=np.array(["b", "a"])), split_single=False)
    assert (catalog.task, catalog.classes) == ("multilabel", ("b", "a"))
    assert (catalog.splits["train"].labels == marks).all()
    one = discover(save(tmp_path, image=GREY[:3], labels=np.eye(3)), split_single=False)
    assert (one.task, one.splits["train"].labels.tolist()) == ("classify", [0, 1, 2])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"points": np.zeros((3, 9)), "label": LABELS[:3]}, r"no array of pictures; it has points \(3, 9\), label"),
        ({"image": np.zeros((3, 64), np.uint8), "label": LABELS[:3]}, r"pictures must be \(n, h, w\).*got \(3, 64\)"),
        ({"image": GREY, "label": LABELS[:3]}, "12 pictures and 3 labels"),
        ({"image": GREY}, "says nothing about the labels of 12 pictures"),
        ({"image": GREY, "x": GREY, "label": LABELS}, "two arrays that may be the image of all; one is 'x'"),
        ({"image": GREY - 300.0, "label": LABELS}, "values must be 0 to 1 or 0 to 255, got -300"),
        ({"image": GREY, "label": LABELS + 0.5}, "labels must be whole numbers or names, got float64"),
        ({"image": GREY, "label": LABELS + 1, "classes": np.array(["a", "b", "c"])}, "label 3 has no name: 3 classes"),
        ({"image": GREY, "label": np.array([{}] * 12)}, "objects in pickles are never loaded"),
        ({"jpeg": GREY.ravel(), "label": LABELS}, "'offset' array of n \\+ 1 places"),
    ],
)
def test_what_does_not_fit_is_said(tmp_path: Path, arrays: dict[str, np.ndarray], said: str):
    with pytest.raises(UsageError, match=said):
        discover(save(tmp_path, **arrays))
    (tmp_path / "no.npz").write_bytes(b"no")
    with pytest.raises(UsageError, match="cannot be read as arrays"):
        discover(tmp_path / "no.npz")


@pytest.mark.parametrize(
    ("name", "classes", "train", "first"),
    [
        ("fashion_mnist_12k", 10, 8000, "T-shirt/top"),
        ("orl_faces", 39, 312, "2"),
        ("cifar10_jpeg", 10, 40000, "airplane"),
    ],
)
def test_real_files(shared_data: Path, name: str, classes: int, train: int, first: str):
    catalog = discover(shared_data / f"{name}.npz")
    assert (len(catalog.classes), len(catalog.splits["train"]), catalog.classes[0]) == (classes, train, first)
    assert decode(catalog.splits["val"].sources[5]).mode == "RGB"
