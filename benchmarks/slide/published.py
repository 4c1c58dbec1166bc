"""SLIDE's own samplers: hash tables with the settings of the paper (Chen et al., MLSys 2020) for its sets."""

from oddlot.sparse import LSH, Refresh

SIMHASH, DWTA = "SimHash, K = 9, L = 50", "DWTA, K = 8, L = 50"
SETTING = {"30k": SIMHASH, "200k": SIMHASH, "670k": DWTA}
"""the paper's, for its set of about as many outputs: 205,443 (Delicious-200K) and 670,091 (Amazon-670K)"""
FOUND = {"30k": 1_000, "200k": 1_000, "670k": 3_000}
"""the active rows of an example there, about"""
FILLED = 1_000
"""With K = 8 the tables find few rows. The published code then adds rows by chance, up to so many."""


def hashed(setting: str, shape: str) -> LSH:
    """SLIDE's tables, made anew as in the paper: after 50 steps, and then more and more seldom. Of SimHash's rows there
    are enough, so none is drawn by chance."""
    refresh, found = Refresh(50, 0.2), FOUND[shape]
    if setting == SIMHASH:
        return LSH("simhash", 9, 50, found, by_chance=0, frequency=0.0, refresh=refresh)
    return LSH("dwta", 8, 50, found, by_chance=FILLED, frequency=0.0, refresh=refresh)
