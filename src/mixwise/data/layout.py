"""How pictures lie in folders: which folders are splits, which are classes, and what is said when neither fits."""

import difflib
import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from mixwise.data.builtin import BUILTIN
from mixwise.data.listing import SPLITS, Listing, Row, counted, kinds, listed, split_name
from mixwise.errors import UsageError, printable
from mixwise.labels import class_name

# fmt: off
IMAGE_EXTENSIONS = frozenset([
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".icb", ".ico", ".j2c", ".j2k", ".jfif", ".jp2", ".jpc", ".jpe",
    ".jpeg", ".jpf", ".jpg", ".jpx", ".mpo", ".pbm", ".pcx", ".pfm", ".pgm", ".png", ".pnm", ".ppm", ".sgi", ".tga",
    ".tif", ".tiff", ".vda", ".vst", ".webp",
])
# fmt: on
"""A file counts as an image by one of these, in any case; what its bytes are is for `decode` to find out."""

TREE = """expected one of
  DATA/            DATA/
    cat/*.jpg        train/cat/*.jpg
    dog/*.jpg        train/dog/*.jpg
                     val/cat/*.jpg
                     val/dog/*.jpg
or a table (.csv, .tsv, .parquet), a list (.txt), tars (.tar), arrays (.npz): docs/data.md has them all"""

JUNK = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini", "__macosx"})
"""Files and folders that systems leave behind, in any case; hidden ones are ignored as well."""


@dataclass
class ClassFolder:
    """One class in one split."""

    path: Path
    images: list[str] = field(default_factory=list)
    """Paths below `path` with forward slashes, sorted as text."""
    others: Counter[str] = field(default_factory=Counter)
    """Files that are no images, by extension."""
    back: list[Path] = field(default_factory=list)
    """Links that lead back into the data."""


Layout = dict[str, dict[str, ClassFolder]]
"""Class folders by split and class name, the empty ones included."""


def read_folders(root: Path) -> Listing:
    """The pictures in the class folders below `root`, the splits in order, the classes sorted as text."""
    notes: list[str] = []
    layout = read_layout(root, notes)
    others: Counter[str] = sum((folder.others for found in layout.values() for folder in found.values()), Counter())
    if others:
        notes.append(
            f"{counted(others.total(), 'file')} passed over because their extension is no image's: {kinds(others)}"
        )
    folders = [folder for found in layout.values() for folder in found.values()]
    empty = [printable(folder.path.relative_to(root).as_posix()) for folder in folders if not folder.images]
    if empty:
        notes.append(f"class folders without images, passed over: {listed(empty)}")
    parents = {root} | {folder.path.parent for found in layout.values() for folder in found.values()}
    back = [path for parent in sorted(parents) for path in _entries(parent) if leads_back(path, root)]
    back += [path for found in layout.values() for folder in found.values() for path in folder.back]
    if back:
        names = [printable(path.relative_to(root).as_posix()) for path in back]
        notes.append(f"links to folders of the data itself, passed over: {listed(names)}")
    rows = []
    for split in (split for split in SPLITS if split in layout):
        for name, folder in sorted(layout[split].items()):
            below = folder.path.relative_to(root).as_posix()
            for image in folder.images:
                source = os.path.join(folder.path, image)
                rows.append(Row(source, printable(f"{below}/{image}"), (name,), split))
    return Listing(rows, notes)


def read_layout(root: Path, notes: list[str]) -> Layout:
    """All class folders below `root`. Without split folders everything is "train". Decisions are added to `notes`."""
    if not root.is_dir():
        raise _no_folder(root)
    folders = _folders(root, root)
    named = {path: split for path in folders if (split := split_name(path.name)) is not None}
    flat = [path for path in named if _images(path)]
    splits = {path: split for path, split in named.items() if path not in flat and _folders(path, root)}
    if folders and len(named) == len(folders) and flat and not (splits and all(named[p] == "test" for p in flat)):
        raise _wrong_level(flat[0])
    if "train" in splits.values() or (splits and len(named) == len(folders)):
        return _read_splits(root, folders, splits, notes)
    return {"train": _read_classes_only(root, folders, notes)}


def is_split_tree(root: Path) -> bool:
    """Whether a folder of `root` is a training split with class folders in it."""
    return any(split_name(path.name) == "train" and _folders(path, root) for path in _folders(root, root))


def _read_splits(root: Path, folders: list[Path], splits: dict[Path, str], notes: list[str]) -> Layout:
    layout: Layout = {}
    chosen: dict[str, Path] = {}
    for path, split in splits.items():
        if split in chosen:
            both = f"{chosen[split].name}/ and {path.name}/"
            raise UsageError(f"{root} has two folders for the {split} split, {both}: rename or remove one")
        chosen[split] = path
        classes = _read_classes(path, root)
        if any(folder.images for folder in classes.values()):
            layout[split] = classes
            if path.name != split:
                notes.append(f"{path.name}/ is the {split} split")
        else:
            notes.append(f"{path.name}/ holds no images and was passed over")
    if not layout:
        raise _wrong_level(root)
    for path in folders:
        if path not in splits:
            count = len(_images(path))
            found = f"{count} images and no class folders" if count else "no class folders"
            why = f"holds {found}" if split_name(path.name) else "is none of " + ", ".join(sum(SPLITS.values(), ()))
            notes.append(f"{printable(path.name)}/ was passed over: it {why}")
    return layout


def _read_classes_only(root: Path, folders: list[Path], notes: list[str]) -> dict[str, ClassFolder]:
    for path in folders:
        inner = [
            child.name
            for child in _folders(path, root)
            if split_name(child.name) and _folders(child, root) and not _images(child)
        ]
        if inner and not _images(path):
            raise UsageError(f"{root} is one level too high: {path.name} holds {' and '.join(inner)}; use {path}")
    classes = _read_classes(root, root)
    if not any(folder.images for folder in classes.values()):
        raise _wrong_level(root)
    direct = len(_images(root))
    if direct:
        notes.append(f"passed over {direct} images that lie directly in {root}, in no class folder")
    only = folders[0]
    inside = len(_folders(only, root))
    if len(classes) == 1 and inside > 1 and not _images(only):
        what = f"its only folder {only.name} holds no images directly but {inside} folders"
        raise UsageError(f"{root} is one level too high: {what}; use {only}")
    return classes


def _read_classes(parent: Path, root: Path) -> dict[str, ClassFolder]:
    classes: dict[str, ClassFolder] = {}
    for path in _folders(parent, root):
        name = class_name(path.name)
        if name in classes:
            raise UsageError(f"{parent} has two folders named {name!r} that differ only in Unicode form: merge them")
        classes[name] = _read_class(path, root)
    return classes


def images_below(folder: Path) -> list[str]:
    """Every picture in a folder at any depth, found as those of a class are; sorted by path."""
    return [os.path.join(folder, image) for image in _read_class(folder, folder).images]


def _read_class(path: Path, root: Path) -> ClassFolder:
    found = ClassFolder(path)
    pending, seen = [(path, "")], set()
    while pending:
        here, prefix = pending.pop()
        real = os.path.realpath(here)  # a link to a folder above would never end
        if real in seen:
            continue
        seen.add(real)
        for entry in _entries(here):
            suffix = entry.suffix.lower()
            if entry.is_dir():
                if leads_back(entry, root):
                    found.back.append(entry)
                else:
                    pending.append((entry, f"{prefix}{entry.name}/"))
            elif suffix in IMAGE_EXTENSIONS:
                found.images.append(prefix + entry.name)
            else:
                found.others[suffix or "no extension"] += 1
    found.images.sort()
    return found


def _entries(folder: Path) -> list[Path]:
    """What is in a folder, sorted by name, without hidden files and system junk."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise UsageError(f"cannot look into {folder}: {error.strerror}") from None
    return [folder / name for name in names if not name.startswith(".") and name.lower() not in JUNK]


def leads_back(path: Path, root: Path) -> bool:
    """Whether a path is a link to a folder that is walked anyway: the data folder, one in it, or one above it."""
    if not path.is_symlink() or not path.is_dir():
        return False
    real, top = Path(os.path.realpath(path)), Path(os.path.realpath(root))
    return real.is_relative_to(top) or top.is_relative_to(real)


def _folders(folder: Path, root: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir() and not leads_back(path, root)]


def _images(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.suffix.lower() in IMAGE_EXTENSIONS and not path.is_dir()]


def _no_folder(path: Path) -> UsageError:
    if path.exists():
        return UsageError(f"{path} is a file, but no table, list, tar or array file; {TREE}")
    siblings = [sibling.name for sibling in _folders(path.parent, path.parent)] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, [*siblings, *BUILTIN], n=1)
    hint = f" (did you mean {near[0] if near[0] in BUILTIN else str(path.parent / near[0])!r}?)" if near else ""
    return UsageError(f"no data folder {str(path)!r}{hint}; {TREE}; built in: {', '.join(BUILTIN)}")


def _wrong_level(folder: Path) -> UsageError:
    """No class folder in `folder` holds images: say what is there, and where the data folder may be."""
    images, folders = len(_images(folder)), len(_folders(folder, folder))
    what = f"{folder} holds {images} images directly and {folders} folders with no images in them"
    if images and not folders:
        what = f"{folder} holds {images} images directly and no class folders"
        above = folder.absolute().parent
        beside = [path for path in _folders(above, above) if path.name != folder.name and _images(path)]
        if beside and split_name(folder.name) is None:
            data = above.parent if split_name(above.name) else above
            return UsageError(f"{what}: it looks like one class of {data}, use that; {TREE}")
    elif not images and not folders:
        what = f"{folder} holds no images and no folders"
    return UsageError(f"{what}; {TREE}")
