"""Tables and lists of pictures: titles, encodings, splits, several labels, and what is said when they are unclear."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from mixwise.data import Catalog, discover, unlabelled
from mixwise.errors import UsageError
from mixwise.labels import read_labels


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Empty files 0.png to 9.png in pics/: reading a table does not open them."""
    (tmp_path / "pics").mkdir()
    for i in range(10):
        (tmp_path / "pics" / f"{i}.png").touch()
    return tmp_path


def lines(labels: str, mark: str = ",") -> str:
    return "".join(f"pics/{i}.png{mark}{label}\n" for i, label in enumerate(labels.split("/")))


def write(root: Path, text: str, name: str = "t.csv", encoding: str = "utf-8") -> Path:
    (root / name).write_bytes(text.encode(encoding))
    return root / name


def counts(catalog: Catalog) -> dict[str, dict[str, int]]:
    return {k: dict(Counter(catalog.classes[i] for i in items.labels)) for k, items in catalog.splits.items()}


def marks(catalog: Catalog, split: str = "train") -> dict[str, str]:
    items = catalog.splits[split]
    return {
        name: ";".join(np.array(catalog.classes)[row > 0]) for name, row in zip(items.names, items.labels, strict=True)
    }


def message(path: Path) -> str:
    with pytest.raises(UsageError) as caught:
        discover(path)
    return str(caught.value)


ABC = "a/b/a/b/a/b/a/b/a/b"


def test_names_are_compared_composed_and_without_control_characters(root: Path):
    decomposed = "cafe\u0301"
    text = lines("/".join([decomposed, "café", "\x1b[31mred"] + ["café"] * 7))
    catalog = discover(write(root, text))
    assert catalog.classes == ("\\x1b[31mred", "café")
    assert counts(catalog)["train"]["café"] == 7
    (root / "labels.txt").write_text(f"{decomposed}\n\x1b[31mred\n", encoding="utf-8")
    assert read_labels(root / "labels.txt").names == ("café", "\\x1b[31mred")


def test_text_that_breaks_its_encoding_is_named(root: Path):
    (root / "t.csv").write_bytes(b"\xff\xfea\x00b")
    assert f"{root / 't.csv'} begins as utf-16 text and is none" in message(root / "t.csv")


def test_a_table_beside_folders_is_named(root: Path):
    table = write(root, lines(ABC))
    assert any(f"give {table} instead" in note for note in discover(root).notes)
    table.unlink()
    assert not any("instead" in note for note in discover(root).notes)


@pytest.mark.parametrize("titles", ["path,label", "Image Path,Class", "FILENAME,category", "label,whatever", "img,y"])
def test_da09_titles_in_any_usual_spelling(root: Path, titles: str):
    text = lines(ABC)
    if titles.startswith("label"):
        text = "".join(f"{label},{path}\n" for path, label in (line.split(",") for line in text.splitlines()))
    catalog = discover(write(root, f"{titles}\n{text}"))
    assert counts(catalog) == {"train": {"a": 4, "b": 4}, "val": {"a": 1, "b": 1}}
    assert catalog.splits["val"].names == discover(root / "t.csv").splits["val"].names


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"])
@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_encodings_and_delimiters(root: Path, encoding: str, mark: str):
    catalog = discover(write(root, f"path{mark}label\r\n" + lines("Ünï/é x/Ünï", mark), encoding=encoding))
    assert catalog.classes == ("Ünï", "é x")
    assert any("Windows-1252" in note for note in catalog.notes) == (encoding == "cp1252")


def test_quotes_extra_columns_and_pandas_index(root: Path):
    text = ',path,label,size\n0,pics/0.png,"a, b",3\n1,pics/1.png,"c ""d""",4\n'
    catalog = discover(write(root, text))
    assert catalog.classes == ("a, b", 'c "d"')
    assert "columns of t.csv that were passed over: size" in catalog.notes


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.txt", "t.lst"])
@pytest.mark.parametrize("mark", ["\t", " ", ","])
def test_da09_lists_without_titles(root: Path, name: str, mark: str):
    if mark == " " and name in ("t.csv", "t.tsv"):
        pytest.skip("these have columns")
    catalog = discover(write(root, lines(ABC, mark), name))
    assert counts(catalog)["train"] == {"a": 4, "b": 4}


@pytest.mark.parametrize("title", ["path label", "Image\tclass name", "filename"])
def test_a_title_line_of_a_list_is_no_picture(root: Path, title: str):
    bare = title == "filename"
    mark = "\t" if "\t" in title else " "
    text = title + "\n" + ("pics/0.png\npics/1.png\npics/2.png\n" if bare else lines(ABC, mark))
    catalog = discover(write(root, text, "t.txt"), split_single=False)
    assert catalog.classes == (("pics",) if bare else ("a", "b"))
    assert not any("missing" in note for note in catalog.notes)


@pytest.mark.parametrize(
    ("names", "label"),
    [(["image 1.png", "image 2.png"], " a"), (["image 1.png", "image 2.png"], ""), (["image", "image2"], " a")],
)
def test_a_picture_that_is_called_like_a_title_is_kept(root: Path, names: list[str], label: str):
    pictures = [root / "pics" / name for name in names]
    for picture in pictures:
        picture.touch()
    table = write(root / "pics", "".join(f"{name}{label}\n" for name in names), "t.txt")
    assert unlabelled(table) == list(map(str, pictures))


def test_da09_a_list_of_paths_takes_the_folder_as_class(root: Path):
    (root / "pics" / "b c").mkdir()
    (root / "pics" / "b c" / "x y.JPG").touch()
    catalog = discover(
        write(root, f"pics/0.png\n{root}/pics/1.png\n\npics\\b c\\x y.JPG\n", "t.txt"), split_single=False
    )
    assert counts(catalog) == {"train": {"pics": 2, "b c": 1}}
    assert all(Path(source).is_file() for source in catalog.splits["train"].sources)


def test_a_split_column(root: Path):
    parts = ["train"] * 4 + ["Validation"] * 2 + ["TEST", "test", "extra", ""]
    rows = (line + "," + part for line, part in zip(lines(ABC).splitlines(), parts, strict=True))
    catalog = discover(write(root, "path,label,Set\n" + "\n".join(rows)))
    assert counts(catalog) == {"train": {"a": 2, "b": 2}, "val": {"a": 1, "b": 1}, "test": {"a": 1, "b": 1}}
    assert "passed over: 2 rows of other splits:  (1), extra (1)" in catalog.notes
    write(root, "path,label,split\npics/0.png,a,fold1\npics/1.png,b,fold2\n")
    assert "no row has a known split, only fold1 (1), fold2 (1)" in message(root / "t.csv")


def test_a_table_for_each_split_in_one_folder(root: Path):
    write(root, "path,label\npics/0.png,a\npics/1.png,b\n", "train.csv")
    write(root, "path,label\npics/2.png,b\n", "valid.csv")
    catalog = discover(root)
    assert counts(catalog) == {"train": {"a": 1, "b": 1}, "val": {"b": 1}}
    assert catalog.notes[:2] == ("train.csv is the train split", "valid.csv is the val split")
    for split in ("train", "val"):
        for name in "ab":
            (root / split / name).mkdir(parents=True)
            (root / split / name / "0.png").touch()
    assert counts(discover(root)) == {"train": {"a": 1, "b": 1}, "val": {"a": 1, "b": 1}}  # the tree comes first


def test_several_labels_with_semicolons(root: Path):
    catalog = discover(write(root, "path,labels\n" + lines("a;b/ b ; a//c/a;a")), split_single=False)
    assert (catalog.task, catalog.classes) == ("multilabel", ("a", "b", "c"))
    assert marks(catalog) == dict(zip((f"pics/{i}.png" for i in range(5)), ("a;b", "a;b", "", "c", "a"), strict=True))
    assert catalog.splits["train"].labels.dtype == np.float32


def test_one_label_is_one_label_and_a_plural_with_gaps_is_several(root: Path):
    assert discover(write(root, "path,labels\n" + lines("a/b/a/b"))).task == "classify"
    assert discover(write(root, "path,tags\n" + lines("a/b//b"))).task == "multilabel"
    said = message(write(root, "path,label\n" + lines("a/b//b/")))
    assert (
        "2 rows have no label: 4, 6; where pictures may have several labels or none, call the column 'labels'" in said
    )


def test_a_column_a_label(root: Path):
    catalog = discover(write(root, "path,cat,dog,bird\n" + lines("1,0,1/0,0,0/0,1,0")), split_single=False)
    assert (catalog.task, catalog.classes) == ("multilabel", ("bird", "cat", "dog"))
    assert marks(catalog) == {"pics/0.png": "bird;cat", "pics/1.png": "", "pics/2.png": "dog"}
    single = discover(write(root, "path,cat,dog\n" + lines("1,0/0,1/1.0,0.0")), split_single=False)
    assert counts(single) == {"train": {"cat": 2, "dog": 1}}
    assert any("marks exactly one of 2 labels for every picture" in note for note in single.notes)
    again = discover(root / "t.csv", classes=("dog", "cat"), task="multilabel", split_single=False)
    assert marks(again)["pics/1.png"] == "dog"


def test_several_labels_for_a_model_that_gives_one(root: Path):
    write(root, "path,labels\n" + lines("a;b/b"))
    with pytest.raises(UsageError, match="any number of labels a picture, and the model gives exactly one"):
        discover(root / "t.csv", classes=("a", "b"), task="classify")


def test_da05_unknown_labels_of_several_are_dropped_and_counted(root: Path):
    path = write(
        root,
        "path,labels,split\n"
        + "".join(
            f"pics/{i}.png,{label},{split}\n"
            for i, (label, split) in enumerate([("a;b", "train"), ("b", "train"), ("a;x", "val"), ("x;y", "val")])
        ),
    )
    assert "classes that the train split does not know: 'x', 'y'; known: a, b" in message(path)
    catalog = discover(path, unknown_classes="drop")
    assert marks(catalog, "val") == {"pics/2.png": "a", "pics/3.png": ""}
    assert "val: 3 labels that the train split does not know were dropped: x (2), y (1)" in catalog.notes


def test_missing_files_are_named(root: Path):
    catalog = discover(write(root, "path,label\n" + lines(ABC) + "pics/10.png,a\n"))
    assert "1 of 11 pictures in t.csv are missing: pics/10.png" in catalog.notes
    said = message(write(root, "path,label\n0.png,a\n1.png,b\n"))
    assert f"none of them is there: 0.png, 1.png; relative paths start at the table's folder, {root}" in said


def test_repeated_rows(root: Path):
    catalog = discover(write(root, "path,label\n" + lines(ABC) * 2))
    assert sum(map(len, catalog.splits.values())) == 10
    assert "passed over: 10 rows of t.csv, the same as another one" in catalog.notes
    assert "twice with different labels, a and b; several labels of a picture belong into one row" in message(
        write(root, "path,label\npics/0.png,a\npics/0.png,b\n")
    )
    leak = discover(write(root, "path,label,split\npics/0.png,a,train\npics/1.png,b,train\npics/0.png,a,val\n"))
    assert "in more than one split: 1 picture: pics/0.png" in leak.notes


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.csv", "", "is empty"),
        ("t.csv", " ,, \n\n", "is empty"),
        ("t.csv", "path,label\n", "has column titles and no rows"),
        ("t.csv", "id,label\n3,a\n4,b\n", "no column holds the paths of pictures; columns: id, label; call it 'path'"),
        ("t.csv", "path,a,b\npics/0.png,x,y\n", "no column holds the labels; columns: path, a, b; call it 'label'"),
        ("t.csv", "path,label\npics/0.png,a\npics/1.png\n", "row 3 has 1 cells, the first one 2: pics/1.png"),
        ("t.csv", "pics/0.png,a,b\n", "has 3 columns and no titles: write path,label in its first line"),
        ("t.csv", "path,label\npics/0.png,\npics/1.png,\n", "the column 'label' is empty"),
        ("t.txt", "pics/0.png a\npics/1.png\n", "line 2 is no `path label` as the others are: 'pics/1.png'"),
        ("t.txt", "0.png\n1.png\n", "none of them is there"),
        ("t.parquet", "no parquet", "Parquet"),
    ],
)
def test_what_is_unclear_is_said(root: Path, name: str, text: str, said: str):
    assert said in message(write(root, text, name))


def test_paths_without_folders_have_no_label_but_can_be_listed(root: Path):
    path = write(root / "pics", "0.png\n1.png\n", "t.txt")
    assert "says nothing about the labels of 2 pictures: 0.png, 1.png" in message(path)
    assert unlabelled(path) == [str(root / "pics" / "0.png"), str(root / "pics" / "1.png")]


@pytest.mark.parametrize(
    "text",
    [
        "path,label\n0.png,cat\n1.png,dog\n0.png,cat\n",
        "path,label\n0.png,cat\n1.png,dog\n0.png,dog\n",
        "path,label\n0.png,\n1.png,\n0.png,\n",
        "path,width,height\n0.png,8,8\n1.png,8,8\n0.png,9,9\n",
        "path,split\n0.png,train\n1.png,extra\n0.png,test\n",
        "0.png\n1.png\n0.png\n",
    ],
)
def test_pictures_to_predict_on_are_those_of_the_rows_whatever_else_stands_there(root: Path, text: str):
    found = unlabelled(write(root / "pics", text))
    assert [Path(each).name for each in found] == ["0.png", "1.png", "0.png"]


def test_a_table_to_predict_on_none_of_whose_pictures_is_there_says_where_paths_start(root: Path):
    with pytest.raises(UsageError, match="relative paths start at"):
        unlabelled(write(root, "path,label\n0.png,\n1.png,\n"))


@pytest.mark.parametrize(
    ("labels", "title", "found"),
    [
        ([0.0, 2.0, 10.0], "label", ("0", "10", "2")),
        ([0.5, 2.0, 10.0], "label", ("0.5", "10", "2")),
        ([1, 2, 10], "label", ("1", "10", "2")),
        ([2.0, float("nan"), 10.0], "labels", ("10", "2")),
        ([2.0, float("nan"), None], "label", None),
        ([[2.0, 10.0], [], [2.0]], "labels", ("10", "2")),
    ],
)
def test_numbers_in_parquet_name_classes_as_they_do_in_csv(root: Path, labels: list, title: str, found):
    pa = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    paths = [f"pics/{i}.png" for i in range(3)]
    parquet.write_table(pa.table({"path": paths, title: labels}), root / "t.parquet")
    if found is None:
        assert "2 rows have no label: 2, 3" in message(root / "t.parquet")
    else:
        assert discover(root / "t.parquet").classes == found
