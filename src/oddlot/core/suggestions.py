"""Which of the words that exist was probably meant."""

from collections.abc import Iterable
from difflib import get_close_matches


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice most like `word`, whatever its case; None when none is like it at all."""
    folded = {choice.casefold(): choice for choice in choices}
    close = get_close_matches(word.casefold(), folded, n=1, cutoff=0.5)
    return folded[close[0]] if close else None


def or_nearest(word: str, choices: Iterable[str]) -> str:
    """The end of a sentence about a word that does not exist: the one that was probably meant, then all."""
    choices = sorted(choices)
    meant = nearest(word, choices)
    names = ", ".join(choices) or "none"
    return f"did you mean `{meant}`? There are: {names}" if meant else f"there are: {names}"
