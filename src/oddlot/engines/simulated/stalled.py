"""The error of a run without machines that could return."""

from collections.abc import Sequence

from oddlot.core.errors import JobError


def stalled(seconds: float, machines: int, traces: Sequence[str] = ()) -> JobError:
    """Return the error. `traces` are the zones whose trace has ended, or `chaos` for that of a chaos file."""
    told = f"the simulation stalled at t = {seconds:.1f} s: {machines} machines are left and none is due to return. "
    if traces:
        told += (
            f"The capacity trace of {', '.join(traces)} has ended: set repeat_hours to repeat it, "
            "begin_hours to start elsewhere in it, or add machines"
        )
    else:
        told += "Set seconds_to_return or add machines"
    return JobError(told, "stalled", seconds=seconds, machines=machines, traces=[*traces])
