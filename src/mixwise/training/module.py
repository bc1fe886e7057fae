"""The training step: what is computed for a batch, the same for every model."""

import contextlib
import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytorch_lightning as pl
import torch
import torch.distributed
from timm.utils import ModelEmaV3
from torch import Tensor, nn
from torchvision.transforms import v2

from mixwise.config import Augment, Recipe
from mixwise.errors import UsageError
from mixwise.tasks import Task
from mixwise.training.alarm import Alarm, DivergenceError, advice
from mixwise.training.memory import Portion, is_out_of_memory
from mixwise.training.optim import adamw, effective_batch, warmup_cosine

Batch = tuple[Tensor, Tensor, Tensor]
"""Pictures (b, c, h, w), labels, indices (b,)."""


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
    """A model in training, its running average, and the sums that become the epoch's metrics.

    Args:
        steps: optimiser steps of the whole training, for the learning-rate curve.
        weight: (classes,) as `Task.loss` takes it.
        images: training pictures of an epoch.
        names: of the training pictures, to tell which of them hold numbers that are not finite.
        say: prints a sentence.

    The step is done here and not by Lightning, so that one which runs out of memory can start again in smaller parts.
    """

    weight: Tensor | None

    def __init__(
        self,
        model: nn.Module,
        task: Task,
        recipe: Recipe,
        classes: int,
        *,
        steps: int,
        seed: int,
        compile: bool,
        weight: Tensor | None = None,
        images: int,
        names: Sequence[str] = (),
        say: Callable[[str], None] = print,
    ) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.model = model
        self.task = task
        self.recipe = recipe
        self.steps = steps
        self.seed = seed
        self.images = images
        self.names = names
        self.register_buffer("weight", weight, persistent=False)
        self.frozen = freeze(model) if recipe.freeze == "backbone" else []
        self.ema = ModelEmaV3(model, decay=recipe.ema, use_warmup=True) if recipe.ema else None
        if self.ema is not None:
            self.ema.requires_grad_(False)  # several processes wait for the gradient of everything that may have one
        self.mix = BatchMix(recipe.augment, classes)
        # In a tuple, so that the weights are not registered, and saved, a second time.
        self.forward_pass = (torch.compile(model) if compile else model,)
        self.window: list[tuple[int, Batch]] = []
        """The batches of the step under way, with their positions in the epoch."""
        self.portion = Portion("training", say)
        self.val_portion = Portion("validation", say)
        self.alarm = Alarm(every=1)
        self.sums: dict[str, Tensor] = {}
        self.meters = {name: task.meter(classes) for name in ("train", *self.candidates())}
        self.validated: dict[str, tuple[float, float]] = {}
        """(mean loss, metric) of each candidate at the last validation of this epoch; empty where there was none."""
        self.train()  # Lightning takes the modes as they are

    def train(self, mode: bool = True) -> "Trainable":
        super().train(mode)
        if self.ema is not None:
            self.ema.eval()
        for part in self.frozen:  # or batch norms would go on counting, and drop path would drop
            part.eval()
            self.model.training = False
        return self

    def configure_optimizers(self) -> Any:
        batch = effective_batch(self.recipe, self.trainer.world_size, self.images)
        fused = self.trainer.precision != "16-mixed"  # the fp16 scaler must unscale before gradients are clipped
        optimizer = adamw(self.model, self.recipe.optimizer, batch, fused=fused)
        return [optimizer], [warmup_cosine(optimizer, self.steps, self.recipe.warmup)]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["portion"] = self.portion.limit  # how a batch is divided is part of what is computed

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.portion.limit = checkpoint["portion"]

    def on_train_start(self) -> None:
        self.alarm = Alarm(every=1 if self.device.type == "cpu" else 50)

    def on_train_epoch_start(self) -> None:
        self.validated = {}
        self.window = []

    def training_step(self, batch: Batch, batch_index: int) -> None:
        """Gather the batches of an optimiser step; do the step with the last one."""
        if len(batch[0]):  # empty: none of its pictures could be read
            self.window.append((batch_index, batch))
        last = batch_index + 1 == self.trainer.num_training_batches
        if not (last or (batch_index + 1) % self.recipe.accumulate == 0):
            return
        if self.window or self.trainer.world_size > 1:
            self._step()
        self.window = []
        if last:
            self._agree_on_buffers()
        self._look(self.trainer.global_step, now=last)

    def _step(self) -> None:
        for loss, logits, target in self._gradients():
            self.add("train", loss, logits, target)
        optimizer: Any = self.optimizers()
        optimizer.step()
        self.lr_schedulers().step()  # type: ignore[union-attr]
        if self.ema is not None:
            self.ema.update(self.model, step=self.trainer.global_step)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        weights, clip = [p for p in self.model.parameters() if p.grad is not None], self.recipe.optimizer.clip
        norm = nn.utils.clip_grad_norm_(weights, clip or float("inf"))
        if self.trainer.precision != "16-mixed":  # there the scaler leaves such steps out, which is no fault
            self.alarm.note(self.trainer.global_step + 1, "gradient", norm)
        self._look(self.trainer.global_step + 1)

    def _gradients(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The gradients of the window, in as many parts as memory asks for; (loss, outputs, targets) of each part."""
        while True:
            try:
                return self._passes()
            except RuntimeError as error:
                if not is_out_of_memory(error) or self.trainer.world_size > 1:
                    raise
            self.portion.halve(max(len(images) for _, (images, _, _) in self.window))
            self.portion.free()

    def _passes(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        for parameter in self.model.parameters():
            parameter.grad = None
        done: list[tuple[Tensor, Tensor, Tensor]] = []
        images_in_step = sum(len(images) for _, (images, _, _) in self.window)
        if not self.window:  # only here: the other processes wait for a gradient
            trained = [p.sum() for p in self.model.parameters() if p.requires_grad]
            self.manual_backward(torch.stack(trained).sum() * 0)
        for index, (images, target, _) in self.window:
            self.alarm.note(self.trainer.global_step + 1, "pictures", images)
            torch.manual_seed(derive_seed(self.seed, "batch", self.current_epoch, index, self.global_rank))
            mixed, soft = self.mix(images, target)
            parts = self.portion.parts(len(images))
            for part, truth in zip(mixed.tensor_split(parts), soft.tensor_split(parts), strict=True):
                logits = self.forward_pass[0](part)
                loss = self.task.loss(logits, truth, smoothing=self.recipe.label_smoothing, weight=self.weight)
                self.alarm.note(self.trainer.global_step + 1, "loss", loss)
                done.append((loss.detach(), logits.detach(), truth))
                with self._quiet(sum(len(rows) for _, rows, _ in done) < images_in_step):
                    self.manual_backward(loss * (len(part) / images_in_step))
        return done

    def _quiet(self, more: bool) -> Any:
        """Processes add up their gradients once a step, with its last part."""
        strategy: Any = self.trainer.strategy
        several = self.trainer.world_size > 1
        return strategy.block_backward_sync() if several and more else contextlib.nullcontext()

    def _look(self, step: int, *, now: bool = False) -> None:
        found = self.alarm.found(step, now=now)
        if found is None:
            return
        first, kind = found
        pairs = [pair for _, (images, _, indices) in self.window for pair in zip(images, indices, strict=True)]
        bad = [self.names[int(i)] for image, i in pairs if self.names and not bool(image.isfinite().all())]
        raise DivergenceError(
            f"training diverged in epoch {self.current_epoch + 1}, step {first}: values of the {kind} are not finite "
            f"numbers. {self._advice(kind, bad)}"
        )

    def _advice(self, kind: str, names: list[str]) -> str:
        fp16 = self.trainer.precision == "16-mixed"
        return advice(kind, lr=self.recipe.optimizer.lr, fp16=fp16, names=names)

    def _agree_on_buffers(self) -> None:
        """Running statistics as the mean over all processes, each of which saw other pictures."""
        if self.trainer.world_size > 1:
            for name, buffer in self.named_buffers():
                if buffer.is_floating_point() and name != "weight":
                    torch.distributed.all_reduce(buffer)
                    buffer /= self.trainer.world_size

    def validation_step(self, batch: Batch, batch_index: int) -> None:
        images, target, _ = batch
        for name, model in self.candidates().items():
            logits = self.val_portion.through(model, images)
            self.add(name, self.task.loss(logits, target), logits, target)

    def on_validation_epoch_end(self) -> None:
        self.validated = {name: self.take(name) for name in self.candidates()}
        finite = [(loss, value) for loss, value in self.validated.values() if math.isfinite(loss)]
        if not finite:
            raise DivergenceError(
                f"training diverged in epoch {self.current_epoch + 1}: its validation loss is not a finite number. "
                + self._advice("loss", [])
            )
        self.log(f"val_{self.task.metric}", max(value for _, value in finite))
        self.log("val_loss", min(loss for loss, _ in finite))

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
        """(mean loss, metric) of `name` since last asked, over all processes, of which some may have had nothing."""
        mine = self.sums.pop(name, torch.zeros(2, device=self.device))
        total = self.trainer.strategy.reduce(mine, reduce_op="sum")
        if not total[1]:
            return float("nan"), float("nan")
        value = float(self.meters[name].compute())
        self.meters[name].reset()
        return float(total[0] / total[1]), value


def freeze(model: nn.Module) -> list[nn.Module]:
    """Fix everything but the head of a model; returns the parts that are to stay in evaluation mode."""
    parts = dict(model.named_children())
    if not any(True for _ in parts.pop("head", nn.Identity()).parameters()):
        raise UsageError("freeze: this model has no head that could be trained alone")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    return list(parts.values())
