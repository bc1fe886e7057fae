"""What is in a folder: layouts, spellings, junk, splits, and what is said when it is the wrong folder."""

import shutil
import zlib
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mixwise.data import IMAGE_EXTENSIONS, Catalog, decode, discover, export_builtin
from mixwise.errors import UsageError
from mixwise.prediction import find_images
from mixwise.screening.leftovers import leftovers


def make(root: Path, counts: dict[str, int], suffix: str = ".png") -> Path:
    """Empty files `<folder>/<i><suffix>`: discovery does not open them."""
    for folder, count in counts.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for i in range(count):
            (root / folder / f"{i}{suffix}").touch()
    return root


def counts(catalog: Catalog) -> dict[str, dict[str, int]]:
    return {
        split: dict(Counter(catalog.classes[label] for label in items.labels))
        for split, items in catalog.splits.items()
    }


def test_folder_of_classes(tmp_path: Path):
    catalog = discover(make(tmp_path, {"cat": 10, "dog": 20}))
    assert catalog.classes == ("cat", "dog")
    assert counts(catalog) == {"train": {"cat": 8, "dog": 16}, "val": {"cat": 2, "dog": 4}}
    train, val = catalog.splits["train"], catalog.splits["val"]
    assert not set(train.names) & set(val.names)
    assert train.labels.dtype == np.int64
    assert all(str(tmp_path / name) == path for name, path in zip(val.names, val.sources, strict=True))
    assert any("val is 6 of the train pictures: 20% of each class, split seed 0" in note for note in catalog.notes)


def test_real_photos(photos: Path):
    catalog = discover(photos)
    assert (len(catalog.classes), len(catalog.splits["train"]), len(catalog.splits["val"])) == (16, 800, 224)
    assert catalog.notes == ()
    assert decode(catalog.splits["val"].sources[0]).mode == "RGB"


@pytest.mark.parametrize("train", ["train", "Train", "training"])
@pytest.mark.parametrize("val", ["val", "valid", "validation", "dev", "Val", "VALIDATION"])
@pytest.mark.parametrize("test", ["test", "testing", "eval", "Test"])
def test_da06_spellings(tmp_path: Path, train: str, val: str, test: str):
    tree = {f"{split}/{name}": n for split, n in ((train, 3), (val, 2), (test, 1)) for name in ("a", "b")}
    catalog = discover(make(tmp_path, tree))
    assert counts(catalog) == {"train": {"a": 3, "b": 3}, "val": {"a": 2, "b": 2}, "test": {"a": 1, "b": 1}}
    assert (f"{val}/ is the val split" in catalog.notes) == (val != "val")


def test_da07_two_folders_for_one_split(tmp_path: Path):
    make(tmp_path, {"train/a": 2, "val/a": 2, "validation/a": 2})
    with pytest.raises(UsageError, match="two folders for the val split, val/ and validation/"):
        discover(tmp_path)


def test_train_and_test_only(tmp_path: Path):
    catalog = discover(make(tmp_path, {"train/a": 10, "train/b": 10, "test/a": 3, "test/b": 3}), val_split=0.3)
    assert counts(catalog) == {"train": {"a": 7, "b": 7}, "val": {"a": 3, "b": 3}, "test": {"a": 3, "b": 3}}
    assert all(name.startswith("train/") for name in catalog.splits["val"].names)


def test_test_only_and_unsplit(tmp_path: Path):
    assert counts(discover(make(tmp_path / "x", {"test/a": 3, "test/b": 3}))) == {"test": {"a": 3, "b": 3}}
    flat = discover(make(tmp_path / "y", {"a": 3, "b": 3}), split_single=False)
    assert counts(flat) == {"train": {"a": 3, "b": 3}}


def test_classes_named_like_splits(tmp_path: Path):
    """Vehicles: a folder is a split only where it holds folders."""
    assert discover(make(tmp_path, {"bus": 5, "train": 5})).classes == ("bus", "train")


def test_da07_unlabelled_test_pictures_are_passed_over(tmp_path: Path):
    catalog = discover(make(tmp_path, {"train/a": 5, "train/b": 5, "test": 7}))
    assert set(catalog.splits) == {"train", "val"}
    assert "test/ was passed over: it holds 7 images and no class folders" in catalog.notes


def test_other_folders_beside_splits_are_named(tmp_path: Path):
    catalog = discover(make(tmp_path, {"train/a": 5, "val/a": 5, "masks/a": 2}))
    assert any(note.startswith("masks/ was passed over: it is none of train,") for note in catalog.notes)


def test_da02_text_order(tmp_path: Path):
    catalog = discover(make(tmp_path, {str(i): 2 for i in range(12)}))
    assert catalog.classes == ("0", "1", "10", "11", "2", "3", "4", "5", "6", "7", "8", "9")
    for name, label in zip(catalog.splits["train"].names, catalog.splits["train"].labels, strict=True):
        assert name.split("/")[0] == catalog.classes[label]


def test_names_of_all_kinds(tmp_path: Path):
    names = ("猫", "Ünï", "a b", "x'y")
    catalog = discover(make(tmp_path, dict.fromkeys(names, 2)))
    assert catalog.classes == tuple(sorted(names))
    decomposed = make(tmp_path / "mac", {"U\u0308n": 2, "b": 2})
    assert discover(decomposed).classes == ("b", "Ün")
    assert Path(discover(decomposed).splits["val"].sources[-1]).is_file()


def test_da11_da20_junk_is_ignored_and_other_files_are_counted(tmp_path: Path):
    make(tmp_path, {"cat": 4, "dog": 4, ".hidden": 3, "__MACOSX": 3, "cat/.cache": 2, "cat/__MACOSX": 1})
    for junk in (".DS_Store", "._0.png", "Thumbs.db", "desktop.ini", ".x.jpg"):
        (tmp_path / junk).touch()
        (tmp_path / "cat" / junk).touch()
    for other in ("cat/a.txt", "cat/b.TXT", "dog/c.heic", "dog/README"):
        (tmp_path / other).touch()
    catalog = discover(tmp_path)
    assert catalog.classes == ("cat", "dog")
    assert sum(map(len, catalog.splits.values())) == 8
    assert (
        "4 files passed over because their extension is no image's: .heic (1), .txt (2), no extension (1)"
        in catalog.notes
    )


def test_da20_every_extension_in_both_cases_below_any_depth(tmp_path: Path):
    for i, suffix in enumerate(sorted(IMAGE_EXTENSIONS)):
        make(tmp_path, {f"a/{i}/deep": 1}, suffix)
        make(tmp_path, {f"a/{i}/Deep2": 1}, suffix.upper())
    make(tmp_path, {"b": 2})
    assert sum(map(len, discover(tmp_path).splits.values())) == 2 * len(IMAGE_EXTENSIONS) + 2


def test_links_that_go_round(tmp_path: Path):
    make(tmp_path, {"a": 2, "b": 2})
    (tmp_path / "a" / "again").symlink_to(tmp_path / "a", target_is_directory=True)
    assert sum(map(len, discover(tmp_path).splits.values())) == 4


def test_links_back_into_the_data_are_passed_over(tmp_path: Path):
    root, outside = make(tmp_path / "lp", {"green": 3, "red": 3}), make(tmp_path / "outside", {"blue": 2, "more": 2})
    (root / "green" / "up").symlink_to("..", target_is_directory=True)
    (root / "green" / "above").symlink_to(tmp_path, target_is_directory=True)
    (root / "self").symlink_to(".", target_is_directory=True)
    (root / "rouge").symlink_to("red", target_is_directory=True)
    (root / "blue").symlink_to(outside / "blue", target_is_directory=True)
    (root / "red" / "more").symlink_to(outside / "more", target_is_directory=True)
    (tmp_path / "link").symlink_to(root, target_is_directory=True)
    for place in (root, tmp_path / "link"):
        catalog = discover(place, split_single=False)
        assert counts(catalog) == {"train": {"blue": 2, "green": 3, "red": 5}}
        names = "rouge, self, green/above, green/up"
        assert f"links to folders of the data itself, passed over: {names}" in catalog.notes
        assert not leftovers(catalog).outside


def test_links_back_out_of_a_split(tmp_path: Path):
    root = make(tmp_path, {"train/a": 2, "train/b": 2, "val/a": 1, "val/b": 1})
    (root / "test").symlink_to("val", target_is_directory=True)
    (root / "val" / "c").symlink_to("../train", target_is_directory=True)
    catalog = discover(root)
    assert counts(catalog) == {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}}
    assert "links to folders of the data itself, passed over: test, val/c" in catalog.notes


def test_da10_empty_and_single_classes(tmp_path: Path):
    catalog = discover(make(tmp_path, {"a": 3, "b": 0, "c": 1}))
    assert catalog.classes == ("a", "c")
    assert counts(catalog) == {"train": {"a": 2, "c": 1}, "val": {"a": 1}}
    assert "class folders without images, passed over: b" in catalog.notes
    assert "classes with one picture, which stays in train: c" in catalog.notes
    assert "val has no pictures of 1 of 2 classes: c" in catalog.notes


def test_one_class_is_noted(tmp_path: Path):
    assert any("only one class, 'a'" in note for note in discover(make(tmp_path, {"a": 3})).notes)


def test_da09_split_does_not_depend_on_place_or_on_other_classes(tmp_path: Path):
    make(tmp_path / "one", {"a": 30, "b/deep": 30})
    first = discover(tmp_path / "one", seed=1)
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert discover(tmp_path / "two", seed=1).splits["val"].names == first.splits["val"].names
    make(tmp_path / "two", {"aa": 5})
    moved = discover(tmp_path / "two", seed=1).splits["val"].names
    assert [name for name in moved if not name.startswith("aa/")] == list(first.splits["val"].names)
    make(tmp_path / "train-of" / "train", {"a": 30, "b/deep": 30})
    inside = discover(tmp_path / "train-of", seed=1).splits["val"].names
    assert inside == tuple(f"train/{name}" for name in first.splits["val"].names)
    assert discover(tmp_path / "one", seed=2).splits["val"].names != first.splits["val"].names


def test_da04_classes_of_a_model(tmp_path: Path):
    make(tmp_path, {"test/b": 3, "test/c": 2, "test/x": 0})
    catalog = discover(tmp_path, classes=("c", "a", "b"))
    assert catalog.classes == ("c", "a", "b")
    assert counts(catalog) == {"test": {"b": 3, "c": 2}}
    assert "test has no pictures of 1 of 3 classes: a" in catalog.notes
    make(tmp_path, {"test/aa": 1})
    with pytest.raises(UsageError, match=r"the model does not know: 'aa' \(did you mean 'a'\?\); known: c, a, b"):
        discover(tmp_path, classes=("c", "a", "b"))


def test_da05_val_with_a_class_that_train_lacks(tmp_path: Path):
    make(tmp_path, {"train/a": 2, "train/b": 2, "train/extra": 0, "val/a": 1, "val/extra": 1})
    with pytest.raises(UsageError, match=f"val of {tmp_path} has classes that the train split does not know: 'extra'"):
        discover(tmp_path)


def test_da07_every_split_is_counted_and_none_is_overlooked(tmp_path: Path):
    tree = {f"{split}/{name}": n for split, n in (("train", 3), ("val", 2)) for name in "ab"}
    assert counts(discover(make(tmp_path / "data", tree))) == {"train": {"a": 3, "b": 3}, "val": {"a": 2, "b": 2}}
    flat = make(tmp_path / "flat", {"train/a": 3, "train/b": 3, "val": 4})
    assert f"{flat / 'val'} holds 4 images directly and no class folders" in message(flat)


def test_da09_every_class_is_in_both_parts(tmp_path: Path):
    root = make(tmp_path, {"common": 50, "rare": 2, "single": 1})
    first, again = (discover(root, val_split=0.2, seed=1) for _ in range(2))
    assert counts(first) == {"train": {"common": 40, "rare": 1, "single": 1}, "val": {"common": 10, "rare": 1}}
    assert first.splits["val"].names == again.splits["val"].names
    assert "classes with one picture, which stays in train: single" in first.notes


def test_unknown_classes_are_dropped_by_option(tmp_path: Path):
    make(tmp_path, {"train/a": 2, "train/b": 2, "val/a": 1, "val/extra": 3, "test/a": 1, "test/b": 2})
    catalog = discover(tmp_path, unknown_classes="drop")
    assert counts(catalog) == {"train": {"a": 2, "b": 2}, "val": {"a": 1}, "test": {"a": 1, "b": 2}}
    assert "val: 3 pictures of classes that the train split does not know were dropped: extra (3)" in catalog.notes
    with pytest.raises(UsageError, match="unknown way to treat unknown classes 'skip'; allowed: drop, error"):
        discover(tmp_path, unknown_classes="skip")


def test_rename_and_order(tmp_path: Path):
    make(tmp_path, {"n1": 2, "n2": 2, "b": 2})
    catalog = discover(tmp_path, rename={"n1": "zebra", "n2": "b", "other": "x"}, split_single=False)
    assert counts(catalog) == {"train": {"zebra": 2, "b": 4}}
    assert catalog.renamed == (("n1", "zebra"), ("n2", "b"))
    assert discover(tmp_path, rename={"n1": "zebra"}, classes=("zebra", "n2", "b")).classes == ("zebra", "n2", "b")


def message(path: Path | str) -> str:
    with pytest.raises(UsageError) as caught:
        discover(path)
    return str(caught.value)


def test_da08_wrong_level(tmp_path: Path):
    data = make(tmp_path / "data", {f"{split}/{name}": 3 for split in ("train", "val") for name in ("cat", "dog")})
    expected = "expected one of\n  DATA/            DATA/\n    cat/*.jpg        train/cat/*.jpg\n"
    one_class = message(data / "train" / "cat")
    assert f"{data / 'train' / 'cat'} holds 3 images directly and no class folders" in one_class
    assert f"one class of {data}, use that" in one_class
    assert expected in one_class
    assert message(tmp_path).startswith(f"{tmp_path} is one level too high: data holds train and val; use {data}")
    flat = make(tmp_path / "flat" / "only", {".": 5})
    assert f"{flat} holds 5 images directly and no class folders; {expected}" in message(flat)
    splits = make(tmp_path / "splits", {"train": 4, "val": 2})
    assert f"{splits / 'train'} holds 4 images directly and no class folders; {expected}" in message(splits)
    high = make(tmp_path / "high", {"photos/a": 2, "photos/b": 2})
    assert f"one level too high: its only folder photos holds no images directly but 2 folders; use {high}" in message(
        high
    )


def test_nothing_there(tmp_path: Path):
    data = make(tmp_path / "flowers", {"a": 2})
    assert f"no data folder '{tmp_path / 'flower'}' (did you mean '{data}'?)" in message(tmp_path / "flower")
    assert "(did you mean 'digits'?)" in message("digit")
    assert "is a file, but no table, list, tar or array file" in message(data / "a" / "0.png")
    (tmp_path / "empty").mkdir()
    assert "holds no images and no folders" in message(tmp_path / "empty")
    assert "holds 0 images directly and 2 folders with no images" in message(make(tmp_path / "no", {"a": 0, "b": 0}))
    assert "holds 0 images directly and 2 folders" in message(make(tmp_path / "no2", {"train/a": 0, "val/a": 0}))
    with pytest.raises(UsageError, match="val_split must be between 0 and 1, got 1"):
        discover(data, val_split=1)


def test_images_beside_class_folders_are_noted(tmp_path: Path):
    catalog = discover(make(tmp_path, {"a": 2, "b": 2, ".": 3}))
    assert any("passed over 3 images that lie directly in" in note for note in catalog.notes)


def test_digits():
    catalog = discover("digits")
    assert {split: len(items) for split, items in catalog.splits.items()} == {"train": 1197, "val": 300, "test": 300}
    every = [image.tobytes() for items in catalog.splits.values() for image in items.sources]
    assert len(every) == 1797
    for items in catalog.splits.values():
        share = np.bincount(items.labels) / len(items)
        assert np.abs(share - 0.1).max() < 0.006
    first = catalog.splits["test"]
    assert first.names[12] == "digits/test/0012"
    assert first.sources[0].shape == (8, 8)
    assert max(image.max() for image in first.sources) == 255
    # Fixed for good: results on digits are compared between versions.
    sums = {split: zlib.crc32(b"".join(i.tobytes() for i in items.sources)) for split, items in catalog.splits.items()}
    assert sums == {"train": 2565228514, "val": 2864661456, "test": 3991682627}
    flipped = discover("digits", classes=tuple("9876543210"))
    assert (flipped.splits["test"].labels == 9 - first.labels).all()
    with pytest.raises(UsageError, match="digits has classes that the model does not know: '9'; known: 0, 1"):
        discover("digits", classes=tuple("012345678"))


def test_a_folder_named_like_a_built_in_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make(tmp_path, {"digits/a": 2, "digits/b": 2})
    monkeypatch.chdir(tmp_path)
    assert "for the folder of that name write ./digits" in discover("digits").notes[0]
    assert discover("./digits").classes == ("a", "b")


def test_export_builtin(tmp_path: Path):
    files = export_builtin("digits", tmp_path / "new" / "folder", count=20)
    assert [file.name[0] for file in files] == list("01234567890123456789")
    items = discover("digits").splits["test"]
    for file in files:
        assert (np.asarray(Image.open(file)) == items.sources[int(file.stem[2:])]).all()
    with pytest.raises(UsageError, match="unknown built-in data set 'digit'"):
        export_builtin("digit", tmp_path)
    with pytest.raises(UsageError, match="unknown split 'tests'"):
        export_builtin("digits", tmp_path, split="tests")
    with pytest.raises(UsageError, match="count must be 1 to 300, got 301"):
        export_builtin("digits", tmp_path, count=301)


def test_pictures_to_predict_on_are_those_that_training_finds_in_the_folder(tmp_path: Path):
    make(tmp_path / "elsewhere", {"deep": 1})
    root = make(tmp_path / "data", {"cat": 1, ".hidden": 1, "cat/__MACOSX": 1})
    (root / "cat" / "linked").symlink_to(tmp_path / "elsewhere")
    (root / "cat" / "above").symlink_to(root)
    (root / "cat" / "broken.png").symlink_to("nowhere.png")
    names = ("0.png", "broken.png", "linked/deep/0.png")
    assert discover(root, split_single=False).splits["train"].names == tuple(f"cat/{name}" for name in names)
    assert find_images([root]) == [str(root / "cat" / name) for name in names]
