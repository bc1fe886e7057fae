"""Pictures in batches. (seed, epoch, index) alone set order and augmentation: workers and restarts change nothing."""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, default_collate

from mixwise.config import MAX_PIXELS, Preprocess
from mixwise.data.address import address
from mixwise.data.bad import BadImage, BadImages
from mixwise.data.cache import PictureCache
from mixwise.data.catalog import Items
from mixwise.data.decode import decode
from mixwise.data.transforms import Transform
from mixwise.errors import MixwiseError, UsageError

Key = int | tuple[int, ...]
"""index, or in training (epoch, index), and behind it how often the picture came in this epoch before, if it did."""

Sample = tuple[Tensor, Any, int]
"""(c, h, w) normalised picture, label or labels as `Items` has them, index."""


class ImageDataset(Dataset):
    """Labelled pictures as tensors.

    Args:
        items: what to read.
        pre: channels and background for `decode`.
        transform: its fixed step is always done, and its result cached; so the cache changes no pixel.
        seed: with epoch and index it decides every random draw in `transform`; torch's own generator is left as it was.
        train: keys are those of `AddressedSampler`; otherwise they are indices.
        cache: MB of memory for prepared pictures; 0: none.
        max_pixels: of the largest picture that `decode` reads.

    `dataset[key]` is (picture (c, h, w), label, index). Raises `BadImage` with the path for what cannot be read.

    >>> from mixwise.config import Augment
    >>> from mixwise.data import discover, training_transform
    >>> pre = Preprocess(image=(8, 8), channels=1, mean=(0.5,), std=(0.5,))
    >>> items = discover("digits").splits["train"]
    >>> ImageDataset(items, pre, training_transform(pre, Augment(scale=1, shift=1)), train=True)[3, 7][0].shape
    torch.Size([1, 8, 8])
    """

    def __init__(
        self,
        items: Items,
        pre: Preprocess,
        transform: Transform,
        *,
        seed: int = 0,
        train: bool = False,
        cache: float = 512,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.items = items
        self.pre = pre
        self.transform = transform
        self.seed = seed
        self.train = train
        self.cache = PictureCache(cache)
        self.max_pixels = max_pixels

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, key: Any) -> Sample:
        if not self.train:
            return self.transform.finish(self.prepared(key)), self.items.labels[key], key
        index = key[1]
        picture = self.prepared(index)
        kept = torch.default_generator.get_state()
        # Not torch.manual_seed: that also seeds, or queues for, every GPU.
        torch.default_generator.manual_seed(address(self.seed, *key))
        try:
            return self.transform.finish(picture), self.items.labels[index], index
        finally:
            torch.default_generator.set_state(kept)

    def prepared(self, index: int) -> Image.Image:
        """The picture after the fixed step, from the cache where it is there."""
        if index in self.cache.pictures:
            return self.cache.pictures[index]
        pre = self.pre
        source = self.items.sources[index]
        decoded = decode(
            source,
            channels=pre.channels,
            background=pre.background,
            hint=self.transform.hint,
            max_pixels=self.max_pixels,
        )
        picture = self.transform.prepare(decoded)
        self.cache.put(index, picture)
        return picture


class AddressedSampler(Sampler[tuple[int, ...]]):
    """Keys (epoch, index) of one training epoch, in an order that (seed, epoch) sets.

    With weights, pictures are drawn with replacement; one that comes again has a third number in its key, so that it is
    augmented otherwise each time.

    Args:
        n: number of pictures.
        seed: with the epoch it sets the order.
        batch_size: a last batch of a single picture, which batch norm cannot take, is left out; each epoch it is
            another picture. Batches of 1 by intention, and a data set of 1, are kept.
        rank, world: this process and the number of processes: each gets every `world`-th key, all equally many.
        weights: (n,) how often each picture is drawn, relative to the others; None: each once an epoch.

    The loop calls `set_epoch` before each epoch, as for torch's DistributedSampler.
    """

    def __init__(
        self,
        n: int,
        seed: int,
        *,
        batch_size: int = 1,
        rank: int = 0,
        world: int = 1,
        weights: np.ndarray | None = None,
    ) -> None:
        if not 0 <= rank < world <= n:
            raise UsageError(f"sampler: {n} pictures cannot be shared by {world} processes with rank {rank}")
        self.n = n
        self.seed = seed
        self.rank = rank
        self.world = world
        self.weights = weights
        self.epoch = 0
        share = n // world
        self.count = share - 1 if batch_size > 1 and share > 1 and share % batch_size == 1 else share

    def set_epoch(self, epoch: int) -> None:
        """The epoch that is iterated over next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        generator = torch.Generator().manual_seed(address(self.seed, self.epoch))
        if self.weights is None:
            order = torch.randperm(self.n, generator=generator).tolist()
        else:
            order = torch.as_tensor(self.weights).multinomial(self.n, replacement=True, generator=generator).tolist()
        keys: list[tuple[int, ...]] = []
        seen = Counter[int]()
        for index in order:
            keys.append((self.epoch, index, seen[index]) if seen[index] else (self.epoch, index))
            seen[index] += 1
        return iter(keys[self.rank :: self.world][: self.count])


class PictureLoader(DataLoader):
    """A DataLoader that leaves bad pictures out of their batches and tells `bad` of them.

    In training, one picture that remains alone of a batch is left out too, because batch norm cannot take it; a batch
    from which all is gone is empty, (0, c, h, w), so that every epoch has as many batches as it should. In evaluation
    an empty batch is passed over.
    """

    bad: BadImages
    train: bool
    shape: tuple[int, int, int]

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        for samples, errors in super().__iter__():
            try:
                for index, error in errors:
                    self.bad.add(index, error)
            except MixwiseError:
                self._iterator = None  # ends the workers now; those that an error's traceback keeps take seconds to end
                raise
            if samples is None or (self.train and errors and len(samples[0]) == 1):
                if self.train:
                    none = torch.zeros(0, dtype=torch.int64)
                    yield [torch.zeros(0, *self.shape), none, none]
            else:
                yield samples


def loader(
    dataset: ImageDataset,
    batch_size: int,
    *,
    train: bool,
    seed: int = 0,
    workers: int | None = None,
    device: str = "cpu",
    rank: int = 0,
    world: int = 1,
    start: Literal["fork", "spawn", "forkserver"] | None = None,
    bad: BadImages | None = None,
    weights: np.ndarray | None = None,
) -> DataLoader:
    """Batches (pictures (b, c, h, w), labels (b,), indices (b,)).

    Args:
        dataset: made with the same `train`.
        batch_size: pictures a batch; the last one may be smaller, see `AddressedSampler`.
        train: in the random order of `AddressedSampler`; otherwise in the data's own, every picture once.
        seed: of the order.
        workers: processes that read ahead, with one thread each; None: chosen. It changes no batch.
        device: "cuda" pins the memory of the batches.
        rank, world: this process and the number of processes. In evaluation the shares may differ by one.
        start: how workers start; None: as the platform does.
        bad: is told of the pictures that cannot be read, see `PictureLoader`; None: the first one is raised.
        weights: of training pictures, as `AddressedSampler` takes them.
    """
    if train != dataset.train:
        raise UsageError(f"loader: train={train}, but its dataset was made with train={dataset.train}")
    if batch_size < 1:
        raise UsageError(f"loader: batch_size must be at least 1, got {batch_size}")
    count = choose_workers(dataset.items.sources) if workers is None else workers
    sampler: Any = range(rank, len(dataset), world)
    if train:
        sampler = AddressedSampler(len(dataset), seed, batch_size=batch_size, rank=rank, world=world, weights=weights)
    made = PictureLoader(
        Guarded(dataset),
        batch_size,
        sampler=sampler,
        num_workers=count,
        collate_fn=collate,
        pin_memory=device.startswith("cuda"),
        persistent_workers=count > 0,
        multiprocessing_context=start if count else None,
        worker_init_fn=_leave_interrupts,
        # Its own, so that starting an epoch draws nothing from torch's generator, however many workers there are.
        generator=torch.Generator().manual_seed(address(seed)),
    )
    made.bad = BadImages("the pictures", len(dataset), on_bad="error") if bad is None else bad
    made.train = train
    made.shape = (dataset.pre.channels, *dataset.pre.image)
    return made


def _leave_interrupts(worker: int) -> None:
    """Ctrl-C reaches all processes of a terminal; the main one decides what becomes of it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def choose_workers(sources: Sequence[Any]) -> int:
    """Loader processes: none for pictures in memory, few files or few cores; else all cores but one, at most 8."""
    cores = os.cpu_count() or 1
    in_memory = len(sources) > 0 and np.ndim(sources[0]) > 0  # an array; a path has no dimensions
    if len(sources) < 500 or cores < 4 or in_memory:
        return 0
    return min(8, cores - 1)


class Guarded(Dataset):
    """A dataset that returns what is wrong with a picture instead of raising it: (sample, None) or (index, error)."""

    def __init__(self, dataset: ImageDataset) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, key: Any) -> tuple[Sample, None] | tuple[int, BadImage]:
        try:
            return self.dataset[key], None
        except BadImage as error:
            return (key[1] if self.dataset.train else key), error


def collate(pairs: list[tuple[Any, Any]]) -> tuple[list[Tensor] | None, list[tuple[int, BadImage]]]:
    """The batch of those that could be read, or None, and (index, error) of the others."""
    samples = [sample for sample, error in pairs if error is None]
    return (default_collate(samples) if samples else None), [pair for pair in pairs if pair[1] is not None]
