"""The error of a run that waits for machines that never come."""

from collections.abc import Sequence

from oddlot.core.errors import JobError


def stalled(seconds: float, machines: int, traces: Sequence[str] = ()) -> JobError:
    """Return the error. `traces` are the zones whose trace has ended, or `chaos` for that of a chaos file."""
    told = f"the run stalled at {seconds:.1f} s: {machines} machines are left and no other is due. "
    if traces:
        told += (
            f"The capacity trace of {', '.join(traces)} brings no more machines: set repeat_hours to repeat it, "
            "begin_hours to begin at another time, or add machines"
        )
    else:
        told += "Set seconds_to_return, or add machines"
    return JobError(told, "stalled", seconds=seconds, machines=machines, traces=[*traces])
