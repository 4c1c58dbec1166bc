"""Ready-made jobs on real data, and those of the user, by name."""

from oddlot.workloads.registry import WORKLOADS, load_workload

__all__ = ["WORKLOADS", "load_workload"]
