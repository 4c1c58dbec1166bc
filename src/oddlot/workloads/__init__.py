"""Workloads: ready-made jobs on real data, and users' own, by name."""

from oddlot.workloads.registry import WORKLOADS, load_workload

__all__ = ["WORKLOADS", "load_workload"]
