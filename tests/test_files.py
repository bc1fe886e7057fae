"""How files are written."""

import os
import stat

import pytest
import torch
from safetensors.torch import save_file

from mixwise.files import replacing, write_text


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
@pytest.mark.parametrize("mask", [0o022, 0o027])
def test_every_file_gets_the_permissions_that_the_user_gives_new_files(tmp_path, mask):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "page.html", "x")
        with replacing(tmp_path / "model.safetensors") as temporary:
            save_file({"a": torch.zeros(1)}, temporary)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == dict.fromkeys(("page.html", "model.safetensors"), 0o666 & ~mask)
