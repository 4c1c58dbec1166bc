"""SLIDE's own samplers: hash tables with the settings of the paper (Chen et al., MLSys 2020) for its datasets."""

from oddlot.sparse import LSH, Refresh

SIMHASH, DWTA = "SimHash, K = 9, L = 50", "DWTA, K = 8, L = 50"
SETTING = {"30k": SIMHASH, "200k": SIMHASH, "670k": DWTA}
"""The paper's setting for its dataset of about this size: 205,443 outputs (Delicious-200K), 670,091 (Amazon-670K)."""
FOUND = {"30k": 1_000, "200k": 1_000, "670k": 3_000}
"""Active rows per example, as the paper reports them for these datasets."""
FILLED = 1_000
"""Random rows per example, as in the published code, because tables with K = 8 find only a few rows."""


def hashed(setting: str, shape: str) -> LSH:
    """Return SLIDE's sampler. As in the paper, tables are rebuilt after 50 steps, and then less often.

    SimHash finds enough rows, and, as in the paper, adds no random rows.
    """
    refresh, found = Refresh(50, 0.2), FOUND[shape]
    if setting == SIMHASH:
        return LSH("simhash", 9, 50, found, by_chance=0, frequency=0.0, refresh=refresh)
    return LSH("dwta", 8, 50, found, by_chance=FILLED, frequency=0.0, refresh=refresh)
