"""Looking at pictures before they are trained on: what is there, what is wrong, and what training does about it."""

from mixwise.screening.check import Check, check
from mixwise.screening.findings import Finding
from mixwise.screening.quick import Screened, class_range, screen, screened_before
from mixwise.screening.scan import write_verdicts
from mixwise.screening.verdict import Verdict, glance, look

__all__ = [
    "Check",
    "Finding",
    "Screened",
    "Verdict",
    "check",
    "class_range",
    "glance",
    "look",
    "screen",
    "screened_before",
    "write_verdicts",
]
