"""How probabilities become answers."""

from pydantic import Field

from mixwise.config.base import Config


class Decision(Config):
    """What is chosen on the validation pictures after training; it travels with the weights.

    The defaults are those of a file in which nothing was chosen.
    """

    temperature: float = Field(default=1.0, gt=0)
    """Outputs are divided by it before they become probabilities."""
    thresholds: tuple[float, ...] = ()
    """With several labels a picture: the least probability of each label that counts as a yes; empty: 0.5 for all."""
    reject: float | None = Field(default=None, ge=0, le=1)
    """With one label a picture: answers below this probability are withheld where that is asked for; None: unknown."""
