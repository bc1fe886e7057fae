"""House rules that a reader relies on: where things live, how big they get, what is exported, nothing ignored."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mixwise
from mixwise import config as configs
from mixwise.mixers import MIXERS

SOURCE = Path(mixwise.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))

# Each module may import from its own layer and from those before it.
LAYERS = [
    ["errors", "files", "device"],
    ["labels"],
    ["config"],
    ["norms", "folding"],
    ["layers"],
    ["regrid"],
    ["stems", "positions", "heads"],
    ["mixers"],
    ["blocks", "model", "t2t"],
    ["assemble"],
    ["backbone"],
    ["models", "testing"],
    ["weights"],
    ["timm"],
    ["tasks"],
    ["data"],
    ["screening"],
    ["training"],
    ["prediction"],
    ["comparison"],
    ["reparameterization"],
    ["resizing"],
    ["evaluation"],
    ["report"],
    ["trainer"],
    ["crossvalidation"],
    ["cli", "__main__", "__init__"],
]
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def trees():
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_one_way(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("mixwise."):
            names = [node.module]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("mixwise.")]
        for name in names:
            assert RANK[name.split(".")[1]] <= RANK[room(path)], f"{path.name} imports {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_files_stay_small(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    limit = 80 if path.parent.name == "mixers" and path.stem in MIXERS else 300
    exceptions = {
        "mixers/attention.py": 90,
        "mixers/feed_forward.py": 90,
        "mixers/linear.py": 110,
        "mixers/repmlp.py": 170,
        "mixers/spatial_gate.py": 150,
        "mixers/token_mlp.py": 105,
        "mixers/external_attention.py": 110,
    }
    assert lines <= exceptions.get(path.relative_to(SOURCE).as_posix(), limit)


def test_no_rooms_for_everything():
    assert not {p.stem for p in FILES} & {"utils", "common", "helpers", "misc"}


def test_no_kwargs_and_no_hasattr():
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and path.stem not in ("registry", "pretrained", "timm"):
                assert node.args.kwarg is None or node.name in ("_settings",), (
                    f"{path.name}: {node.name} takes **kwargs"
                )
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id != "hasattr", f"{path.name} calls hasattr"


def test_public_names_are_exact():
    assert sorted(mixwise.__all__) == mixwise.__all__
    assert set(mixwise.__all__) == set(mixwise._HOMES)
    for name in mixwise.__all__:
        assert getattr(mixwise, name).__module__.startswith("mixwise")
    for package in pkgutil.iter_modules([str(SOURCE)]):
        module = importlib.import_module(f"mixwise.{package.name}")
        for name in getattr(module, "__all__", []):
            assert getattr(module, name) is not None


def test_public_things_have_docstrings():
    for path, tree in trees():
        assert ast.get_docstring(tree), f"{path} has no docstring"
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
                assert ast.get_docstring(node), f"{path.name}: {node.name} has no docstring"


def test_no_setting_is_accepted_and_ignored():
    """Every field of every config is read somewhere besides the validation in config."""
    read = set()
    for path, tree in trees():
        checks = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_check"]
        skipped = {id(n) for c in checks for n in ast.walk(c)} if path.parent.name == "config" else set()
        read |= {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and id(n) not in skipped}
    for cls in vars(configs).values():
        if isinstance(cls, type) and issubclass(cls, configs.Config):
            assert set(cls.model_fields) - read <= {"kind"}, cls.__name__


def test_help_does_not_import_torch():
    code = (
        "import sys, mixwise, mixwise.cli; from typer.testing import CliRunner; "
        "r = CliRunner().invoke(mixwise.cli.app, ['--help']); assert r.exit_code == 0, r.output; "
        "heavy = [m for m in ('torch', 'timm', 'sklearn', 'matplotlib', 'pydantic') if m in sys.modules]; "
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_mixer_has_an_example_and_a_source():
    for name, cls in MIXERS.items():
        assert cls.__doc__, name
        assert "Source:" in cls.__doc__, f"{name} does not say where it comes from"
        assert ">>>" in cls.__doc__, f"{name} has no example"
