"""Tars read in place: keys, label members, splits, junk, and what cannot be read so."""

import gzip
import io
import json
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixwise.data import Catalog, decode, discover
from mixwise.errors import UsageError


def png(value: int) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.full((6, 6), value, np.uint8)).save(stream, "PNG")
    return stream.getvalue()


def make(path: Path, members: dict[str, bytes | str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members.items():
            member = tarfile.TarInfo(name)
            encoded = data.encode() if isinstance(data, str) else data
            member.size = len(encoded)
            tar.addfile(member, io.BytesIO(encoded))
    return path


def truth(catalog: Catalog, split: str = "train") -> dict[int, str]:
    """The grey of each picture and its class."""
    items = catalog.splits[split]
    return {
        decode(source, channels=1).getpixel((0, 0)): catalog.classes[label]
        for source, label in zip(items.sources, items.labels, strict=True)
    }


def message(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        discover(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("suffix", "label"),
    [("cls", "cat\n"), ("txt", " cat"), ("json", '{"label": "cat", "id": 3}'), ("json", '"cat"'), ("CLS", "cat")],
)
def test_label_members(tmp_path: Path, suffix: str, label: str):
    members = {"a/1.jpg": png(1), f"a/1.{suffix}": label, f"a/2.{suffix}": "dog", "a/2.seg.PNG": png(2)}
    members[f"a/2.{suffix}"] = json.dumps("dog") if suffix == "json" else "dog"
    assert truth(discover(make(tmp_path / "x.tar", members), split_single=False)) == {1: "cat", 2: "dog"}


def test_numbers_keep_the_order_of_numbers(tmp_path: Path):
    members = {name: data for i in range(12) for name, data in ((f"{i}.png", png(i)), (f"{i}.cls", str(i)))}
    catalog = discover(make(tmp_path / "x.tar", members), split_single=False)
    assert catalog.classes == tuple(map(str, range(12)))
    assert truth(catalog) == {i: str(i) for i in range(12)}


def test_several_labels(tmp_path: Path):
    members = {"1.png": png(1), "1.json": '{"labels": ["a", "b"]}', "2.png": png(2), "2.json": '{"labels": []}'}
    catalog = discover(make(tmp_path / "x.tar", members), split_single=False)
    assert (catalog.task, catalog.classes) == ("multilabel", ("a", "b"))
    assert catalog.splits["train"].labels.tolist() == [[1, 1], [0, 0]]


@pytest.mark.parametrize("names", [("train-0.tar", "val-0.tar"), ("train/0.tar", "Validation/0.tar")])
def test_splits_by_name_or_folder(tmp_path: Path, names: tuple[str, str]):
    for i, name in enumerate(names):
        make(tmp_path / name, {"0.png": png(i), "0.cls": "a", "1.png": png(10 + i), "1.cls": "b"})
    catalog = discover(tmp_path)
    assert truth(catalog, "train") == {0: "a", 10: "b"}
    assert truth(catalog, "val") == {1: "a", 11: "b"}


def test_a_data_folder_packed_up(tmp_path: Path, photos: Path):
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        for path in sorted(photos.rglob("*_00*.jpg")):
            tar.add(path, path.relative_to(photos.parent))
    catalog, plain = discover(tmp_path / "photos.tar"), discover(photos)
    assert catalog.classes == plain.classes
    for split in ("train", "val"):
        pairs = zip(plain.splits[split].names, plain.splits[split].labels.tolist(), strict=True)
        wanted = {(f"photos.tar/photos/{name}", label) for name, label in pairs if "_00" in name}
        assert set(zip(catalog.splits[split].names, catalog.splits[split].labels.tolist(), strict=True)) == wanted


def test_da11_junk_of_a_mac_is_ignored(tmp_path: Path):
    members = {"a/1.png": png(1), "b/2.png": png(2), "a/._1.png": "x", "__MACOSX/a/1.png": "x", "a/.DS_Store": "x"}
    members |= {"a/Thumbs.db": "x", "a/note.pdf": "x"}
    catalog = discover(make(tmp_path / "x.tar", members), split_single=False)
    assert truth(catalog) == {1: "a", 2: "b"}
    assert "passed over: 1 member whose extension is no image's: .pdf (1)" in catalog.notes


def test_patterns(tmp_path: Path):
    for i in range(8, 12):
        make(tmp_path / f"s{i:03d}.tar", {f"{i}.png": png(i), f"{i}.cls": "a" if i % 2 else "b"})
    assert len(truth(discover(tmp_path / "s{008..011}.tar", split_single=False))) == 4
    assert len(truth(discover(tmp_path / "s01*.tar", split_single=False))) == 2
    assert len(truth(discover(tmp_path, split_single=False))) == 4
    assert f"2 of the 4 files that {tmp_path}/s{{010..013}}.tar means are not there: " in message(
        tmp_path / "s{010..013}.tar"
    )
    assert "no file matches" in message(tmp_path / "x*.tar")


def test_only_the_index_is_read_and_names_differ_between_tars(tmp_path: Path):
    for i in range(2):
        make(tmp_path / f"{i}.tar", {"same.png": png(i), "same.cls": "ab"[i]})
    items = discover(tmp_path, split_single=False).splits["train"]
    assert items.names == ("0.tar/same.png", "1.tar/same.png")
    assert all(
        Counter(type(v).__name__ for v in (s.file, s.start, s.size)) == {"str": 1, "int": 2} for s in items.sources
    )


def test_what_cannot_be_read_is_said(tmp_path: Path):
    plain = make(tmp_path / "x.tar", {"a/1.png": png(1), "a/1.cls": "a", "a/2.png": png(2)})
    assert "1 pictures have no label beside them: x.tar/a/2.png" in message(plain)
    packed = tmp_path / "g.tar"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert "is no tar that can be read in place: it is compressed; unpack it once" in message(packed)
    assert "there is no image in 1 tar files" in message(make(tmp_path / "none.tar", {"a.txt": "x"}))
    assert "x.json holds no label" in message(make(tmp_path / "j.tar", {"x.png": png(0), "x.json": "{"}))
    assert "says nothing about the labels" in message(make(tmp_path / "bare.tar", {"1.png": png(0)}))
