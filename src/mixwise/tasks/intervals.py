"""How far a score could have come out otherwise with other pictures of the same kind."""

from collections.abc import Callable

import numpy as np

SAMPLES = 1000
Z = 1.959964
"""Standard deviations of the normal distribution that hold 95 %."""


def share_interval(hits: np.ndarray) -> tuple[float, float]:
    """95 % interval of a share of right answers, 1 or 0 a picture (images,): `bootstrap`, or where it has no width.

    With all answers right, or all wrong, every sample is the same; the interval is then Wilson's score interval.

    Source: Wilson, "Probable Inference, the Law of Succession, and Statistical Inference", JASA 22 (1927).

    >>> [(round(low, 3), high) for low, high in (share_interval(np.ones(300)), share_interval(np.ones(4)))]
    [(0.987, 1.0), (0.51, 1.0)]
    """
    images, share = len(hits), float(hits.mean())
    if 0 < share < 1:
        return bootstrap(images, lambda counts: float(counts @ hits) / images)
    width = Z**2 / (images + Z**2)
    return (1 - width, 1.0) if share else (0.0, width)


def bootstrap(images: int, score: Callable[[np.ndarray], float], *, seed: int = 0) -> tuple[float, float]:
    """95 % percentile interval of a score over 1,000 samples with replacement; the same seed gives the same interval.

    Source: Efron and Tibshirani, "An Introduction to the Bootstrap", section 13.3.

    Args:
        images: how many pictures were scored.
        score: of a sample, given as how often each picture is in it (images,).

    >>> right = np.array([1, 1, 1, 1, 1, 1, 1, 1, 0, 0])
    >>> low, high = bootstrap(10, lambda counts: counts @ right / 10)
    >>> 0.4 < low < 0.8 < high <= 1
    True
    """
    generator = np.random.default_rng(seed)
    values = [score(np.bincount(generator.integers(images, size=images), minlength=images)) for _ in range(SAMPLES)]
    known = [value for value in values if value == value]
    if not known:
        return float("nan"), float("nan")
    low, high = np.percentile(known, [2.5, 97.5])
    return float(low), float(high)
