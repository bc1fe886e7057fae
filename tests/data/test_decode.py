"""One decoder: the same pixels for the same picture, a clear reason for a bad one."""

import io
import os
import pickle
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile

from mixwise.data import BadImage, decode
from mixwise.errors import UsageError

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


def encoded(picture: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, kind, **options)
    return stream.getvalue()


def pixels(source, **options) -> np.ndarray:
    return np.asarray(decode(source, **options))


def test_same_photo_in_all_real_orientations(odd_images: Path):
    upright = pixels(odd_images / "pillow__hopper.jpg").astype(int)
    for name in ("pillow__hopper_orientation_3.jpg", "pillow__hopper_orientation_6.jpg"):
        assert np.abs(pixels(odd_images / name) - upright).mean() < 6  # each was compressed anew


STORED = {
    1: lambda a: a,
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a.swapaxes(0, 1)[::-1],
    7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
    8: lambda a: a.swapaxes(0, 1)[:, ::-1],
}


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", STORED)
def test_orientation(scene, orientation: int, kind: str):
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = Image.fromarray(np.ascontiguousarray(STORED[orientation](np.asarray(scene))))
    options = {"lossless": True} if kind == "WEBP" else {}
    data = encoded(stored, kind, exif=exif, **options)
    assert (pixels(data) == np.asarray(scene)).all()
    assert (pixels(Image.open(io.BytesIO(data))) == np.asarray(scene)).all()


def test_hint_reduces_a_sideways_jpeg_and_never_below_what_is_wanted():
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = Image.effect_noise((800, 400), 60).convert("RGB")
    data = encoded(stored, "JPEG", exif=exif)
    assert decode(data).size == (400, 800)
    assert decode(data, hint=(400, 200)).size == (200, 400)
    assert decode(data, hint=(401, 200)).size == (400, 800)
    assert decode(data, hint=(100, 50)).size == (50, 100)
    assert decode(data, hint=(5000, 5000)).size == (400, 800)
    assert decode(encoded(stored), hint=(10, 10)).size == (800, 400)  # only JPEG can


def test_same_pixels_however_the_picture_comes(tmp_path: Path, scene):
    path = tmp_path / "猫 Ünï x'y" / "wrong extension.txt"
    path.parent.mkdir()
    path.write_bytes(encoded(scene))
    want = np.asarray(scene)
    tensor = torch.from_numpy(want.copy()).permute(2, 0, 1)
    for source in (path, str(path), path.read_bytes(), Image.open(path), scene, want, want / 255, tensor, tensor / 255):
        assert (pixels(source) == want).all()
    grey = want[:, :, 0]
    for source in (grey, grey[:, :, None], grey.astype(np.uint16) * 257, torch.from_numpy(grey.copy())[None]):
        assert (pixels(source, channels=1) == grey).all()
        assert (pixels(source, channels=3) == grey[:, :, None]).all()


def test_a_pillow_image_is_left_as_it_was(scene):
    data = encoded(scene, "JPEG")
    given = Image.open(io.BytesIO(data))
    assert decode(given, hint=(3, 3)).size == scene.size
    made = decode(scene)
    made.putpixel((0, 0), (9, 9, 9))
    assert scene.getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize(
    "mode", ["1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "La", "RGBa", "RGBX"]
)
def test_modes(scene, mode: str):
    through = {"PA": "LA", "La": "LA", "RGBa": "RGBA"}.get(mode, mode)
    given = scene.convert(through).convert(mode)
    rgb = np.asarray(
        scene.convert("1" if mode == "1" else "L" if "L" in mode or mode == "PA" else "RGB").convert("RGB")
    )
    for channels in (1, 3, 4):
        picture = decode(given, channels=channels)
        assert picture.mode == MODES[channels]
    tolerance = {"P": 60, "HSV": 12, "YCbCr": 3}.get(mode, 2)
    assert np.abs(pixels(given).astype(int) - rgb).max() <= tolerance
    assert np.abs(pixels(given, channels=4)[:, :, :3].astype(int) - rgb).max() <= tolerance
    assert (pixels(given, channels=4)[:, :, 3] == 255).all()


def test_deep_grey_is_scaled_by_its_depth():
    ramp = np.arange(0, 65536, 257, dtype=np.uint16).reshape(16, 16)
    want = np.arange(256).reshape(16, 16)
    little = Image.fromarray(ramp)
    big = Image.frombytes("I;16B", (16, 16), ramp.astype(">u2").tobytes())
    long = Image.fromarray(ramp.astype(np.int32))
    share = Image.fromarray((want / 255).astype(np.float32))
    any_range = Image.fromarray((want * 3.5 - 100).astype(np.float32))
    for given in (
        little,
        big,
        long,
        share,
        any_range,
        encoded(little),
        encoded(little, "TIFF"),
        encoded(share, "TIFF"),
    ):
        assert (pixels(given, channels=1) == want).all()
    assert (pixels(Image.new("F", (3, 2), 7.0), channels=1) == 0).all()
    holes = np.array([[np.nan, 0.0], [np.inf, 1.0]], np.float32)
    assert decode(Image.fromarray(holes)).size == (2, 2)


def test_transparency_shows_the_background():
    red_on_green = Image.new("RGBA", (4, 2), (0, 255, 0, 0))
    red_on_green.putpixel((1, 1), (255, 0, 0, 255))
    palette = red_on_green.convert("RGB").quantize(2)
    clear = palette.getpixel((0, 0))
    for given in (
        encoded(red_on_green),
        encoded(palette, transparency=clear),
        encoded(palette, "GIF", transparency=clear),
    ):
        got = pixels(given, background=(10, 20, 30))
        assert tuple(got[0, 0]) == (10, 20, 30)
        assert tuple(got[1, 1]) == (255, 0, 0)
        assert pixels(given, channels=4)[:, :, 3].tolist() == [[0] * 4, [0, 255, 0, 0]]
        assert pixels(given, channels=1)[0, 0] == 255
    half = Image.new("LA", (1, 1), (0, 128))
    assert pixels(half, channels=1)[0, 0] == 127
    trns = encoded(Image.fromarray(np.array([[0, 500]], np.uint16)), transparency=500)
    assert pixels(trns, channels=4)[0, :, 3].tolist() == [255, 0]
    for mode, value in (("1", 1), ("L", 77), ("RGB", (1, 2, 3))):
        assert pixels(encoded(Image.new(mode, (1, 1), value), transparency=value), channels=4)[0, 0, 3] == 0


@pytest.mark.parametrize("kind", ["GIF", "PNG", "TIFF", "WEBP"])
def test_first_frame(kind: str):
    frames = [Image.new("RGB", (5, 4), colour) for colour in ((200, 0, 0), (0, 200, 0), (0, 0, 200))]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    assert np.abs(pixels(data)[0, 0].astype(int) - (200, 0, 0)).max() < 8


CUT = [("JPEG", {}), ("JPEG", {"progressive": True}), ("PNG", {}), ("GIF", {}), ("WEBP", {}), ("BMP", {}), ("TIFF", {})]


@pytest.mark.parametrize("part", [0.6, 0.95])
@pytest.mark.parametrize(
    ("kind", "options"), [*CUT, ("TIFF", {"compression": "tiff_lzw"}), ("AVIF", {}), ("JPEG2000", {})]
)
def test_cut_files_are_truncated(tmp_path: Path, kind: str, options: dict, part: float):
    path = tmp_path / "half.jpg"
    whole = encoded(Image.effect_noise((200, 160), 50).convert("RGB"), kind, **options)
    path.write_bytes(whole[: int(len(whole) * part)])
    with pytest.raises(BadImage, match=r"half\.jpg: truncated") as caught:
        decode(path)
    assert caught.value.reason == "truncated"
    assert not ImageFile.LOAD_TRUNCATED_IMAGES


def test_bad_images(tmp_path: Path, scene):
    def reason(source, **options) -> str:
        with pytest.raises(BadImage) as caught:
            decode(source, **options)
        copy = pickle.loads(pickle.dumps(caught.value))  # it comes back from worker processes
        assert (str(copy), copy.path, copy.reason) == (str(caught.value), caught.value.path, caught.value.reason)
        return f"{caught.value.reason}: {caught.value}"

    (tmp_path / "cat.jpg").write_bytes(b"")
    (tmp_path / "text.jpg").write_text("not a picture")
    assert reason(tmp_path / "cat.jpg").startswith("empty: cannot read image " + str(tmp_path / "cat.jpg"))
    assert reason(b"").startswith("empty")
    assert "no image format" in reason(tmp_path / "text.jpg")
    assert "nearest name there is 'cat.jpg'" in reason(tmp_path / "cart.jpg")
    assert reason(tmp_path / "none" / "cart.jpg").startswith("missing")
    assert "it is a folder" in reason(tmp_path)
    assert reason("a\0b").startswith("unreadable")
    assert reason(encoded(scene), max_pixels=24 * 40 - 1).startswith("too large")
    assert decode(encoded(scene), max_pixels=24 * 40).size == (40, 24)
    assert reason(scene, max_pixels=24 * 40 - 1).startswith("too large")
    lazy = Image.open(io.BytesIO(encoded(Image.effect_noise((90, 90), 50))[:-2000]))
    assert reason(lazy).startswith("truncated")


def test_da14_truncated_is_named_whatever_others_allow(monkeypatch, photos: Path):
    """Half-written photos, read whole or reduced, also where something has told Pillow to accept them."""
    whole = next((photos / "train" / "ibis").iterdir()).read_bytes()
    cut = whole[: len(whole) * 6 // 10]
    filled = cut + bytes(len(whole) - len(cut))
    for allowed in (False, True):
        monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", allowed)
        for data in (cut, filled):
            for hint in (None, (20, 20)):
                with pytest.raises(BadImage) as caught:
                    decode(data, hint=hint)
                assert caught.value.reason == "truncated"
        assert ImageFile.LOAD_TRUNCATED_IMAGES is allowed
        assert decode(whole + bytes(500)).size == decode(whole).size  # padded behind its end


def test_da17_colours_under_transparency_are_not_seen():
    """A red square on transparent green does not read as green, as RGBA, as a palette and as a transparent colour."""
    picture = Image.new("RGBA", (8, 8), (0, 255, 0, 0))
    picture.paste((255, 0, 0, 255), (2, 2, 6, 6))
    flat = Image.new("RGB", (8, 8), (0, 255, 0))
    flat.paste((255, 0, 0), (2, 2, 6, 6))
    palette = flat.quantize(2)
    ways = [
        encoded(picture),
        encoded(picture, "WEBP", lossless=True),
        encoded(palette, transparency=palette.getpixel((0, 0))),
        encoded(palette, "GIF", transparency=palette.getpixel((0, 0))),
        encoded(flat, transparency=(0, 255, 0)),
        picture,
        np.asarray(picture),
    ]
    for given in ways:
        assert set(map(tuple, pixels(given).reshape(-1, 3).tolist())) == {(255, 255, 255), (255, 0, 0)}
        assert set(map(tuple, pixels(given, background=(0, 0, 9)).reshape(-1, 3).tolist())) == {(0, 0, 9), (255, 0, 0)}


def test_zeros_alone_are_an_empty_file():
    with pytest.raises(BadImage, match="empty, it holds nothing but zeros"):
        decode(bytes(5000))


def test_huge_pictures_are_refused_by_their_header_and_read_on_request():
    """Also beyond Pillow's own limit, which is as it was afterwards."""
    before = Image.MAX_IMAGE_PIXELS
    huge = encoded(Image.new("1", (20_000, 10_000)), "TIFF", compression="group4")
    assert len(huge) < 100_000
    for read in (decode, lambda data: decode(data, hint=(10, 10)), lambda data: decode(data, max_pixels=199_999_999)):
        with pytest.raises(BadImage, match="too large, it has 200000000 pixels, more than max_pixels allows"):
            read(huge)
    assert decode(huge, channels=1, max_pixels=200_000_000).size == (20_000, 10_000)
    assert before == Image.MAX_IMAGE_PIXELS


def test_threads_decode_at_once_and_leave_pillow_as_it_was(monkeypatch, scene):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    before = Image.MAX_IMAGE_PIXELS, list(warnings.filters)
    whole, cut = encoded(scene), encoded(Image.effect_noise((200, 200), 50))[:20_000]

    def work(number: int) -> str:
        try:
            return str(decode(cut if number % 3 else whole, max_pixels=50_000 + number).size)
        except BadImage as error:
            return error.reason

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(work, range(600)))
    assert answers == ["truncated" if number % 3 else str(scene.size) for number in range(600)]
    assert (Image.MAX_IMAGE_PIXELS, list(warnings.filters)) == before
    assert ImageFile.LOAD_TRUNCATED_IMAGES is True


@pytest.mark.parametrize("mode", ["RGBA", "P", "F", "I;16", "CMYK", "1"])
def test_large_pictures_are_converted_in_strips_without_seams(monkeypatch, mode: str):
    noise = np.random.default_rng(0).integers(0, 256, (50, 30, 4), np.uint8)
    picture = Image.fromarray(noise)
    if mode in ("F", "I;16"):
        picture = Image.fromarray(noise[:, :, 0].astype({"F": np.float32, "I;16": np.uint16}[mode]) * 7 - 3)
    elif mode != "RGBA":
        picture = picture.convert("RGB").convert(mode)
    if mode == "P":
        picture.info["transparency"] = 3
    whole = [pixels(picture, channels=c, background=(1, 2, 3)) for c in MODES]
    monkeypatch.setattr(sys.modules["mixwise.data.decode"], "_STRIP", 200)
    for channels, want in zip(MODES, whole, strict=True):
        assert (pixels(picture, channels=channels, background=(1, 2, 3)) == want).all()


def test_nothing_is_written_to_the_terminal_and_nothing_is_run(recwarn, monkeypatch):
    """Broken EXIF makes Pillow warn; PostScript makes it start another program."""
    broken = encoded(Image.new("RGB", (4, 4)), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x03\1\x12\0\3")
    assert decode(broken).size == (4, 4)
    assert not recwarn.list
    monkeypatch.setattr("subprocess.Popen", None)
    with pytest.raises(BadImage, match="no image format that is known"):
        decode(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n")


@pytest.mark.parametrize("name", ["a.JPEG", "b.TIF", "c.jfif", "d.AVIF", "wrong.txt", "no extension", "猫 Ünï x'y.Png"])
def test_da19_da20_the_content_decides_and_names_do_not_matter(tmp_path: Path, scene, name: str):
    path = tmp_path / "ありがとう ß" / name
    path.parent.mkdir()
    path.write_bytes(encoded(scene))
    link = tmp_path / "link.jpg"
    link.symlink_to(path)
    for place in (path, link):
        assert (pixels(place) == np.asarray(scene)).all()


def test_a_link_to_nothing_names_its_target(tmp_path: Path):
    link = tmp_path / "cat.jpg"
    link.symlink_to(os.fsdecode(b"../gone/caf\xe9.jpg"))
    with pytest.raises(BadImage) as caught:
        decode(link)
    assert (caught.value.reason, caught.value.detail) == (
        "missing",
        "it is a link to ../gone/caf\\xe9.jpg, which is not there",
    )


def test_names_that_are_no_text_can_be_printed(tmp_path: Path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg")
    Path(path).write_bytes(b"x")
    with pytest.raises(BadImage) as caught:
        decode(path)
    assert "caf\\xe9.jpg" in str(caught.value).encode("utf-8").decode()
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (np.zeros((3, 8, 8), np.uint8), r"\(h, w, c\) with c 1, 3 or 4, got shape \(3, 8, 8\)"),
        (np.zeros((0, 8), np.uint8), r"got shape \(0, 8\)"),
        (np.zeros(8, np.uint8), r"got shape \(8,\)"),
        (np.zeros((8, 8), np.int64), "uint8, uint16, bool or float, got int64"),
        (np.full((8, 8), 255.0), r"in \[0, 1\], got 255 to 255"),
        (np.full((8, 8), np.nan), r"in \[0, 1\], got nan"),
        (torch.zeros(8, 8, 3), r"\(c, h, w\) with c 1, 3 or 4, got shape \(8, 8, 3\)"),
        (7, "numpy array or a torch tensor, got int"),
    ],
)
def test_wrong_arrays(source, message: str):
    with pytest.raises(UsageError, match=message):
        decode(source)


def test_half_precision_tensors_and_wrong_channels():
    assert pixels(torch.ones(3, 2, 2, dtype=torch.bfloat16))[0, 0].tolist() == [255] * 3
    with pytest.raises(UsageError, match="channels must be 1, 3 or 4, got 2"):
        decode(np.zeros((2, 2), np.uint8), channels=2)


@pytest.mark.parametrize("start", [2, 10, 200])
def test_a_png_with_damaged_pixels_is_never_half_a_picture(start):
    """Its chunks are all there and the last one ends the file; only the compressed pixels are wrong."""
    whole = io.BytesIO()
    Image.effect_noise((40, 40), 60).save(whole, "PNG")
    data = bytearray(whole.getvalue())
    start += data.index(b"IDAT") + 4
    data[start : start + 60] = bytes(255 - value for value in data[start : start + 60])
    with pytest.raises(BadImage, match="unreadable"):
        decode(bytes(data))


def test_a_png_cut_after_its_pixels_is_whole():
    whole = io.BytesIO()
    picture = Image.effect_noise((40, 40), 60)
    picture.save(whole, "PNG")
    assert np.array_equal(decode(whole.getvalue()[:-6], channels=1), picture)
