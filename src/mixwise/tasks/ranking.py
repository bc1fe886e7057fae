"""Labels ranked by probability: average precision, and the threshold with the best F1."""

import numpy as np


class Ranking:
    """Average precision of every label, quickly, for many samples of the same pictures.

    AP = sum over the pictures with the label of w · precision at their place in the ranking / sum of w.

    Args:
        probabilities: (n, labels).
        truth: (n, labels) of bool.
    """

    def __init__(self, probabilities: np.ndarray, truth: np.ndarray) -> None:
        # A row for each label: sums along rows are several times faster than down columns.
        p, yes = np.ascontiguousarray(probabilities.T), np.ascontiguousarray(truth.T)
        self.order = np.argsort(-p, axis=1, kind="stable")
        ranked = np.take_along_axis(p, self.order, axis=1)
        self.truth = np.take_along_axis(yes, self.order, axis=1).astype(bool)
        # Equal probabilities share the place of the last of them, since no threshold tells them apart.
        last = np.ones_like(self.truth)
        last[:, :-1] = ranked[:, :-1] != ranked[:, 1:]
        place = np.where(last, np.arange(ranked.shape[1]), ranked.shape[1])
        self.place = np.minimum.accumulate(place[:, ::-1], axis=1)[:, ::-1].copy()

    def __call__(self, counts: np.ndarray) -> np.ndarray:
        """(labels,) of a sample in which picture i occurs counts[i] times; NaN for labels that do not occur."""
        weights = counts.astype(np.float32)[self.order]
        positive = weights * self.truth
        precision = positive.cumsum(axis=1) / np.maximum(weights.cumsum(axis=1), 1)
        with np.errstate(invalid="ignore"):
            return (positive * np.take_along_axis(precision, self.place, axis=1)).sum(axis=1) / positive.sum(axis=1)


def best_threshold(probabilities: np.ndarray, truth: np.ndarray) -> float:
    """The threshold of best F1 for one label (n,): half way between the last yes and the first no.

    >>> best_threshold(np.array([0.9, 0.6, 0.2, 0.1]), np.array([True, True, False, False]))
    0.4
    """
    order = np.argsort(-probabilities, kind="stable")
    ranked = np.append(probabilities[order].astype(float), 0.0)
    yes = np.arange(1, len(ranked))
    f1 = 2 * truth[order].cumsum() / (yes + truth.sum())
    last = int(np.where(ranked[:-1] > ranked[1:], f1, -1).argmax())
    return float(ranked[last] + ranked[last + 1]) / 2
