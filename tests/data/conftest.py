"""Real pictures for the data tests, from MIXWISE_SHARED (default: ../shared beside the project)."""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

SHARED = Path(os.environ.get("MIXWISE_SHARED", Path(__file__).parents[2].parent / "shared"))


def unpack(name: str, into: Path) -> Path:
    """A pack of SHARED/data, unpacked; skips the test where it is not there."""
    pack = SHARED / "data" / name
    if not pack.is_file():
        pytest.skip(f"{pack} is not there: set MIXWISE_SHARED to the folder that holds data/{name}")
    shutil.unpack_archive(pack, into)
    return next(into.iterdir())


@pytest.fixture(scope="session")
def odd_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("odd_images.tar", tmp_path_factory.mktemp("odd"))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("photos_caltech16.tar", tmp_path_factory.mktemp("photos"))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    if not (SHARED / "data").is_dir():
        pytest.skip(f"{SHARED / 'data'} is not there: set MIXWISE_SHARED to the folder that holds data/")
    return SHARED / "data"


@pytest.fixture
def scene() -> Image.Image:
    """A colourful picture in which no two corners, rows or columns are alike: 24 high, 40 wide."""
    y, x = np.mgrid[:24, :40]
    pixels = np.stack([x * 6, y * 10, (x * 3 + y * 5) % 256], axis=2).astype(np.uint8)
    return Image.fromarray(pixels)
