"""What a token mixer promises whatever its options: one function a promise."""

import copy
import doctest
import inspect
import io
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mixwise.errors import UsageError
from mixwise.layers import Grid
from mixwise.mixers import keyword_options
from mixwise.testing.case import Case, gap


def _refuses(call: Callable[[], Any]) -> bool:
    """Whether a call raises `UsageError`; any other error counts as one that does not help."""
    try:
        call()
    except UsageError:
        return True
    except Exception:
        return False
    return False


def check_signature(case: Case) -> None:
    """(dim, tokens, grid) and keyword-only options with immutable defaults and annotations; no **kwargs."""
    cls, name = case.cls, case.name
    parameters = inspect.signature(cls).parameters.values()
    first = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert first == ["dim", "tokens", "grid"], f"mixer {name!r}: takes {first}, not dim, tokens, grid and then '*'"
    assert not any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in parameters), (
        f"mixer {name!r}: takes *args or **kwargs, so a mistyped option would go unnoticed"
    )
    for option in (p for p in parameters if p.kind is p.KEYWORD_ONLY):
        assert option.default is not option.empty, f"mixer {name!r}: option {option.name!r} has no default"
        assert option.annotation is not option.empty, f"mixer {name!r}: option {option.name!r} has no annotation"
        assert option.default.__hash__, f"mixer {name!r}: the default of option {option.name!r} is mutable"


def check_docstring(case: Case) -> None:
    """The docstring names every option and has an example that runs."""
    cls, name = case.cls, case.name
    text = inspect.cleandoc(cls.__doc__ or "") if "__doc__" in vars(cls) else ""
    for option in keyword_options(cls):
        assert option in text, f"mixer {name!r}: the docstring does not explain option {option!r}"
    names = {**vars(inspect.getmodule(cls)), "torch": torch, cls.__name__: cls}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert example.examples, f"mixer {name!r}: the docstring has no example (>>>)"
    report = io.StringIO()
    failed = doctest.DocTestRunner(verbose=False).run(example, out=report.write).failed
    assert not failed, f"mixer {name!r}: the example in the docstring fails\n{report.getvalue()}"


def check_shapes(case: Case) -> None:
    """(b, n, c) → (b, n, c), finite, repeatable in evaluation, input left alone; usable in training."""
    module, x = case.module(), case.input()
    before = x.clone()
    y = module(x, case.grid)
    case.hold(y.shape == x.shape, f"turns {tuple(x.shape)} into {tuple(y.shape)}")
    case.hold(bool(y.isfinite().all()), "returns values that are not finite")
    case.hold(torch.equal(x, before), "changes its input in place")
    case.hold(torch.equal(y, module(x, case.grid)), "gives two answers to one input in evaluation mode")
    case.hold(module.train()(x, case.grid).shape == x.shape, "has another output shape in training")


def check_grid(case: Case) -> None:
    """fixed_grid and spatial: what it takes and what it refuses."""
    module, x = case.module(), case.input()
    rows, columns = case.grid
    other = (rows - 1, columns + 2)
    x_other = case.input(tokens=other[0] * other[1])
    if module.fixed_grid:
        refused = _refuses(lambda: module(x_other, other)) and _refuses(
            lambda: module(case.input(tokens=2 * case.tokens), (2 * rows, columns))
        )
        case.hold(refused, "claims fixed_grid but does not refuse another number of tokens with a UsageError")
    else:
        larger = case.input(tokens=6 * case.tokens)
        y = module(larger, (2 * rows, 3 * columns))
        case.hold(y.shape == larger.shape, "does not claim fixed_grid but fails on a multiple of its grid")
        case.hold(
            _refuses(lambda: module(x_other, other)) or module(x_other, other).shape == x_other.shape,
            f"does not claim fixed_grid but turns a grid {other} into another shape",
        )
    if module.spatial:
        case.hold(_refuses(lambda: module(x, (case.tokens,))), "claims spatial but does not refuse a 1-D grid")
        looks = _refuses(lambda: module(x, (columns, rows))) or not torch.equal(
            module(x, case.grid), module(x, (columns, rows))
        )
        case.hold(looks, "claims spatial but does not look at the grid")
    else:
        same = all(torch.equal(module(x, case.grid), module(x, g)) for g in [(columns, rows), (case.tokens,)])
        case.hold(same, "depends on the grid and does not claim spatial")
        longer = case.input(tokens=case.tokens + 1)
        y = case.module(prefix=1)(longer, case.grid)
        case.hold(y.shape == longer.shape, "cannot have a class token and does not claim spatial")


def check_order(case: Case) -> None:
    """equivariant: permuting the tokens permutes the output, or it does not."""
    module, x = case.module(), case.input()
    order = torch.randperm(case.tokens, generator=torch.Generator().manual_seed(0))
    blind = gap(module(x[:, order], case.grid), module(x, case.grid)[:, order]) < 1e-9
    case.hold(blind or not module.equivariant, "claims equivariant but its output depends on the order of the tokens")
    case.hold(module.equivariant or not blind, "is blind to the order of the tokens and does not claim equivariant")


def check_shift(case: Case) -> None:
    """shift_blind: adding one vector to every token adds one vector to every output token, or it does not."""
    module, x = case.module(), case.input()
    change = module(x + case.input(1, 1, seed=2), case.grid) - module(x, case.grid)
    blind = float((change - change.mean(dim=(0, 1))).detach().abs().max()) < 1e-6
    case.hold(blind or not module.shift_blind, "claims shift_blind but notices a vector added to every token")
    case.hold(module.shift_blind or not blind, "does not claim shift_blind, so norms in front keep a dead shift")


def check_scale(case: Case) -> None:
    """scale_blind: multiplying each channel by a positive number changes nothing, or it does."""
    module, x = case.module(), case.input()
    factors = 0.5 + case.input(1, 1, seed=2).abs()
    blind = gap(module(x * factors, case.grid), module(x, case.grid)) < 1e-4
    case.hold(blind or not module.scale_blind, "claims scale_blind but notices a factor on each channel")
    case.hold(module.scale_blind or not blind, "does not claim scale_blind, so norms in front keep a dead scale")


def check_batch(case: Case) -> None:
    """In evaluation an image's answer does not depend on its neighbours in the batch."""
    module, x = case.module(), case.input(3)
    alone, together = module(x[:1], case.grid), module(x, case.grid)[:1]
    case.hold(gap(together, alone) < 1e-9, "lets images of a batch influence each other in evaluation mode")


def check_gradients(case: Case) -> None:
    """Every parameter matters, even where batch norm removes a constant per channel afterwards; so does every token."""
    module, x = case.module(), case.input().requires_grad_()
    weights = case.input(seed=3)
    weights = weights - weights.mean(dim=(0, 1))
    (module(x, case.grid) * weights).sum().backward()
    for name, parameter in module.named_parameters():
        grad = parameter.grad
        alive = grad is not None and bool(grad.isfinite().all()) and float(grad.abs().max()) > 1e-9
        case.hold(
            alive, f"parameter {name!r} gets no gradient, or adds one constant per channel: leave it out by default"
        )
    case.hold(x.grad is not None and bool((x.grad.abs().sum(2) > 0).all()), "lets no gradient through to some tokens")


def check_state(case: Case) -> None:
    """A state dict restores the mixer exactly, and no two tensors share memory."""
    module, x = case.module(), case.input()
    state = module.state_dict()
    places = [t.untyped_storage().data_ptr() for t in case.fresh().state_dict().values()]
    case.hold(len(places) == len(set(places)), "has parameters that share memory: loading one would overwrite another")
    torch.manual_seed(1)
    other = case.cls(case.dim, case.tokens, case.grid, **case.options).double().eval()
    other.load_state_dict(state, strict=True)
    same = torch.equal(other(x, case.grid), module(x, case.grid))
    case.hold(same, "is not restored by its state dict: something that matters is not in it")


def check_precision(case: Case) -> None:
    """bf16, by autocast and as weights: finite and near float32."""
    module, x = case.module().float(), case.input().float()
    exact = module(x, case.grid).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        mixed = module(x, case.grid)
    low = copy.deepcopy(module).bfloat16()(x.bfloat16(), case.grid)
    for what, y in (("bf16 autocast", mixed), ("bf16 weights", low)):
        gap = float((y.detach().float() - exact).norm() / exact.norm())
        case.hold(bool(y.isfinite().all()) and gap < 0.1, f"is off by {gap:.0%} with {what}")


def check_compile(case: Case) -> None:
    """torch.compile takes it whole."""
    module, x = case.module().float(), case.input().float()
    torch.compiler.reset()
    try:
        y = torch.compile(module, backend="aot_eager", fullgraph=True)(x, case.grid)
    except Exception as error:
        raise AssertionError(f"mixer {case.name!r}: torch.compile fails: {error}") from error
    case.hold(gap(y, module(x, case.grid)) < 1e-4, "is another function after torch.compile")


class _OnGrid(nn.Module):
    """A mixer on one grid, as a function of the tokens alone."""

    def __init__(self, mixer: nn.Module, grid: Grid) -> None:
        super().__init__()
        self.mixer, self.grid = mixer, grid

    def forward(self, x: Tensor) -> Tensor:
        return self.mixer(x, self.grid)


def check_export(case: Case) -> None:
    """torch.export with a dynamic batch, run with batches of 1, 2 and 7."""
    module = _OnGrid(case.module().float(), case.grid).eval()
    try:
        program = torch.export.export(
            module, (case.input().float(),), dynamic_shapes=({0: torch.export.Dim("batch")},)
        ).module()
        for batch in (1, 2, 7):
            x = case.input(batch).float()
            case.hold(gap(program(x), module(x)) < 1e-4, f"is another function after torch.export, batch {batch}")
    except AssertionError:
        raise
    except Exception as error:
        raise AssertionError(f"mixer {case.name!r}: torch.export with a dynamic batch fails: {error}") from error


def check_reparameterize(case: Case) -> None:
    """`reparameterize` gives an equal module, from either mode, leaves the original alone and is idempotent."""
    module, x = case.module(), case.input()
    before = copy.deepcopy(module.state_dict())
    y = module(x, case.grid)
    folded = module.train().reparameterize()
    same = all(torch.equal(t, before[k]) for k, t in module.state_dict().items()) and module.training
    case.hold(same, "is changed by its own reparameterize()")
    case.hold(gap(folded.eval()(x, case.grid), y) < 1e-9, "is another function after reparameterize()")
    case.hold(folded.reparameterize() is folded, "cannot be reparameterized twice")
    traits = ("fixed_grid", "equivariant", "spatial", "shift_blind", "scale_blind")
    case.hold(all(getattr(folded, t) == getattr(module, t) for t in traits), "has other traits after reparameterize()")


def check_resize(case: Case) -> None:
    """`resize` gives what its options build on the other grid, for any grid or with a sentence why not."""
    module, grid = case.module(), (case.grid[0] + 2, case.grid[1] + 1)
    tokens = grid[0] * grid[1]
    x = case.input(tokens=tokens)
    try:
        changes = module.resize(case.grid, grid)
    except UsageError:
        case.hold(_refuses(lambda: module(x, grid)), "refuses another grid in resize() and takes it in forward()")
        return
    other = case.cls(case.dim, tokens, grid, **{**case.options, **changes}).double().eval()
    fits = {k: t.shape for k, t in module.state_dict().items()} == {k: t.shape for k, t in other.state_dict().items()}
    case.hold(fits, "does not have the weights that its options have on the other grid after resize()")
    other.load_state_dict(module.state_dict())
    case.hold(torch.equal(other(x, grid), module(x, grid)), "is another function than its options say after resize()")


def check_mask(case: Case) -> None:
    """Where forward takes a mask (b, n): masked tokens are as good as absent, and nothing becomes NaN."""
    module, x = case.module(), case.input()
    if "mask" not in inspect.signature(module.forward).parameters:
        return
    kept = case.tokens - 4
    mask = torch.ones(2, case.tokens, dtype=torch.bool)
    mask[:, kept:] = False
    run: Callable[..., Tensor] = module
    y = run(x, case.grid, mask=mask)
    alone = run(x[:, :kept], (kept,))
    case.hold(gap(y[:, :kept], alone) < 1e-9, "lets masked tokens influence the others")
    mask[0] = False
    case.hold(bool(run(x, case.grid, mask=mask).isfinite().all()), "is not finite where every token is masked")


PROMISES: tuple[Callable[[Case], None], ...] = (
    check_signature,
    check_docstring,
    check_shapes,
    check_grid,
    check_order,
    check_shift,
    check_scale,
    check_batch,
    check_gradients,
    check_state,
    check_precision,
    check_reparameterize,
    check_resize,
    check_mask,
    check_compile,
    check_export,
)
