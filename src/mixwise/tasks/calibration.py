"""Whether probabilities mean what they say, and the one number that makes them do so."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

BINS = 15
FEW = 50
"""Fewer validation pictures than this choose no temperature and no threshold."""


@dataclass(frozen=True)
class Bin:
    """Answers of about the same probability."""

    count: int
    probability: float
    """Their mean probability."""
    share: float
    """How many of them are right, as a share of 1."""


def bins(probabilities: Tensor, right: Tensor) -> tuple[Bin, ...]:
    """Answers (n,) by their probability, in 15 equal steps; steps without any are left out.

    >>> import torch
    >>> bins(torch.tensor([0.99, 0.97]), torch.tensor([True, False]))[0].share
    0.5
    """
    values, hits = probabilities.double().numpy(), right.double().numpy()
    counts, sums, shares = (
        np.histogram(values, BINS, (0, 1), weights=weights)[0] for weights in (np.ones_like(values), values, hits)
    )
    return tuple(
        Bin(int(count), float(total / count), float(hit / count))
        for count, total, hit in zip(counts, sums, shares, strict=True)
        if count
    )


def calibration_error(reliability: tuple[Bin, ...]) -> float:
    """Expected calibration error: the mean gap between probability and share of right answers.

    Source: Guo et al., "On Calibration of Modern Neural Networks", arXiv 1706.04599, equation 3.
    """
    total = sum(each.count for each in reliability)
    return sum(each.count * abs(each.probability - each.share) for each in reliability) / total
