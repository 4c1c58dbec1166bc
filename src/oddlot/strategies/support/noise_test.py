"""A test for noise that outweighs progress, by the signs of inner products of consecutive gradients."""

from dataclasses import dataclass

WINDOW, THRESHOLD = 20, 5
"""Default number of rounds of a window, and default threshold of negative inner products."""


@dataclass
class Pflug:
    """The number of negative minus positive inner products, and the number of rounds.

    While a model makes progress, consecutive directions mostly agree. If they are noise, half of them are opposed.
    Statistic: Pflug (1990). Rule for single rounds: Kas Hanna et al. (ICASSP 2020), algorithm 1.

    For single gradients, noise along the steepest directions hides progress along all others. Sums over a window of
    rounds weigh all directions alike (Sordello et al., "Robust learning rate selection for stochastic optimization via
    splitting diagnostic", 2019). With windows, the count is never below 0, so early progress does not outweigh recent
    noise (Page, "Continuous inspection schemes", Biometrika 1954). The test therefore also ends by chance: with the
    defaults, after 42 windows on average if half of the products are positive, 126 if 60 % are, and 690 if 70 % are.
    """

    negative: int = 0
    """Number of negative minus positive inner products."""
    rounds: int = 0
    """Rounds since the last reset."""
    agreeing: int = 0
    """Number of latest consecutive inner products that are not negative."""

    def count(self, inner: float, window: int, threshold: int, burn_in: int) -> bool:
        """Count one more window. Return whether noise outweighs progress, and reset the counts if so."""
        self.negative += 1 if inner < 0 else -1
        self.agreeing = 0 if inner < 0 else self.agreeing + 1
        if window > 1:
            self.negative = max(0, self.negative)
        self.rounds += window
        won = self.negative > threshold and self.rounds > burn_in
        if won:
            self.negative = self.rounds = 0
        return won
