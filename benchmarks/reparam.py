"""Re-parameterised RepMLPNet against the arrangement of its authors' converted form, at equal weights.

    python benchmarks/reparam.py [--model repmlpnet_t224] [--batches 1 4] [--repeats 15]

The authors' conversion makes each block's matrix one 1 × 1 convolution in as many groups as there are share-sets and
leaves every other batch norm in place. `Plain*` below is that arrangement, written here in ordinary channels-first
PyTorch. mixwise folds the other norms too and runs the matrices as one batched product (`baddbmm`). All three forms
hold the same random weights and batch-norm statistics, give the same output (printed), and are timed in turns.
"""

import argparse
import copy
import itertools
import statistics
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mixwise.blocks import Branch
from mixwise.config import BackboneConfig
from mixwise.mixers import Mixer
from mixwise.models import create_model, model_config
from mixwise.norms import TokenBatchNorm
from mixwise.weights.mapping import FORMATS, to_foreign

AUTHORS = "authors' form"


class ConvBN(nn.Module):
    """A convolution without bias, and its batch norm."""

    def __init__(self, dim: int, out: int, kernel: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(dim, out, kernel, kernel, bias=False)
        self.bn = nn.BatchNorm2d(out)

    def forward(self, x: Tensor) -> Tensor:
        return self.bn(self.conv(x))


class PlainGate(nn.Module):
    """Mean over the map, two 1 × 1 convolutions, sigmoid."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Conv2d(dim, hidden, 1), nn.Conv2d(hidden, dim, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(F.relu(self.fc1(F.adaptive_avg_pool2d(x, 1)))).sigmoid()


class PlainBlock(nn.Module):
    """One window over the whole map: a grouped 1 × 1 convolution over its positions, times the gate."""

    def __init__(self, dim: int, side: int, sets: int) -> None:
        super().__init__()
        self.sets, self.size = sets, side * side
        self.gp = PlainGate(dim, dim // 4)
        self.fc3 = nn.Conv2d(sets * self.size, sets * self.size, 1, groups=sets)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc3(x.reshape(-1, self.sets * self.size, 1, 1)).reshape(x.shape)
        return y * self.gp(x)


class PlainFFN(nn.Module):
    """Two 1 × 1 convolutions with batch norms."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.ffn_fc1, self.ffn_fc2 = ConvBN(dim, 4 * dim), ConvBN(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn_fc2(F.gelu(self.ffn_fc1(x)))


class PlainUnit(nn.Module):
    """x + block(bn(x)), x + ffn(bn(x))."""

    def __init__(self, dim: int, side: int, sets: int) -> None:
        super().__init__()
        self.prebn1, self.prebn2 = nn.BatchNorm2d(dim), nn.BatchNorm2d(dim)
        self.repmlp_block, self.ffn_block = PlainBlock(dim, side, sets), PlainFFN(dim)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.repmlp_block(self.prebn1(x))
        return x + self.ffn_block(self.prebn2(x))


class PlainNet(nn.Module):
    """The whole network, in the converted form."""

    def __init__(self, depths: list[int], dims: list[int], sides: list[int], sets: list[int], classes: int) -> None:
        super().__init__()
        self.conv_embedding = ConvBN(3, dims[0], 4)
        self.embeds = nn.ModuleList(ConvBN(a, b, 2) for a, b in itertools.pairwise(dims))
        self.stages = nn.ModuleList(
            nn.ModuleList(PlainUnit(dim, side, s) for _ in range(depth))
            for depth, dim, side, s in zip(depths, dims, sides, sets, strict=True)
        )
        self.head_norm = nn.BatchNorm2d(dims[-1])
        self.head = nn.Linear(dims[-1], classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv_embedding(x))
        for i, stage in enumerate(self.stages):
            if i:
                x = F.relu(self.embeds[i - 1](x))
            assert isinstance(stage, nn.ModuleList)
            for unit in stage:
                x = unit(x)
        return self.head(F.adaptive_avg_pool2d(self.head_norm(x), 1).flatten(1))


def shuffle(model: nn.Module) -> None:
    """Random batch-norm statistics and weights, so that a wrong fold shows."""
    for module in model.modules():
        if isinstance(module, TokenBatchNorm):
            assert module.running_mean is not None
            assert module.running_var is not None
            module.running_mean.normal_(0, 0.2)
            module.running_var.uniform_(0.5, 2)
            if module.weight is not None:
                module.weight.data.uniform_(0.5, 1.5)
            if module.bias is not None:
                module.bias.data.normal_(0, 0.2)


def halfway(model: nn.Module) -> nn.Module:
    """A copy with the RepMLP blocks folded and all other norms left, as the authors convert."""
    model = copy.deepcopy(model)
    for branch in model.modules():
        if isinstance(branch, Branch) and isinstance(branch.mixer, Mixer):
            branch.mixer = branch.mixer.reparameterize()
    return model


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="repmlpnet_t224")
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 4])
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    config = model_config(arguments.model)
    assert isinstance(config, BackboneConfig)
    trained = create_model(arguments.model).eval()
    shuffle(trained)
    fused = trained.reparameterize()
    sets = [stage.branches[0].options["sharesets"] for stage in config.stages]
    sides = [config.image[0] // 4 // 2**i for i in range(len(sets))]
    plain = PlainNet([s.depth for s in config.stages], [s.dim for s in config.stages], sides, sets, config.classes)
    injected = config.model_copy(update={"form": "reparameterized"})
    plain.load_state_dict(to_foreign(FORMATS["repmlpnet"].entries(injected), halfway(trained).state_dict()))
    plain.eval()
    forms = {AUTHORS: plain, "mixwise, trainable": trained, "mixwise, re-parameterised": fused}
    print(f"{arguments.model}, fp32, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for batch in arguments.batches:
        x = torch.randn(batch, 3, *config.image)
        with torch.inference_mode():
            outputs = {name: model(x) for name, model in forms.items()}
            times: dict[str, list[float]] = {name: [] for name in forms}
            for turn in range(arguments.repeats + 3):
                for name, model in forms.items():
                    start = time.perf_counter()
                    model(x)
                    if turn >= 3:
                        times[name].append(time.perf_counter() - start)
        middle = {name: statistics.median(values) for name, values in times.items()}
        print(f"\nbatch {batch}, median of {arguments.repeats}")
        for name, seconds in middle.items():
            gap = float((outputs[name] - outputs["mixwise, trainable"]).abs().max())
            print(
                f"  {name:27s} {1000 * seconds:8.1f} ms  {batch / seconds:7.1f} images/s  "
                f"{middle[AUTHORS] / seconds:5.2f} ×  |Δ| {gap:.1e}"
            )


if __name__ == "__main__":
    main()
