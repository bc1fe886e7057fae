"""From picture to tensor: geometry, colours, chance, and the way back."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from mixwise.config import Augment, Preprocess
from mixwise.data import decode, evaluation_transform, training_transform, unnormalize
from mixwise.errors import UsageError

SIZES = [(16, 16), (12, 20), (20, 12)]
FITS = ["crop", "squash", "pad"]


def preprocess(image=(16, 16), channels=3, **options) -> Preprocess:
    means = {1: (0.5,), 3: (0.5, 0.4, 0.3), 4: (0.5, 0.4, 0.3, 0.5)}[channels]
    return Preprocess(image=image, channels=channels, mean=means, std=(0.25,) * channels, **options)


def seen(pre: Preprocess, picture: Image.Image) -> np.ndarray:
    """What the model sees, (h, w, c) uint8."""
    tensor = evaluation_transform(pre)(decode(picture, channels=pre.channels, background=pre.background))
    return unnormalize(tensor, pre).permute(1, 2, 0).numpy()


@pytest.mark.parametrize("size", [(40, 60), (60, 40), (33, 57), (300, 301), (9, 9), (5, 80)])
@pytest.mark.parametrize(("side", "crop_pct"), [(16, 1.0), (16, 0.875), (21, 0.9)])
def test_crop_is_torchvision_resize_and_center_crop(size, side: int, crop_pct: float):
    picture = Image.effect_noise(size, 80).convert("RGB")
    pre = preprocess((side, side), crop_pct=crop_pct)
    steps = [
        v2.Resize(int(side / crop_pct), v2.InterpolationMode.BICUBIC),
        v2.CenterCrop(side),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.Normalize(pre.mean, pre.std),
    ]
    torch.testing.assert_close(evaluation_transform(pre)(picture), v2.Compose(steps)(picture).as_subclass(torch.Tensor))


@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("image", SIZES)
@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos", "nearest"])
def test_every_shape(image, fit, channels: int, filter: str):
    pre = preprocess(image, channels, fit=fit, filter=filter, crop_pct=0.9)
    for size in ((1, 1), (7, 90), (90, 7), (40, 30), (4, 5)):
        picture = decode(Image.effect_noise(size, 50), channels=channels)
        for transform in (evaluation_transform(pre), training_transform(pre, Augment(scale=0.2))):
            tensor = transform(picture)
            assert (tensor.shape, tensor.dtype) == ((channels, *image), torch.float32)
            assert tensor.is_contiguous()
            assert torch.isfinite(tensor).all()


def test_crop_covers_squash_and_pad_keep_the_ends():
    """A 4:1 picture with a red mark in the right tenth: crop loses it, the others keep it."""
    wide = Image.new("RGB", (160, 40), (0, 0, 255))
    wide.paste((255, 0, 0), (148, 0, 160, 40))
    red = {fit: (seen(preprocess(fit=fit), wide)[:, :, 0] > 128) for fit in FITS}
    assert not red["crop"].any()
    assert red["squash"][:, 15].all()
    assert red["pad"][7, 15]
    padded = seen(preprocess(fit="pad", background=(1, 2, 3)), wide)
    assert (padded[[0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]] == (1, 2, 3)).all()
    assert (padded[6:10, :10] == (0, 0, 255)).all()
    whole = seen(preprocess((16, 64)), wide)
    assert (whole[:, 63] == (255, 0, 0)).all()  # a target of the same shape loses nothing
    grey = seen(preprocess(channels=1, fit="pad", background=(255, 0, 0)), wide)
    assert (grey[0] == np.asarray(Image.new("RGB", (1, 1), (255, 0, 0)).convert("L"))).all()
    clear = seen(preprocess(channels=4, fit="pad"), wide)
    assert clear[0, 0, 3] == 0
    assert clear[8, 8, 3] == 255


def test_shrinking_is_antialiased():
    board = Image.fromarray(((np.indices((64, 64)).sum(0) % 2) * 255).astype(np.uint8))
    for filter in ("bilinear", "bicubic", "lanczos"):
        got = seen(preprocess((8, 8), 1, filter=filter), board)
        assert np.abs(got.astype(int) - 127).max() <= 2
    assert set(np.unique(seen(preprocess((8, 8), 1, filter="nearest"), board))) <= {0, 255}


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_unnormalize(channels: int):
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, channels), np.uint8)
    pre = preprocess(channels=channels)
    picture = decode(pixels, channels=channels)
    assert (seen(pre, picture) == pixels).all()
    batch = torch.stack([evaluation_transform(pre)(picture)] * 2)
    assert unnormalize(batch, pre).shape == (2, channels, 16, 16)


ALL_ON = {"scale": 0.5, "shift": 2, "flip": 0.5, "rotate": 20, "colour": 0.5, "erase": 0.5}


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("channels", [1, 3, 4])
@pytest.mark.parametrize("image", SIZES)
def test_every_option_in_every_mode(scene, image, channels: int, fit: str):
    pre = preprocess(image, channels, fit=fit)
    augment = Augment(**ALL_ON, randaugment=0 if channels == 4 else 2, magnitude=30)
    transform = pickle.loads(pickle.dumps(training_transform(pre, augment)))
    picture = decode(scene, channels=channels)
    torch.manual_seed(0)
    for _ in range(30):
        tensor = transform(picture)
        assert tensor.shape == (channels, *image)
        assert torch.isfinite(tensor).all()


@pytest.mark.parametrize(("option", "value"), [*ALL_ON.items(), ("randaugment", 2)])
@pytest.mark.parametrize("channels", [1, 3])
def test_each_option_does_something_and_follows_torchs_generator(scene, option: str, value, channels: int):
    augment = Augment.none().changed({option: value})
    transform = training_transform(preprocess(channels=channels), augment)
    picture = decode(scene, channels=channels)
    plain = evaluation_transform(preprocess(channels=channels))(picture)

    def draw(seed: int) -> list[torch.Tensor]:
        torch.manual_seed(seed)
        return [transform(picture) for _ in range(8)]

    assert any(not torch.equal(tensor, plain) for tensor in draw(0))
    assert all(itertools.starmap(torch.equal, zip(draw(0), draw(0), strict=True)))
    assert not all(itertools.starmap(torch.equal, zip(draw(0), draw(1), strict=True)))


@pytest.mark.parametrize("fit", FITS)
def test_none_is_the_evaluation_view(scene, fit: str):
    pre = preprocess((12, 20), fit=fit, crop_pct=0.9)
    assert torch.equal(training_transform(pre, Augment.none())(scene), evaluation_transform(pre)(scene))


def test_shift_moves_whole_pixels_and_fills_with_the_border():
    digit = np.zeros((8, 8), np.uint8)
    digit[2:6, 3:5] = 200
    pre = preprocess((8, 8), 1)
    transform = training_transform(pre, Augment(scale=1, flip=0, shift=1))
    torch.manual_seed(0)
    views = {unnormalize(transform(Image.fromarray(digit)), pre)[0].numpy().tobytes() for _ in range(100)}
    moves = itertools.product((-1, 0, 1), repeat=2)
    assert views == {np.roll(digit, move, (0, 1)).tobytes() for move in moves}


def test_flip_mirrors():
    ramp = np.tile(np.arange(16, dtype=np.uint8), (16, 1))
    pre = preprocess(channels=1)
    got = training_transform(pre, Augment.none().changed({"flip": 1}))(Image.fromarray(ramp))
    assert (unnormalize(got, pre)[0].numpy() == ramp[:, ::-1]).all()


@pytest.mark.parametrize("image", SIZES)
@pytest.mark.parametrize("fit", FITS)
def test_random_crops_keep_their_share_and_shape(fit: str, image):
    """A picture that shows its own coordinates: read off where each crop came from."""
    y, x = np.mgrid[:200, :240]
    picture = Image.fromarray(np.stack([x, y, 0 * x], 2).astype(np.uint8))
    pre = preprocess(image, fit=fit, filter="bilinear")
    transform = training_transform(pre, Augment(scale=0.35, ratio=1.2, flip=0))
    torch.manual_seed(0)
    shares, shapes = [], []
    for _ in range(60):
        view = unnormalize(transform(picture), pre).float()
        inside = view[2] < 20  # pad's white background is not
        wide = float(np.ptp(view[0][inside])) * image[1] / max(image[1] - 1, 1)
        high = float(np.ptp(view[1][inside])) * image[0] / max(image[0] - 1, 1)
        shares.append(wide * high / (200 * 240))
        shapes.append(wide / high / ({"squash": 240 / 200}.get(fit, image[1] / image[0])))
    if fit != "pad":
        assert 0.25 < min(shares) < max(shares) < 1.1
        assert 1 / 1.45 < min(shapes) < max(shapes) < 1.45
    assert np.std(shares) > 0.03


def test_reduced_pictures_bound_memory_but_not_the_crops():
    big = Image.effect_noise((900, 1200), 50).convert("RGB")
    for fit, size in (("crop", (24, 32)), ("squash", (24, 24)), ("pad", (24, 24))):
        assert training_transform(preprocess(fit=fit), Augment(scale=0.35)).prepare(big).size == size
    small = Image.new("RGB", (5, 7))
    assert training_transform(preprocess(), Augment(scale=0.35)).prepare(small).size == (5, 7)
    assert training_transform(preprocess(fit="pad"), Augment(scale=0.35)).prepare(small).size == (7, 7)


def test_options_that_cannot_apply_raise():
    with pytest.raises(UsageError, match="randaugment works on pictures of 1 or 3 channels, got channels=4"):
        training_transform(preprocess(channels=4), Augment(randaugment=1))
    with pytest.raises(UsageError, match="shift must be smaller than the image 12 x 20, got 12"):
        training_transform(preprocess((12, 20)), Augment(shift=12))


def test_a_strip_of_one_pixel_is_no_flood_of_memory():
    """Enlarged as a whole it would have 640 million columns."""
    pre = Preprocess(image=(64, 64), mean=(0.5,) * 3, std=(0.5,) * 3)
    strip = Image.new("RGB", (10_000_001, 1), (255, 255, 255))
    strip.putpixel((5_000_000, 0), (0, 0, 0))
    for picture in (strip, strip.transpose(Image.Transpose.ROTATE_90)):
        seen = evaluation_transform(pre)(picture)
        assert seen.shape == (3, 64, 64)
        assert seen.min() < -0.9  # the middle is there


@pytest.mark.parametrize("turned", [False, True])
def test_long_pictures_are_cut_around_their_middle(turned: bool):
    """What is seen is the centre of the picture enlarged as a whole."""
    pre = Preprocess(image=(8, 12), mean=(0.5,) * 3, std=(0.5,) * 3)
    waves = 128 + 100 * np.sin(np.arange(2001) / 3)
    picture = Image.fromarray(np.tile(waves, (11, 1)).astype(np.uint8)).convert("RGB")
    if turned:
        picture = picture.transpose(Image.Transpose.ROTATE_90)
    size = (12, 2001 * 12 // 11) if turned else (2001 * 8 // 11, 8)
    whole = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = round((whole.width - 12) / 2), round((whole.height - 8) / 2)
    want = np.asarray(whole.crop((left, top, left + 12, top + 8)), int)
    got = unnormalize(evaluation_transform(pre)(picture), pre).permute(1, 2, 0).numpy().astype(int)
    assert np.abs(got - want).mean() < 20  # half a pixel's shift, from rounding
    assert want.std() > 50
