"""The compiled loops of sampled layers: functions of plain arrays, which know of no module and no sampler.

Each does the part `part` of `parts` of its work, so that a crew of threads calls it once a thread; between two of
them all wait for each other.
"""
