"""Speed of inference against timm's own models in eager mode, at equal weights, in fp32 and bf16.

    python benchmarks/inference.py [--models mixer_s16_224 …] [--batches 1 8] [--repeats 15] [--profile]

Both models hold the same random weights (carried over by the converter and checked to give the same output), run in
this process, in turns; the figure is the ratio of the median times, timm over mixwise: above 1, mixwise is faster.
bf16 means weights and images in bfloat16. `fused` is mixwise's re-parameterised form of the same weights.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import timm
import torch
from torch import Tensor, nn

from mixwise.device import has_native_bf16
from mixwise.model import Model
from mixwise.models import list_models, model_config
from mixwise.weights import convert_state
from mixwise.weights.mapping import FORMATS, Format

MODELS = ("mixer_s16_224", "gmlp_s16_224", "poolformer_s12", "resmlp_12_224")


def form_of(name: str) -> Format:
    """The timm format that holds a preset."""
    return next(
        form
        for key, form in FORMATS.items()
        if key.startswith("timm_") and any(name in list_models(pattern) for pattern in form.presets)
    )


def both(name: str) -> tuple[nn.Module, Model]:
    """(timm's model, ours) with the same weights."""
    theirs, form = timm.create_model(name).eval(), form_of(name)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))
    state = theirs.state_dict()
    shapes = {key: tuple(tensor.shape) for key, tensor in state.items()}
    ours = convert_state(form, state, form.adapt(model_config(name), shapes))
    x = torch.randn(2, 3, 224, 224)
    with torch.inference_mode():
        gap = float((theirs(x) - ours(x)).abs().max())
    assert gap < 1e-4, f"{name}: outputs differ by {gap}"
    return theirs, ours


def interleaved(calls: dict[str, Callable[[], Tensor]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each call, taking turns, after a warm-up."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 3):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            if turn >= 3:
                times[name].append(time.perf_counter() - start)
    return times


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--profile", action="store_true", help="print where the time of both goes, batch by batch")
    arguments = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, torch {torch.__version__}, timm {timm.__version__}")
    print(f"{'model':18s} {'precision':9s} {'batch':>5s} {'timm':>10s} {'mixwise':>10s} {'ratio':>7s} {'fused':>7s}")
    for name in arguments.models:
        theirs, ours = both(name)
        fused = ours.reparameterize()
        for dtype in (torch.float32, torch.bfloat16) if has_native_bf16() else (torch.float32,):
            models: dict[str, nn.Module] = {
                k: m.to(dtype) for k, m in {"timm": theirs, "mixwise": ours, "fused": fused}.items()
            }
            for batch in arguments.batches:
                x = torch.randn(batch, 3, 224, 224).to(dtype)
                with torch.inference_mode():
                    times = interleaved({k: partial(m, x) for k, m in models.items()}, arguments.repeats)
                    middle = {k: statistics.median(v) for k, v in times.items()}
                    print(
                        f"{name:18s} {str(dtype)[6:]:9s} {batch:5d} {1000 * middle['timm']:8.1f}ms "
                        f"{1000 * middle['mixwise']:8.1f}ms {middle['timm'] / middle['mixwise']:7.2f} "
                        f"{middle['timm'] / middle['fused']:7.2f}",
                        flush=True,
                    )
                    if arguments.profile:
                        for key in ("timm", "mixwise"):
                            with torch.profiler.profile() as profile:
                                models[key](x)
                            print(f"\n{name}, {key}, batch {batch}")
                            print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=12))


if __name__ == "__main__":
    main()
