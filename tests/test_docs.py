"""What the documentation shows is run: commands, Python blocks, and the mixer that the README adds."""

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch

import mixwise

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of the code blocks of a page."""
    return re.findall(r"^```(\w+)\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)


BLOCKS = blocks("README.md")


@pytest.mark.parametrize("page", ["README.md", "docs/data.md", "docs/evaluation.md"])
def test_commands(page, tmp_path):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for kind, text in blocks(page):
        if kind == "bash":
            for line in text.splitlines():
                command = line.replace("mixwise ", f"{sys.executable} -m mixwise ", 1)
                done = subprocess.run(
                    command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
                )
                assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
                assert done.stdout.strip()


def test_readme_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    block = next(text for kind, text in BLOCKS if kind == "python" and "create_model" in text)
    exec(compile(block, "README.md", "exec"), {})


def test_readme_mixer(tmp_path):
    """The new mixer passes the contract, is listed, trains, and needs no other edit than its import."""
    python = [text for kind, text in BLOCKS if kind == "python"]
    mixer = next(text for text in python if "@register" in text)
    check = next(text for text in python if "check_mixer" in text)
    (tmp_path / "shift.py").write_text(mixer, encoding="utf-8")
    script = (
        "import torch; torch.set_num_threads(1)\n"
        f"import mixwise.mixers, importlib.util\n"
        f"spec = importlib.util.spec_from_file_location('mixwise.mixers.shift', {str(tmp_path / 'shift.py')!r})\n"
        "module = importlib.util.module_from_spec(spec); import sys; sys.modules[spec.name] = module\n"
        "spec.loader.exec_module(module)\n"
        f"{check}\n"
        "import mixwise\n"
        "assert 'shift_tiny' in mixwise.list_models()\n"
        f"r = mixwise.train('digits', model='shift_nano', epochs=1, out={str(tmp_path / 'run')!r})\n"
        "assert mixwise.info(r.run).config.name == 'shift_nano'\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert len(mixer.splitlines()) < 80


def modules() -> list[str]:
    return sorted(
        m.name for m in pkgutil.walk_packages(mixwise.__path__, "mixwise.") if not m.name.endswith("__main__")
    )


@pytest.mark.parametrize("name", modules())
def test_docstring_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    extra = {"torch": torch, "mixwise": mixwise, "np": numpy}
    result = doctest.testmod(importlib.import_module(name), extraglobs=extra)
    assert result.failed == 0


def test_links_in_the_readme_exist():
    for target in re.findall(r"\]\(([^)#]+)", README):
        if "://" not in target:
            assert (ROOT / target).exists(), target


def test_the_readme_names_every_page():
    pages = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
    assert f"docs/            {' · '.join(pages)}\n" in README
