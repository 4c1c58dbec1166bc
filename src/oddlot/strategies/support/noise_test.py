"""Whether noise outweighs progress: the signs of inner products of directions that follow each other."""

from dataclasses import dataclass

WINDOW, THRESHOLD = 20, 5
"""defaults of those who count: rounds, and negative inner products"""


@dataclass
class Pflug:
    """Counts negative inner products less positive ones, and for how many rounds.

    As long as steps go somewhere two directions that follow each other mostly agree; where they are noise they are as
    often opposed. Statistic: Pflug (1990); rule for single rounds: Kas Hanna et al. (ICASSP 2020), algorithm 1.

    Single gradients tell little of it: the noise along the steepest directions is the largest, and hides progress
    along all others. Sums over a window of rounds, with plain SGD how far the model has come in it, weigh all
    directions alike (Sordello et al., "Robust learning rate selection for stochastic optimization via splitting
    diagnostic", 2019, compare such sums). Of windows the count is never below 0, so that progress of long ago does not
    outweigh what happens now (Page, "Continuous inspection schemes", Biometrika 1954). So it also wins by chance in the
    end: by default after 42 windows on average where signs are those of a coin, 126 where 6 of 10 products are
    positive, 690 where 7 are.
    """

    negative: int = 0
    rounds: int = 0

    def count(self, inner: float, window: int, threshold: int, burn_in: int) -> bool:
        """One more window of rounds; whether noise has won: if so, it begins anew."""
        self.negative += 1 if inner < 0 else -1
        if window > 1:
            self.negative = max(0, self.negative)
        self.rounds += window
        won = self.negative > threshold and self.rounds > burn_in
        if won:
            self.negative = self.rounds = 0
        return won
