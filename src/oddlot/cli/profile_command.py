"""`oddlot profile WORKLOAD`: measure a job on this machine."""

import json
import sys
from contextlib import nullcontext, redirect_stdout
from dataclasses import asdict
from typing import TYPE_CHECKING

from oddlot.core.support.text import in_bytes

if TYPE_CHECKING:
    from oddlot.planner.profile import Profile


def profile_workload(workload: str, out: str | None, *, as_json: bool, quiet: bool) -> None:
    """Measure the workload, print the profile, and write it to the file `out`, if given."""
    from oddlot.config.profile_file import write_profile
    from oddlot.planner.profile import profile
    from oddlot.workloads.registry import check_workload, load_workload

    check_workload(workload)
    with redirect_stdout(sys.stderr) if as_json else nullcontext():  # the job's code may print
        found = profile(load_workload(workload), lambda text: None if quiet else print(text, file=sys.stderr))
    if out is not None:
        write_profile(found, out)
    if as_json:
        print(json.dumps(asdict(found) | {"batching_speedup": found.batching_speedup}))
    else:
        show(found)


def show(found: "Profile") -> None:
    """Print a profile as tables."""
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("batch", "ms per sample", "samples per second", title=f"{found.job} on {found.machine}")
    for each in found.batches:
        mark = "  (knee)" if each.batch == found.knee else ""
        seconds = each.seconds_per_sample
        table.add_row(f"{each.batch:,}{mark}", f"{1e3 * seconds:.3g}", f"{1 / seconds:,.0f}")
    console.print(table)
    if found.is_limited_by_memory:
        console.print("  larger batches were not tried: they may not fit into memory")
    threads = ", ".join(f"{count}: {1e3 * each:.3g}" for count, each in found.seconds_by_threads.items())
    codecs = ", ".join(f"{name} {in_bytes(size)}" for name, size in found.bytes_up.items())
    for name, text in {
        "threads": f"{found.threads} (ms per sample with {threads})",
        "model": f"{found.parameters:,} parameters, {in_bytes(found.bytes_down)} to a worker",
        "update": codecs,
        "merge": f"{1e3 * found.merge_seconds:.3g} ms per update",
        "batching": f"{found.batching_speedup:.1f}x the speed of one sample at a time",
    }.items():
        console.print(f"  {name:<9}{text}", soft_wrap=True)
