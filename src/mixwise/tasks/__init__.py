"""What is asked of a backbone: loss, metrics and how an answer is written, one file a task."""

from mixwise.errors import unknown
from mixwise.tasks.base import Mistake, Scores, Table, Task
from mixwise.tasks.calibration import calibration_error
from mixwise.tasks.classify import Classify
from mixwise.tasks.decide import decide
from mixwise.tasks.multilabel import MultiLabel

__all__ = [
    "TASKS",
    "Classify",
    "Mistake",
    "MultiLabel",
    "Scores",
    "Table",
    "Task",
    "calibration_error",
    "decide",
    "task",
]

TASKS: dict[str, Task] = {each.name: each for each in (Classify(), MultiLabel())}
"""By name: what can be trained, evaluated and predicted with."""


def task(name: str) -> Task:
    """The task of this name. Raises `UsageError` with the nearest one.

    >>> task("multilabel").metric
    'mAP'
    """
    if name not in TASKS:
        raise unknown("task", name, TASKS)
    return TASKS[name]
