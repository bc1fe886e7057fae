"""Cross-validation: the same pictures divided into parts, each part validated on once."""

from dataclasses import replace

import numpy as np

from mixwise.config import Data
from mixwise.data import Catalog, Items
from mixwise.data.address import text_address
from mixwise.errors import UsageError
from mixwise.training.balance import class_counts


def folded(catalog: Catalog, data: Data) -> Catalog:
    """The catalog with fold `data.fold` of `data.folds` as its validation pictures; as it is where there are no folds.

    Training and validation pictures are pooled, test pictures stay apart. Within each class (each set of labels) the
    pictures are ranked by a hash of the split seed and their names, and dealt out in turn: so no class is missing from
    a fold that has pictures enough, and a picture's fold does not depend on the order of the files.
    """
    if not data.folds and not data.fold:
        return catalog
    if data.folds < 2 or not 1 <= data.fold <= data.folds:
        raise UsageError(
            f"data.fold must be between 1 and data.folds, which is at least 2; got {data.fold}/{data.folds}"
        )
    pool = pooled([catalog.splits[name] for name in ("train", "val") if name in catalog.splits])
    if len(pool) < data.folds:
        raise UsageError(f"{catalog.source} has {len(pool)} pictures to divide into {data.folds} folds")
    val = fold_of(pool, data.folds, data.split_seed) == data.fold - 1
    splits = {"train": pool.chosen(np.flatnonzero(~val).tolist()), "val": pool.chosen(np.flatnonzero(val).tolist())} | {
        name: items for name, items in catalog.splits.items() if name == "test"
    }
    note = f"fold {data.fold} of {data.folds}: {int(val.sum())} of {len(pool)} pictures are validated on" + _lacking(
        catalog, pool, data.folds
    )
    kept = tuple(n for n in catalog.notes if not n.startswith("val is "))
    return replace(catalog, splits=splits, notes=(*kept, note))


def _lacking(catalog: Catalog, pool: Items, folds: int) -> str:
    """A warning where the smallest class has fewer pictures than there are folds; empty where it has enough."""
    counts = class_counts(pool.labels, len(catalog.classes))
    count, name = min((int(n), name) for n, name in zip(counts, catalog.classes, strict=True))
    if count >= folds:
        return ""
    return f". Warning: the smallest class, {name!r}, has {count}, so some folds have none of it to validate on"


def fold_of(items: Items, folds: int, seed: int) -> np.ndarray:
    """The fold of each picture, 0 to folds − 1, (n,)."""
    groups: dict[bytes, list[int]] = {}
    for i, label in enumerate(items.labels):
        groups.setdefault(np.asarray(label).tobytes(), []).append(i)
    result = np.empty(len(items), dtype=np.int64)
    dealt = 0  # the next class goes on where the last one ended, so that the folds are equally large
    for key in sorted(groups):
        for i in sorted(groups[key], key=lambda i: text_address(seed, items.names[i])):
            result[i] = dealt % folds
            dealt += 1
    return result


def pooled(parts: list[Items]) -> Items:
    """Several lists of pictures as one."""
    sources = [source for part in parts for source in part.sources]
    names = tuple(name for part in parts for name in part.names)
    return Items(sources, np.concatenate([part.labels for part in parts]), names)
