"""The training step: what is computed for a batch, the same for every model."""

import hashlib
from typing import Any

import pytorch_lightning as pl
import torch
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torchvision.transforms import v2

from mixwise.config import Augment, Recipe
from mixwise.tasks import Task
from mixwise.training.optim import adamw, warmup_cosine


def derive_seed(*parts: int | str) -> int:
    """A seed from any parts, independent for different parts: randomness by address, not by stream."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


class BatchMix:
    """Mixup and cutmix of a batch; each batch draws one of those that are on."""

    def __init__(self, config: Augment, classes: int) -> None:
        alphas = {v2.MixUp: config.mixup, v2.CutMix: config.cutmix}
        self.choices = [kind(alpha=alpha, num_classes=classes) for kind, alpha in alphas.items() if alpha > 0]
        self.prob = config.mix_prob if classes > 1 else 0.0

    def __call__(self, images: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        if not self.choices or torch.rand(()) >= self.prob:
            return images, target
        choice = self.choices[int(torch.randint(len(self.choices), ()))]
        return choice(images, target)


class Trainable(pl.LightningModule):
    """A model in training, its running average, and the sums that become the epoch's metrics."""

    def __init__(
        self, model: nn.Module, task: Task, recipe: Recipe, classes: int, *, steps: int, seed: int, compile: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.task = task
        self.recipe = recipe
        self.steps = steps
        self.seed = seed
        self.ema = ModelEmaV3(model, decay=recipe.ema, use_warmup=True) if recipe.ema else None
        self.mix = BatchMix(recipe.augment, classes)
        # In a tuple, so that the weights are not registered, and saved, a second time.
        self.forward_pass = (torch.compile(model) if compile else model,)
        self.sums: dict[str, Tensor] = {}
        self.meters = {name: task.meter(classes) for name in ("train", *self.candidates())}
        self.validated: dict[str, tuple[float, float]] = {}
        """(mean loss, metric) of each candidate at the last validation of this epoch; empty where there was none."""

    def configure_optimizers(self) -> Any:
        batch = self.recipe.batch_size * self.recipe.accumulate * self.trainer.world_size
        fused = self.trainer.precision != "16-mixed"  # the fp16 scaler must unscale before gradients are clipped
        optimizer = adamw(self.model, self.recipe.optimizer, batch, fused=fused)
        schedule = warmup_cosine(optimizer, self.steps, self.recipe.warmup)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        if self.recipe.optimizer.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimizer.clip)

    def on_train_batch_start(self, batch: Any, batch_index: int) -> None:
        torch.manual_seed(derive_seed(self.seed, "batch", self.current_epoch, batch_index, self.global_rank))

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_index: int) -> Tensor | None:
        images, target, _ = batch
        if not len(images):  # none of them could be read
            return None
        mixed, soft = self.mix(images, target)
        logits = self.forward_pass[0](mixed)
        loss = self.task.loss(logits, soft, smoothing=self.recipe.label_smoothing)
        self.add("train", loss.detach(), logits.detach(), soft)
        return loss

    def on_train_epoch_start(self) -> None:
        self.validated = {}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_index: int) -> None:
        stepped = (
            batch_index + 1
        ) % self.recipe.accumulate == 0 or batch_index + 1 == self.trainer.num_training_batches
        if self.ema is not None and stepped:
            self.ema.update(self.model, step=self.trainer.global_step)

    def validation_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_index: int) -> None:
        images, target, _ = batch
        for name, model in self.candidates().items():
            logits = model(images)
            self.add(name, self.task.loss(logits, target), logits, target)

    def on_validation_epoch_end(self) -> None:
        self.validated = {name: self.take(name) for name in self.candidates()}
        self.log(f"val_{self.task.metric}", max(value for _, value in self.validated.values()))

    def candidates(self) -> dict[str, nn.Module]:
        """The weights that may be kept: as trained, and averaged."""
        return {"raw": self.model} | ({"ema": self.ema.module} if self.ema is not None else {})

    def add(self, name: str, loss: Tensor, logits: Tensor, target: Tensor) -> None:
        """Add a batch to the sums (loss · images, images) and the meter of `name`; stays on the device, no waiting."""
        count = len(target)
        new = torch.stack([loss.float() * count, loss.new_tensor(float(count), dtype=torch.float)])
        self.sums[name] = self.sums[name] + new if name in self.sums else new
        self.meters[name].to(logits.device).update(logits, self.task.truth(target))

    def take(self, name: str) -> tuple[float, float]:
        """(mean loss, metric) of `name` since last asked, over all processes."""
        if name not in self.sums:
            return float("nan"), float("nan")
        total = self.trainer.strategy.reduce(self.sums.pop(name), reduce_op="sum")
        value = float(self.meters[name].compute())
        self.meters[name].reset()
        return float(total[0] / total[1]), value
