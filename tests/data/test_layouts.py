"""The same pictures in every layout: the same classes, labels and pixels, in every verb that reads them."""

import hashlib
import io
import os
import pickle
import shutil
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixwise.config import Preprocess
from mixwise.data import (
    BadImage,
    Catalog,
    ImageDataset,
    Stored,
    decode,
    discover,
    evaluation_transform,
    loader,
    located,
    measure,
    size_of,
    unlabelled,
)
from mixwise.data.dataset import choose_workers
from mixwise.errors import UsageError
from mixwise.report.page import thumbnail

CLASSES = ("10", "9", "cat", "ünï x")
PRE = Preprocess(image=(12, 12), channels=1, mean=(0.5,), std=(0.5,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Four classes of five grey pictures, 12 high and 10 wide, no two alike."""
    root = tmp_path_factory.mktemp("layouts") / "folder"
    for i, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for j in range(5):
            pixels = np.random.default_rng(10 * i + j).integers(0, 256, (12, 10), np.uint8)
            Image.fromarray(pixels).save(root / name / f"{j}.png")
    return root


def rows(folder: Path) -> list[tuple[Path, str]]:
    return [(path, path.parent.name) for path in sorted(folder.rglob("*.png"), reverse=True)]


def as_table(folder: Path, out: Path, mark: str = ",", suffix: str = ".csv", titles: bool = True) -> Path:
    lines = [f"{os.path.relpath(path, out)}{mark}{name}" for path, name in rows(folder)]
    (out / f"t{suffix}").write_text("\n".join([f"path{mark}label"] * titles + lines), encoding="utf-8")
    return out / f"t{suffix}"


def as_list(folder: Path, out: Path) -> Path:
    return as_table(folder, out, "\t", ".txt", titles=False)


def as_paths(folder: Path, out: Path) -> Path:
    (out / "paths.lst").write_text("\n".join(str(path) for path, _ in rows(folder)), encoding="utf-8")
    return out / "paths.lst"


def add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    tar.addfile(member, io.BytesIO(data))


def as_shards(folder: Path, out: Path) -> Path:
    for shard in range(3):
        with tarfile.open(out / f"{shard:03d}.tar", "w") as tar:
            for i, (path, name) in list(enumerate(rows(folder)))[shard::3]:
                add(tar, f"{i:04d}.PNG", path.read_bytes())
                add(tar, f"{i:04d}.cls", name.encode())
    return out / "{000..002}.tar"


def as_packed(folder: Path, out: Path) -> Path:
    with tarfile.open(out / "packed.tar", "w") as tar:
        tar.add(folder, "anything")
    return out / "packed.tar"


def as_arrays(folder: Path, out: Path) -> Path:
    images = np.stack([np.asarray(Image.open(path)) for path, _ in rows(folder)])
    np.savez(out / "a.npz", Images=images, labels=[CLASSES.index(name) for _, name in rows(folder)], classes=CLASSES)
    return out / "a.npz"


def as_encoded(folder: Path, out: Path) -> Path:
    files = [path.read_bytes() for path, _ in rows(folder)]
    offset = np.cumsum([0, *map(len, files)])
    data = np.frombuffer(b"".join(files), np.uint8)
    np.savez_compressed(out / "e.npz", png=data, offset=offset, y=np.array([name for _, name in rows(folder)]))
    return out / "e.npz"


def as_parquet(folder: Path, out: Path) -> Path:
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    table = {"file_name": [str(p) for p, _ in rows(folder)], "label": [name for _, name in rows(folder)]}
    parquet.write_table(pa.table(table), out / "t.parquet")
    return out / "t.parquet"


def as_saved(folder: Path, out: Path) -> Path:
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    table = {"image": [str(p) for p, _ in rows(folder)], "label": [name for _, name in rows(folder)]}
    made = datasets.Dataset.from_dict(table).cast_column("image", datasets.Image())
    made.cast_column("label", datasets.ClassLabel(names=list(CLASSES))).save_to_disk(str(out / "saved"))
    return out / "saved"


def as_torchvision(folder: Path, out: Path) -> str:
    shutil.copytree(folder, out / "tv")
    return f"torchvision:ImageFolder:{out / 'tv'}"


LAYOUTS = {
    "csv": as_table,
    "list": as_list,
    "paths": as_paths,
    "shards": as_shards,
    "packed": as_packed,
    "arrays": as_arrays,
    "encoded": as_encoded,
    "parquet": as_parquet,
    "saved": as_saved,
    "torchvision": as_torchvision,
}


@pytest.fixture(params=LAYOUTS)
def source(request, folder: Path, tmp_path: Path) -> str | Path:
    return LAYOUTS[request.param](folder, tmp_path)


def contents(catalog: Catalog) -> dict[str, Counter]:
    """Class names with the pixels of their pictures, by split."""
    return {
        split: Counter(
            (catalog.classes[label], hashlib.sha1(np.asarray(decode(source, channels=1)).tobytes()).hexdigest())
            for source, label in zip(items.sources, items.labels, strict=True)
        )
        for split, items in catalog.splits.items()
    }


def tree(path: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_every_layout_gives_the_same_pictures(source, folder: Path, tmp_path: Path):
    before = tree(tmp_path)
    found = discover(source, split_single=False)
    assert found.classes == CLASSES
    assert found.task == "classify"
    assert contents(found) == contents(discover(folder, split_single=False))
    assert contents(discover(source, classes=CLASSES[::-1], split_single=False)) == contents(found)
    assert tree(tmp_path) == before


def test_every_layout_splits_label_by_label_and_the_same_way_again(source):
    first, again, other = (discover(source, val_split=0.4, seed=seed) for seed in (1, 1, 2))
    assert np.bincount(first.splits["val"].labels).tolist() == [2, 2, 2, 2]
    assert first.splits["val"].names == again.splits["val"].names
    assert first.splits["val"].names != other.splits["val"].names
    assert not set(first.splits["val"].names) & set(first.splits["train"].names)


def test_every_layout_can_be_measured_shown_and_served(source):
    items = discover(source).splits["train"]
    assert measure(items).height == 12
    for each in items.sources:
        assert size_of(each) == (12, 10)
        assert (np.asarray(decode(pickle.loads(pickle.dumps(each)))) == np.asarray(decode(each))).all()
    assert thumbnail(items.sources[0], PRE).startswith("data:image/png")
    assert choose_workers(items.sources) == 0
    dataset = ImageDataset(items, PRE, evaluation_transform(PRE))
    plain, busy = (list(loader(dataset, 8, train=False, workers=workers)) for workers in (0, 1))
    for a, b in zip(plain, busy, strict=True):
        assert all(map(torch.equal, a, b))


def test_every_file_layout_can_be_predicted_on(source, folder: Path, tmp_path: Path):
    if str(source).startswith("torchvision:"):
        assert discover(located(source)).source == str(source)
        return
    found = unlabelled(Path(source))
    assert len(found) == 20
    assert len({str(each) for each in found}) == 20
    assert all(isinstance(each, str | Stored) for each in found)
    assert decode(found[0]).size == (10, 12)


def test_bad_pictures_inside_larger_files_are_named(folder: Path, tmp_path: Path):
    good = rows(folder)[0][0].read_bytes()
    with tarfile.open(tmp_path / "x.tar", "w") as tar:
        add(tar, "a/good.png", good)
        add(tar, "a/half.png", good[: len(good) // 2])
        add(tar, "b/none.png", b"")
    catalog = discover(tmp_path / "x.tar", split_single=False)
    reasons = {}
    for source in catalog.splits["train"].sources[1:]:
        for read in (decode, size_of):
            with pytest.raises(BadImage) as caught:
                read(source)
            reasons[caught.value.path] = caught.value.reason
    path = tmp_path / "x.tar"
    assert reasons == {f"{path}/a/half.png": "truncated", f"{path}/b/none.png": "empty"}
    os.remove(path)
    with pytest.raises(BadImage, match=r"good\.png: missing"):
        decode(catalog.splits["train"].sources[0])


def test_a_picture_that_ends_like_a_list_is_a_picture(folder: Path, tmp_path: Path):
    shutil.copy(rows(folder)[0][0], tmp_path / "photo.txt")
    assert unlabelled(tmp_path / "photo.txt") == []
    assert unlabelled(rows(folder)[0][0]) == []


def test_sources_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert located("digits") == "digits"
    assert located("a/../t.csv") == str(tmp_path / "t.csv")
    assert located("torchvision:EMNIST:data,split=letters") == f"torchvision:EMNIST:{tmp_path / 'data'},split=letters"


@pytest.mark.parametrize(
    ("package", "layout"), [("pyarrow", "parquet"), ("datasets", "saved")], ids=["parquet", "saved"]
)
def test_a_missing_extra_is_named(package, layout, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / ("t.parquet" if layout == "parquet" else "saved")
    if layout == "parquet":
        path.write_bytes(b"PAR1")
    else:
        path.mkdir()
        (path / "dataset_dict.json").write_text("{}")
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(UsageError, match="pip install 'mixwise"):
        discover(path)
