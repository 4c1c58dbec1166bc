"""Figures of a log of jobs, as in the study of Helios."""
