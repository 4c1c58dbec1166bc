"""Policies by their names, and users' own by their import path."""

from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.core.support.user_code import imported_class, is_import_path, trace_of
from oddlot.queue.core.policy import Policy

POLICIES = {
    "fifo": "oddlot.queue.core.policies.fifo:Fifo",
    "fifo_backfill": "oddlot.queue.core.policies.fifo:FifoBackfill",
    "sjf": "oddlot.queue.core.policies.shortest_job:ShortestJob",
    "srtf": "oddlot.queue.core.policies.shortest_job:ShortestRemainingTime",
    "qssf": "oddlot.queue.core.policies.shortest_service:ShortestService",
    "qssf_backfill": "oddlot.queue.core.policies.shortest_service:ShortestServiceBackfill",
    "las": "oddlot.queue.core.policies.least_attained_service:LeastAttainedService",
    "fair_share": "oddlot.queue.core.policies.fair_share:FairShare",
}
"""Policies by name."""


def policy_of(name: str) -> Policy:
    """Return a new policy of this name, or of the class at an import path such as `mypkg.mymodule:MyPolicy`.

    Raise UsageError if the name is unknown, its module cannot be imported, or the class needs arguments.
    """
    if name not in POLICIES and not is_import_path(name):
        unknown = UnknownName("policy", name, POLICIES, key="policy")
        raise unknown.with_message(f"{unknown}; or name your own class as package.module:Class")
    made_by: type[Policy] = imported_class(POLICIES.get(name, name), Policy, "policy", key="policy")
    try:
        return made_by()
    except Exception as error:  # noqa: BLE001 - a user's class may raise anything
        reason = trace_of(error)
        message = f"the class {name} cannot be created without arguments:\n{reason}"
        raise UsageError(message, "policy_needs_arguments", "policy", given=name, reason=reason) from None
