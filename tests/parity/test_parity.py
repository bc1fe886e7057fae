"""Every golden vector of the official implementations, through the tables that `convert` uses.

The vectors lie outside the repository, in `MIXWISE_SHARED` (default `../shared`), folder parity; see its README.
"""

import importlib
import os
import pkgutil
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import parity.builders
from mixwise.model import Model
from parity.case import BUILDERS, Case, Vector, as_tensors

for found in pkgutil.iter_modules(parity.builders.__path__):
    importlib.import_module(f"parity.builders.{found.name}")

ROOT = Path(os.environ.get("MIXWISE_SHARED", Path(__file__).parents[3] / "shared")) / "parity"
FILES = sorted(ROOT.glob("*/*.json"))
VECTORS = [Vector.read(path) for path in FILES]
pytestmark = pytest.mark.skipif(not FILES, reason=f"no golden vectors in {ROOT} (set MIXWISE_SHARED)")
every = pytest.mark.parametrize("vector", VECTORS, ids=lambda v: f"{v.path.parent.name}/{v.path.stem}")


def case_of(vector: Vector) -> Case:
    assert vector.key in BUILDERS, f"no builder for {vector.key}: add one in tests/parity/builders"
    return BUILDERS[vector.key](vector)


def state_of(vector: Vector, arrays) -> dict[str, Tensor]:
    if vector.meta["weights"]["kind"] == "rule":
        return parity.builders.eanet.weights_by_rule(vector)  # type: ignore[attr-defined]
    return as_tensors(arrays, "state/")


def error(got: Tensor, wanted: Tensor) -> float:
    assert got.shape == wanted.shape
    return float((got.double() - wanted.double()).abs().max())


@every
def test_output(vector):
    """float32 within the stated tolerance, float64 far within it; the number of parameters."""
    case, arrays = case_of(vector), vector.arrays()
    state, x = state_of(vector, arrays), torch.from_numpy(arrays["input"])
    module, tolerance = case.loaded(state), vector.meta["tolerance_max_abs"]
    with torch.no_grad():
        assert error(case.run(module, x), torch.from_numpy(arrays["output"])) <= tolerance
        if "output64" in arrays:
            double = case.loaded(state, double=True)
            y = case.run(double, x.double() if x.is_floating_point() else x)
            wanted = torch.from_numpy(arrays["output64"])
            assert error(y, wanted) <= 1e-11 * max(1.0, float(wanted.abs().max()))
    lost = sum(torch.Size(t.shape).numel() for n, t in state.items() if case.ignored(n))
    frozen = sum(b.numel() for n, b in module.named_buffers() if case.frozen(n))
    assert sum(p.numel() for p in module.parameters()) + frozen + lost == vector.meta["parameters"]


@every
def test_intermediates(vector):
    """Each named intermediate, relative to its largest entry."""
    case, arrays = case_of(vector), vector.arrays()
    wanted = as_tensors(arrays, "inter/")
    assert set(wanted) == set(case.inter), "every stored intermediate is compared"
    module = case.loaded(state_of(vector, arrays))
    seen: dict[str, Tensor] = {}
    for name, (path, layout) in case.inter.items():

        def keep(m, i, o, name=name, layout=layout):
            seen.setdefault(name, layout(o))

        module.get_submodule(path).register_forward_hook(keep)
    with torch.no_grad():
        case.run(module, torch.from_numpy(arrays["input"]))
    for name, value in wanted.items():
        assert error(seen[name].reshape(value.shape), value) <= 1e-5 * float(value.abs().max()), name


@every
def test_gradients(vector):
    """With respect to the input, and to the parameters where stored, in float64."""
    case, arrays = case_of(vector), vector.arrays()
    module = case.loaded(state_of(vector, arrays), double=True)
    x = torch.from_numpy(arrays["input"])
    x = x.double().requires_grad_() if x.is_floating_point() else x
    (case.run(module, x) * torch.from_numpy(arrays["cotangent"]).double()).sum().backward()
    relative = 1e-5 if vector.meta["system"] == "vit_jax_vit" else 1e-6
    if "grad_input" in arrays:
        wanted = torch.from_numpy(arrays["grad_input"])
        assert error(x.grad, wanted) <= relative * float(wanted.abs().max())
    stored = as_tensors(arrays, "grad_state/")
    largest = max((float(g.abs().max()) for g in stored.values()), default=0)
    ours = dict(module.named_parameters())
    for entry in case.entries:
        if entry.foreign and all(name in stored for name in entry.foreign):
            wanted = entry.read(*(stored[name] for name in entry.foreign))
            gradient = ours[entry.native].grad
            gradient = torch.zeros_like(ours[entry.native]) if gradient is None else gradient
            limit = relative * max(float(wanted.abs().max()), 1e-3 * largest)
            assert error(gradient, wanted) <= limit, entry.native


@every
def test_folded(vector):
    """What `reparameterize` folds of a whole model leaves its output alone, in float64."""
    case, arrays = case_of(vector), vector.arrays()
    module = case.loaded(state_of(vector, arrays), double=True)
    if not isinstance(module, Model):
        pytest.skip("a part of a model")
    x = torch.from_numpy(arrays["input"])
    x = x.double() if x.is_floating_point() else x
    with torch.no_grad():
        wanted = case.run(module, x)
        assert error(case.run(module.reparameterize(), x), wanted) <= 1e-11 * max(1.0, float(wanted.abs().max()))


DEPLOYED = [v for v in VECTORS if any(n.startswith("repmlp") for n in v.key)]


@pytest.mark.parametrize("vector", DEPLOYED, ids=lambda v: f"{v.path.parent.name}/{v.path.stem}")
def test_reparameterized(vector):
    """The official converted weights in our re-parameterised form, and our own conversion."""
    case, arrays = case_of(vector), vector.arrays()
    x, tolerance = torch.from_numpy(arrays["input"]), vector.meta["tolerance_max_abs"]
    wanted = torch.from_numpy(arrays["output_deploy"])
    ours: nn.Module = case.reparameterize(case.loaded(as_tensors(arrays, "state/")))
    with torch.no_grad():
        assert error(case.run(case.loaded_deploy(as_tensors(arrays, "state_deploy/")), x), wanted) <= tolerance
        assert error(case.run(ours, x), wanted) <= tolerance
