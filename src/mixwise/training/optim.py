"""Parameter groups and the learning-rate curve."""

import math

from timm.optim import param_groups_weight_decay
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from mixwise.config import Optimizer, Recipe


def effective_batch(recipe: Recipe, devices: int, images: int) -> int:
    """Pictures of an optimiser step, over all devices: never more than the `images` of an epoch."""
    return min(recipe.batch_size * recipe.accumulate * devices, images)


def scaled_lr(config: Optimizer, batch: int) -> float:
    """The peak learning rate for an effective batch: linear in the batch."""
    return config.lr * batch / config.lr_batch


def adamw(model: nn.Module, config: Optimizer, batch: int, *, fused: bool = True) -> AdamW:
    """AdamW whose weight decay spares norms, biases, class tokens and, unless `decay_positions`, positions."""
    kept = ("prefix_tokens",) if config.decay_positions else ("position.weight", "prefix_tokens")
    spared = [n for n, _ in model.named_parameters() if n.endswith(kept)]
    groups = param_groups_weight_decay(model, config.weight_decay, no_weight_decay_list=spared)
    return AdamW(groups, lr=scaled_lr(config, batch), betas=config.betas, fused=fused)


def warmup_cosine(optimizer: AdamW, steps: int, warmup: float) -> LambdaLR:
    """Rises linearly over the first `warmup` share of the steps, then falls as a cosine to zero."""
    rising = round(steps * warmup)

    def factor(step: int) -> float:
        if step < rising:
            return (step + 1) / (rising + 1)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - rising) / max(1, steps - rising))))

    return LambdaLR(optimizer, factor)
