"""The version of oddlot."""

__version__ = "0.1.0"
