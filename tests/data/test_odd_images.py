"""Real odd files, driven by their manifest alone: right pixels, or the right verdict.

The independent decode is plain arithmetic on the stored values, for every mode, and torchvision's own codecs where they
read the file.
"""

import contextlib
import hashlib
import json
import os
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from typer.testing import CliRunner

from mixwise.cli import app
from mixwise.data import BadImage, decode, size_of

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
BACKGROUND = (200, 120, 40)

TURNED = {
    2: lambda a: a[:, ::-1],
    3: lambda a: a[::-1, ::-1],
    4: lambda a: a[::-1],
    5: lambda a: a.swapaxes(0, 1),
    6: lambda a: a[::-1].swapaxes(0, 1),
    7: lambda a: a[::-1, ::-1].swapaxes(0, 1),
    8: lambda a: a.swapaxes(0, 1)[::-1],
}


def entries(folder: Path) -> list[dict]:
    return json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"]


def stored(picture: Image.Image) -> np.ndarray:
    """(h, w, 4) RGBA from 0 to 255, from the stored values by the formats' own arithmetic."""
    values = np.array(picture)
    clear = picture.info.get("transparency")
    mode = picture.mode
    alpha = np.full(values.shape[:2], 255.0)
    if mode in ("P", "PA"):
        index = values if mode == "P" else values[:, :, 0]
        table = np.zeros((256, 3))
        own = np.array(picture.getpalette("RGB"), float).reshape(-1, 3)
        table[: len(own)] = own
        if mode == "PA":
            alpha = values[:, :, 1].astype(float)
        elif isinstance(clear, bytes):
            alphas = np.full(256, 255.0)
            alphas[: len(clear)] = list(clear)
            alpha = alphas[index]
        elif clear is not None:
            alpha[index == clear] = 0
        return np.dstack([table[index], alpha])
    if mode == "CMYK":
        ink = values.astype(float)
        return np.dstack([(255 - ink[:, :, :3]) * (255 - ink[:, :, 3:]) / 255, alpha])
    if mode == "LAB":
        return np.dstack([srgb_of_lab(values), alpha])
    if mode in ("LA", "RGBA"):
        grey = np.repeat(values[:, :, :1], 3, axis=2) if mode == "LA" else values[:, :, :3]
        return np.dstack([grey, values[:, :, -1]]).astype(float)
    if mode == "RGB":
        if clear is not None:
            alpha[(values == clear).all(axis=2)] = 0
        return np.dstack([values, alpha]).astype(float)
    scale = {"1": 255.0, "L": 1.0}.get(mode)
    if mode.startswith("I"):
        bits = picture.tag_v2.get(258) if picture.format == "TIFF" else 16  # else Pillow fills 16 bits
        depth = bits[0] if isinstance(bits, tuple) else bits or 16
        scale = 255 / (2**depth - 1)
    grey = values.astype(float)
    if mode == "F":
        low, high = grey.min(), grey.max()
        grey, scale = (grey, 255.0) if low >= 0 and high <= 1 else ((grey - low) / (high - low), 255.0)
    if clear is not None:
        alpha[(values * 255 if mode == "1" else values) == clear] = 0
    assert scale is not None, f"this test has no arithmetic for mode {mode}"
    return np.dstack([grey * scale] * 3 + [alpha])


def srgb_of_lab(values: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of 8 bits (white point D50) to sRGB."""
    lightness = values[:, :, 0] / 255 * 100
    a, b = (values[:, :, i].astype(np.int8).astype(float) for i in (1, 2))
    y = (lightness + 16) / 116
    f = np.dstack([y + a / 500, y, y - b / 200])
    xyz = np.where(f > 6 / 29, f**3, 3 * (6 / 29) ** 2 * (f - 4 / 29)) * (0.9642, 1.0, 0.8251)
    to_linear = np.array([[3.1339, -1.6169, -0.4906], [-0.9788, 1.9161, 0.0335], [0.0719, -0.2290, 1.4052]])
    linear = (xyz @ to_linear.T).clip(0, 1)
    return 255 * np.where(linear > 0.0031308, 1.055 * linear ** (1 / 2.4) - 0.055, 12.92 * linear)


def expected(path: Path, entry: dict, channels: int) -> np.ndarray:
    """Upright pixels (h, w, channels) from 0 to 255."""
    with Image.open(path) as picture:
        with contextlib.suppress(OSError):  # damage behind the last pixel
            picture.load()
        rgba = stored(picture)
    orientation = entry.get("exif_orientation")
    if orientation in TURNED and entry["format"] != "TIFF":  # a TIFF is turned by Pillow as it loads
        rgba = TURNED[orientation](rgba)
    if channels == 4:
        return rgba
    share = rgba[:, :, 3:] / 255
    rgb = rgba[:, :, :3] * share + np.array(BACKGROUND) * (1 - share)
    return rgb if channels == 3 else (rgb @ (0.299, 0.587, 0.114))[:, :, None]


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_odd_image_has_the_right_pixels_or_the_right_verdict(odd_images: Path, channels: int):
    wrong = []
    for entry in entries(odd_images):
        path = odd_images / entry["file"]
        try:
            picture = decode(path, channels=channels, background=BACKGROUND)
        except BadImage as error:
            if error.path != str(path) or error.reason not in verdicts(path, entry):
                wrong.append(f"{path.name}: {error}")
            continue
        if not entry["decodes"]:
            wrong.append(f"{path.name}: decoded")
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of broken EXIF
            want = expected(path, entry, channels)
        got = np.asarray(picture, float).reshape(picture.height, picture.width, -1)
        assert (picture.mode, list(picture.size)) == (MODES[channels], entry["upright_size"]), path.name
        assert size_of(path) == picture.size[::-1], path.name
        assert got.shape == want.shape, path.name
        if channels == 4:  # colours under full transparency are nobody's business
            got, want = got * (want[:, :, 3:] > 0), want * (want[:, :, 3:] > 0)
        gap = np.abs(got - want).max()
        if gap > (10 if entry["mode"] == "LAB" else 2):  # another conversion of colours, by a few levels
            wrong.append(f"{path.name} ({entry['mode']}): {gap:.1f} levels off")
    assert not wrong


def by_torchvision(path: Path, entry: dict) -> np.ndarray | None:
    """Upright pixels (h, w, 3 or 4) from 0 to 255 by torchvision's codecs, which share no code with Pillow's.

    None where it cannot read the file, or does not read it as its format says: no colour keys, no scale for 1 bit.
    """
    data = path.read_bytes()
    jpeg, gif = data[:2] == b"\xff\xd8", data[:4] == b"GIF8"
    keyed = b"tRNS" in data and entry["mode"] != "P"
    if not (jpeg or gif or data[:4] in (b"\x89PNG", b"RIFF")) or entry["mode"] == "1" or keyed:
        return None
    mode = ImageReadMode.RGB if jpeg or gif else ImageReadMode.RGB_ALPHA
    try:
        image = decode_image(torch.frombuffer(bytearray(data), dtype=torch.uint8), mode)
    except RuntimeError:
        return None
    image = image[0] if image.dim() == 4 else image  # the first of an animation
    pixels = (image.float() / 257 if image.dtype == torch.uint16 else image.float()).permute(1, 2, 0).numpy()
    return TURNED.get(entry.get("exif_orientation"), lambda a: a)(pixels)


def test_another_decoder_sees_the_same(odd_images: Path):
    """Where there is one, an independent decoder of the compressed pixels agrees to one level."""
    compared = 0
    for entry in entries(odd_images):
        want = by_torchvision(odd_images / entry["file"], entry) if entry["decodes"] else None
        if want is None:
            continue
        compared += 1
        got = np.asarray(decode(odd_images / entry["file"], channels=want.shape[2]), float)
        assert got.shape == want.shape, entry["file"]
        if want.shape[2] == 4:
            got, want = got * (want[:, :, 3:] > 0), want * (want[:, :, 3:] > 0)
        assert np.abs(got - want).max() <= 1, entry["file"]
    if not compared:
        pytest.skip("torchvision reads none of these files")


def verdicts(path: Path, entry: dict) -> set[str]:
    """The reasons that are right for a file, from the manifest and from how its format must end."""
    if entry["decodes"]:
        return set()
    if entry["error"] == "DecompressionBombError":
        return {"too large"}
    end = {b"\xff\xd8": b"\xff\xd9", b"\x89P": b"IEND"}.get(path.read_bytes()[:2])
    if entry["opens"] and end is not None and end not in path.read_bytes():
        return {"truncated"}
    return {"unreadable"} if not entry["opens"] else {"unreadable", "truncated"}


def tree(folder: Path) -> str:
    """A hash of every name, time of change, mode and content below a folder."""
    digest = hashlib.sha256()
    for path in sorted([folder, *folder.rglob("*")]):
        about = path.lstat()
        digest.update(repr((str(path.relative_to(folder)), about.st_mtime_ns, about.st_mode)).encode())
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()


def test_a_read_only_folder_of_odd_images_is_left_as_it_was(odd_images: Path, tmp_path: Path):
    """Through train, evaluate and predict, which go on without what cannot be read."""
    data, run = tmp_path / "data", tmp_path / "run"
    listed = entries(odd_images)
    for number, entry in enumerate(listed):
        for split in ("train", "val"):
            place = data / split / ("even", "odd")[number % 2] / entry["file"]
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(odd_images / entry["file"], place) if split == "train" else place.symlink_to(
                odd_images / entry["file"]
            )
    for folder, _, names in os.walk(data):
        for name in names:
            os.chmod(Path(folder) / name, 0o444)
        os.chmod(folder, 0o555)
    before = tree(data), tree(odd_images)
    bad = sum(not entry["decodes"] for entry in listed)

    def call(*arguments: object, code: int = 0) -> str:
        result = CliRunner().invoke(app, [str(a) for a in arguments])
        assert result.exit_code == code, result.output
        return result.stdout

    settings = ["--set", "data.cache=0", "--set", "precision=fp32", "--image-size", 32, "--epochs", 1]
    text = call("train", data, "--model", "pool_nano", "--out", run, "--device", "cpu", *settings)
    assert f"{2 * bad} of {2 * len(listed)} cannot be read" in text
    scored = json.loads(call("evaluate", run, data, "--json"))
    assert (scored["images"], len(scored["bad"])) == (len(listed) - bad, bad)
    rows = [json.loads(line) for line in call("predict", run, data / "val", "--json", code=1).splitlines()]
    assert sum(bool(row["error"]) for row in rows) == bad
    assert (tree(data), tree(odd_images)) == before
    for folder, _, _ in os.walk(data):
        os.chmod(folder, 0o755)
