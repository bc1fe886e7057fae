"""Data sets that other libraries lay down: Hugging Face datasets on disk, and torchvision's."""

from pathlib import Path

import numpy as np
import pytest

from mixwise.data import decode, discover, unlabelled
from mixwise.errors import UsageError


@pytest.fixture
def datasets():
    found = pytest.importorskip("datasets")
    found.disable_progress_bars()
    return found


def pictures(n: int) -> list[np.ndarray]:
    return [np.full((5, 4), i, np.uint8) for i in range(n)]


def greys(items) -> list[int]:
    return [decode(source, channels=1).getpixel((0, 0)) for source in items.sources]


def test_splits_names_and_order(datasets, tmp_path: Path):
    features = datasets.Features({"img": datasets.Image(), "fine_label": datasets.ClassLabel(names=["b", "a"])})
    table = datasets.Dataset.from_dict({"img": pictures(6), "fine_label": [0, 1] * 3}, features=features)
    parts = {"train": table, "validation": table.select([0, 3]), "unsupervised": table.select([1])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "d"))
    catalog = discover(tmp_path / "d")
    assert catalog.classes == ("b", "a")
    assert greys(catalog.splits["train"]) == [0, 1, 2, 3, 4, 5]
    assert catalog.splits["train"].labels.tolist() == [0, 1] * 3
    assert greys(catalog.splits["val"]) == [0, 3]
    assert "validation is the val split" in catalog.notes
    assert "the split 'unsupervised' was passed over: it is none of train, val and test" in catalog.notes


def test_several_labels_and_arrays(datasets, tmp_path: Path):
    data = {"image": [p.tolist() for p in pictures(3)], "tags": [["x", "y"], [], ["y"]]}
    datasets.Dataset.from_dict(data).save_to_disk(str(tmp_path / "d"))
    catalog = discover(tmp_path / "d", split_single=False)
    assert (catalog.task, catalog.classes) == ("multilabel", ("x", "y"))
    assert catalog.splits["train"].labels.tolist() == [[1, 1], [0, 0], [0, 1]]
    assert greys(catalog.splits["train"]) == [0, 1, 2]


@pytest.mark.parametrize("values", [[0.0, 1.0, None], ["x", "", "y"], [None, "x", "y"]])
def test_a_picture_without_a_label_gets_none_of_that_name(datasets, tmp_path: Path, values: list):
    datasets.Dataset.from_dict({"image": pictures(3), "label": values}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(UsageError, match="says nothing about the labels of 1 pictures"):
        discover(tmp_path / "d")
    assert len(unlabelled(tmp_path / "d")) == 3


def test_several_labels_of_which_the_first_picture_has_none(datasets, tmp_path: Path):
    data = {"image": pictures(3), "tags": [None, [2.0, 10.0], [2.0]]}
    datasets.Dataset.from_dict(data).save_to_disk(str(tmp_path / "d"))
    catalog = discover(tmp_path / "d", split_single=False)
    assert catalog.classes == ("2", "10")
    assert catalog.splits["train"].labels.tolist() == [[0, 0], [1, 1], [1, 0]]


def test_a_table_without_pictures(datasets, tmp_path: Path):
    datasets.Dataset.from_dict({"text": ["a"], "label": [0]}).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(UsageError, match="has no column of pictures; its columns are text, label"):
        discover(tmp_path / "d")


def mnist(root: Path, train: int, test: int) -> Path:
    """Files as MNIST has them, with pictures of one grey that is also in their label."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", train), ("t10k", test)):
        labels = np.arange(count, dtype=np.uint8) % 10
        images = np.repeat(labels, 28 * 28)
        head = [
            np.array([0, 0, 8, d, *np.array(shape, ">u4").view(np.uint8)], np.uint8)
            for d, shape in ((1, (count,)), (3, (count, 28, 28)))
        ]
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(head[0].tobytes() + labels.tobytes())
        (raw / f"{name}-images-idx3-ubyte").write_bytes(head[1].tobytes() + images.tobytes())
    return root


def test_torchvision_by_name(tmp_path: Path):
    catalog = discover(f"torchvision:MNIST:{mnist(tmp_path, 40, 20)}")
    assert {split: len(items) for split, items in catalog.splits.items()} == {"train": 30, "val": 10, "test": 20}
    assert catalog.classes[:2] == ("0 - zero", "1 - one")
    for items in catalog.splits.values():
        assert greys(items) == items.labels.tolist()


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("torchvision:CIFAR:{}", "did you mean 'CIFAR10'"),
        ("torchvision:CIFAR10", "names no data set and folder; write torchvision:NAME:FOLDER"),
        ("torchvision:CIFAR10:{}", "mixwise downloads nothing, torchvision.datasets.CIFAR10\\(.*download=True\\) does"),
        ("torchvision:MNIST:{},colour=red", "takes other options: .*colour"),
        ("torchvision:FakeData:{}", "reads nothing from a folder"),
    ],
)
def test_torchvision_that_is_not_there(tmp_path: Path, source: str, said: str):
    with pytest.raises(UsageError, match=said):
        discover(source.format(tmp_path))
    assert not list(tmp_path.iterdir())
