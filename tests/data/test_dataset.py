"""Batches: the same for any number of workers, any cache and any restart."""

import io
import pickle
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from mixwise.config import Augment, Preprocess
from mixwise.data import (
    AddressedSampler,
    BadImage,
    BadImages,
    ImageDataset,
    Items,
    discover,
    evaluation_transform,
    loader,
    measure,
    training_transform,
)
from mixwise.data.address import address
from mixwise.errors import MixwiseError, UsageError

AUGMENT = Augment(scale=0.5, rotate=10, colour=0.3, randaugment=1, erase=0.5)
PRE = Preprocess(image=(24, 32), mean=(0.5,) * 3, std=(0.25,) * 3)


@pytest.fixture(scope="module")
def some(photos: Path) -> Items:
    items = discover(photos).splits["val"]
    return Items(items.sources[:37], items.labels[:37], items.names[:37])


def arrays(n: int) -> Items:
    images = tuple(np.full((8, 8), i, np.uint8) for i in range(n))
    return Items(images, np.arange(n) % 3, tuple(map(str, range(n))))


def dataset(
    items: Items, *, train: bool = True, seed: int = 0, cache: float = 512, pre: Preprocess = PRE
) -> ImageDataset:
    transform = training_transform(pre, AUGMENT) if train else evaluation_transform(pre)
    return ImageDataset(items, pre, transform, seed=seed, train=train, cache=cache)


def epochs(made, epochs=(0, 1)) -> list[list[torch.Tensor]]:
    batches = []
    for epoch in epochs:
        made.sampler.set_epoch(epoch)
        batches += list(made)
    return batches


def same(a: list, b: list) -> bool:
    return len(a) == len(b) and all(all(map(torch.equal, x, y)) for x, y in zip(a, b, strict=True))


STARTS = [("spawn", 1)] + ([("fork", 2)] if sys.platform == "linux" else [])  # a spawned worker imports torch: slow


@pytest.mark.parametrize(("start", "workers"), STARTS)
def test_workers_change_nothing(some: Items, start, workers: int):
    plain = epochs(loader(dataset(some), 8, train=True, seed=5, workers=0))
    busy = epochs(loader(dataset(some), 8, train=True, seed=5, workers=workers, start=start))
    assert same(plain, busy)
    assert [len(batch[0]) for batch in plain] == [8, 8, 8, 8, 5] * 2


def test_evaluation_with_workers(some: Items):
    plain = list(loader(dataset(some, train=False), 8, train=False, workers=0))
    busy = list(loader(dataset(some, train=False), 8, train=False, workers=2))
    assert same(plain, busy)
    assert torch.cat([batch[2] for batch in plain]).tolist() == list(range(37))
    assert torch.cat([batch[1] for batch in plain]).tolist() == some.labels.tolist()


def test_cache_changes_nothing(some: Items):
    cached, bare, tight = (dataset(some, cache=cache) for cache in (512, 0, 0.05))
    batches = [epochs(loader(each, 8, train=True, workers=0)) for each in (cached, bare, tight)]
    assert same(batches[0], batches[1])
    assert same(batches[0], batches[2])
    assert len(cached.cache.pictures) == 37
    assert not bare.cache.pictures
    assert 0 < len(tight.cache.pictures) < 37
    assert tight.cache.used <= 0.05e6
    assert not pickle.loads(pickle.dumps(cached)).cache.pictures  # workers get the paths, not the pictures
    seen = dataset(some, train=False)
    assert all(torch.equal(seen[i][0], dataset(some, train=False, cache=0)[i][0]) for i in (0, 5, 0, 5))


def test_seed_epoch_and_index_decide(some: Items):
    made = dataset(some)
    assert torch.equal(made[2, 5][0], made[2, 5][0])
    assert torch.equal(made[2, 5][0], dataset(some)[2, 5][0])
    assert not torch.equal(made[2, 5][0], made[3, 5][0])
    assert not torch.equal(made[2, 5][0], dataset(some, seed=1)[2, 5][0])
    resumed = epochs(loader(dataset(some), 8, train=True, workers=0), (3,))
    unbroken = epochs(loader(dataset(some), 8, train=True, workers=0), (0, 1, 2, 3))
    assert same(resumed, unbroken[-len(resumed) :])


def test_torchs_generator_is_left_alone(some: Items):
    for workers in (0, 1):
        before = torch.get_rng_state()
        epochs(loader(dataset(some), 16, train=True, workers=workers))
        assert torch.equal(torch.get_rng_state(), before)


def test_sampler():
    sampler = AddressedSampler(100, 0)
    orders = []
    for epoch in (0, 1, 0):
        sampler.set_epoch(epoch)
        keys = list(sampler)
        assert {e for e, _ in keys} == {epoch}
        orders.append([index for _, index in keys])
        assert sorted(orders[-1]) == list(range(100))
    assert orders[0] == orders[2] != orders[1]
    assert [index for _, index in AddressedSampler(100, 1)] != orders[0]


def test_processes_share_an_epoch_evenly():
    shares = [list(AddressedSampler(23, 0, rank=rank, world=4)) for rank in range(4)]
    assert [len(share) for share in shares] == [5] * 4
    assert len({key for share in shares for key in share}) == 20
    with pytest.raises(UsageError, match="3 pictures cannot be shared by 4 processes"):
        AddressedSampler(3, 0, world=4)


@pytest.mark.parametrize(
    ("n", "batch", "sizes"), [(33, 32, [32]), (34, 32, [32, 2]), (65, 32, [32, 32]), (1, 32, [1]), (3, 1, [1, 1, 1])]
)
def test_no_training_batch_of_one_leftover(n: int, batch: int, sizes: list[int]):
    pre = Preprocess(image=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    made = ImageDataset(arrays(n), pre, training_transform(pre, Augment.none()), train=True)
    batches = loader(made, batch, train=True)
    assert [len(images) for images, _, _ in batches] == sizes
    assert len(batches) == len(sizes)
    left_out = set()
    for epoch in range(8):
        batches.sampler.set_epoch(epoch)
        left_out |= set(range(n)) - {int(i) for _, _, indices in batches for i in indices}
    assert len(left_out) != 1
    evaluated = ImageDataset(arrays(n), pre, evaluation_transform(pre))
    assert sum(len(images) for images, _, _ in loader(evaluated, batch, train=False)) == n


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("train", [False, True])
def test_a_bad_picture_is_named(tmp_path: Path, workers: int, train: bool):
    sources = []
    for i in range(4):
        sources.append(str(tmp_path / f"{i}.png"))
        Image.effect_noise((40, 40), 50).save(sources[-1])
    Path(sources[2]).write_bytes(Path(sources[2]).read_bytes()[:600])
    items = Items(sources, np.zeros(4, np.int64), tuple(sources))
    with pytest.raises(BadImage) as caught:
        list(loader(dataset(items, train=train), 2, train=train, workers=workers))
    assert caught.value.path == sources[2]
    assert "\n" not in str(caught.value)


def half_bad(folder: Path, count: int, bad: set[int]) -> Items:
    sources = []
    for i in range(count):
        sources.append(str(folder / f"{i}.png"))
        Image.effect_noise((30, 30), 50).save(sources[-1])
        if i in bad:
            Path(sources[-1]).write_bytes(b"")
    return Items(sources, np.arange(count) % 2, tuple(sources))


@pytest.mark.parametrize("workers", [0, 2])
def test_da12_bad_pictures_leave_their_places_in_the_batches(tmp_path: Path, workers: int):
    """Each batch is what it would be, without them; a single one that remains goes too; all batches are there."""
    bad = {1, 2, 3, 5, 7, 8, 9}
    items = half_bad(tmp_path, 16, bad)
    whole = AddressedSampler(16, 3, batch_size=2)
    lines: list[str] = []
    found = BadImages("train", 16, say=lines.append)
    made = loader(dataset(items), 2, train=True, seed=3, workers=workers, bad=found)
    sizes = set()
    for epoch in (0, 1):
        whole.set_epoch(epoch)
        made.sampler.set_epoch(epoch)
        order = [index for _, index in whole]
        batches = list(made)
        assert len(batches) == len(made) == 8
        for k, (images, labels, indices) in enumerate(batches):
            left = [i for i in order[2 * k : 2 * k + 2] if i not in bad]
            assert indices.tolist() == (left if len(left) != 1 else [])
            assert labels.tolist() == [i % 2 for i in indices.tolist()]
            assert images.shape == (len(indices), 3, 24, 32)
            sizes.add(len(indices))
    assert sizes == {0, 2}
    assert set(found.found) == bad
    assert len(lines) == len(bad)  # once, not in each epoch
    assert all(items.sources[i] in "".join(lines) for i in bad)
    evaluated = loader(dataset(items, train=False), 2, train=False, workers=workers, bad=BadImages("val", 16))
    assert [i for _, _, indices in evaluated for i in indices.tolist()] == sorted(set(range(16)) - bad)


def test_da12_too_many_bad_pictures_stop_with_their_names(tmp_path: Path):
    items = half_bad(tmp_path, 10, {2, 5, 7})
    made = loader(dataset(items, train=False), 4, train=False, bad=BadImages("the val split", 10, max_bad=0.3))
    assert sum(len(batch[0]) for batch in made) == 7
    made = loader(dataset(items, train=False), 4, train=False, bad=BadImages("the val split", 10, max_bad=0.2))
    with pytest.raises(MixwiseError, match=r"3 of the 10 pictures of the val split .*2\.png \(empty\), .*7\.png"):
        list(made)
    nothing = half_bad(tmp_path, 2, {0, 1})
    with pytest.raises(MixwiseError, match="2 of the 2 pictures of all"):
        list(loader(dataset(nothing, train=False), 1, train=False, bad=BadImages("all", 2, max_bad=1)))
    with pytest.raises(UsageError, match="did you mean 'skip'"):
        BadImages("x", 1, on_bad="skp")


def test_cache_stays_within_its_limit_whatever_the_pictures(tmp_path: Path):
    """Its account is what Pillow allocates: 1 byte a pixel in grey, 4 in colour, and a little for the object."""
    for channels in (1, 3, 4):
        pre = Preprocess(image=(40, 50), channels=channels, mean=(0.5,) * channels, std=(0.5,) * channels)
        made = dataset(arrays(60), train=False, cache=0.03, pre=pre)
        for i in range(60):
            made[i]
        held = sum(p.width * p.height * (1 if channels == 1 else 4) for p in made.cache.pictures.values())
        assert held < made.cache.used <= 30_000
        assert len(made.cache.pictures) == 30_000 // (2000 * (1 if channels == 1 else 4) + 1000)


def test_mismatched_loader():
    with pytest.raises(UsageError, match="train=True, but its dataset was made with train=False"):
        loader(dataset(arrays(4), train=False), 2, train=True)
    with pytest.raises(UsageError, match="batch_size must be at least 1, got 0"):
        loader(dataset(arrays(4)), 0, train=True)


def test_address_is_even_and_order_matters():
    seeds = [address(0, epoch, index) for epoch in range(20) for index in range(500)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert max(Counter(seed % 16 for seed in seeds).values()) < 800
    assert len({address(1, 2), address(2, 1), address(1, 2, 0), address(0, 1, 2)}) == 4


def test_measure(photos: Path):
    found = measure(discover(photos).splits["train"], limit=100)
    assert (found.count, found.bad) == (100, 0)
    assert 160 <= found.height <= 300
    assert 0 < found.grey < 0.1
    mean, std = found.normalisation(3)
    assert all(0.4 < value < 0.65 for value in mean)
    assert all(0.2 < value < 0.4 for value in std)
    assert found == measure(discover(photos).splits["train"], limit=100)


def test_measure_knows_sizes_and_grey(tmp_path: Path):
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    Image.effect_noise((600, 400), 30).convert("RGB").save(stream, "JPEG", exif=exif)
    for i in range(3):
        (tmp_path / f"{i}.jpg").write_bytes(stream.getvalue())
    (tmp_path / "bad.jpg").write_bytes(b"")
    sources = [str(path) for path in sorted(tmp_path.iterdir())]
    found = measure(Items(sources, np.zeros(4, np.int64), tuple(sources)))
    assert (found.height, found.width, found.grey, found.bad, found.count) == (600, 400, 1, 1, 3)
    clear = np.zeros((5, 7, 4), np.uint8)
    found = measure(Items([clear], np.zeros(1, np.int64), ("clear",)))
    assert (found.height, found.width, found.transparent, found.mean[0]) == (5, 7, 1, 1)
    assert len(found.normalisation(4)[0]) == 4
    assert found.normalisation(1)[1] == (0.0039,)
    with pytest.raises(UsageError, match="channels must be 1, 3 or 4, got 2"):
        found.normalisation(2)
    bad = Items([sources[-1]], np.zeros(1, np.int64), ("bad",))
    with pytest.raises(
        MixwiseError, match=r"none of the 1 pictures looked at can be read; the first: .*bad\.jpg: empty"
    ):
        measure(bad)
