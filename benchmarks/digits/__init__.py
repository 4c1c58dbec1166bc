"""Digits by map, combine and reduce."""
