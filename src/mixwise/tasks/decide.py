"""Temperature and thresholds, chosen once on the validation pictures."""

from collections.abc import Sequence

import numpy as np
from scipy.optimize import minimize_scalar
from torch import Tensor

from mixwise.config import Decision
from mixwise.tasks.base import Task
from mixwise.tasks.calibration import FEW, calibration_error


def decide(task: Task, logits: Tensor, target: Tensor, names: Sequence[str]) -> tuple[Decision, list[str]]:
    """How the answers of a model are to be read, from its outputs (n, classes) on pictures it was not trained on.

    Returns: the decision, and sentences for people about what was chosen, or why nothing was.
    """
    if len(target) < FEW:
        said = f"{len(target)} validation pictures are too few to calibrate on (at least {FEW}): nothing was chosen"
        return Decision(), [said]
    if len(names) < 2 and task.withheld:
        return Decision(), ["there is one class: nothing can be calibrated"]
    temperature = fit_temperature(task, logits, target)
    before, after = (
        calibration_error(task.reliability(task.probabilities(outputs), target))
        for outputs in (logits, logits / temperature)
    )
    said = f"temperature {temperature:.3g}: calibration error {before:.1%} before, {after:.1%} after"
    if temperature == 1 or after > before:
        # One number cannot mend everything: of a rare label it draws the probability towards one half.
        temperature = 1.0
        said = f"no temperature makes both the loss and the calibration error ({before:.1%}) smaller"
    decision, notes = task.cutoffs(task.probabilities(logits / temperature), target, names)
    return decision.model_copy(update={"temperature": temperature}), [said, *notes]


def fit_temperature(task: Task, logits: Tensor, target: Tensor) -> float:
    """The temperature with the least loss of logits / temperature; 1 where none makes the loss smaller.

    Source: Guo et al., "On Calibration of Modern Neural Networks", arXiv 1706.04599, section 4.2. Differs: labels are
    smoothed by 1 / (n + 1), as if one more picture of unknown label had been seen. Without it a model that answers all
    n pictures rightly would get the temperature 0, and be certain of everything.
    """
    smoothing = 1 / (len(target) + 1)

    def smoothed(log: float) -> float:
        return float(task.loss(logits / np.exp(log), target, smoothing=smoothing))

    found = float(np.exp(minimize_scalar(smoothed, bounds=(np.log(0.01), np.log(100)), method="bounded").x))
    found = round(found, 4)
    return found if task.loss(logits / found, target) < task.loss(logits, target) else 1.0
