"""The settings that belong to a benchmark task, kept beside its model."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """An LTL goal with the protocol under which it is learnt.

    ``ltl.learn`` takes every setting that the caller leaves out from the model's task.
    """

    name: str
    formula: str
    """The goal, in Spot syntax."""
    counter: int = 10
    """K: largest value of the acceptance counter."""
    episode_length: int = 100
    """Steps after which an episode is cut."""
    episodes: int = 10_000
    """Episodes in the published budget."""
    patience: int | None = 300
    """Steps without acceptance after which an episode is cut; None for never."""
    zeta: float = 0.99
    """Probability that an accepting transition pays nothing, for method ``hahn``."""

    @property
    def steps(self) -> int:
        """The published budget in steps."""
        return self.episodes * self.episode_length
