"""Whether noise outweighs progress: the signs of inner products of directions that follow each other."""

from dataclasses import dataclass


@dataclass
class Pflug:
    """Counts negative inner products less positive ones, and how many there have been.

    As long as steps go somewhere two directions that follow each other mostly agree; where they are noise they are as
    often opposed. Statistic: Pflug (1990); rule: Kas Hanna et al. (ICASSP 2020), algorithm 1.
    """

    negative: int = 0
    rounds: int = 0

    def count(self, inner: float, threshold: int, burn_in: int) -> bool:
        """One more; whether noise has won: if so, it begins anew."""
        self.negative += 1 if inner < 0 else -1
        self.rounds += 1
        won = self.negative > threshold and self.rounds > burn_in
        if won:
            self.negative = self.rounds = 0
        return won
