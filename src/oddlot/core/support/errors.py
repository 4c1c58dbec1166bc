"""Classes of errors and warnings.

    OddlotError
    ├── UsageError        invalid input                               exit code 2
    │   ├── UnknownName   ... an unknown name
    │   ├── InvalidValue  ... a value out of range or of another type
    │   └── UsageErrors   ... several errors together
    ├── JobError          the job failed: its code or its numbers     exit code 3
    │   ├── BadSamples    ... updates of these samples are not finite
    │   └── ClusterLost   ... the cluster's head ended                exit code 4
    ├── CheckpointError   a saved run cannot be used                  exit code 2
    ├── ProtocolError     a bug in a strategy                         exit code 1
    └── Refusal           an update is invalid: caught internally

Each error has a stable `code`, and `fields` with the values in its message. Failures of machines and connections are
events, not exceptions.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Self

from oddlot.core.sample_spans import Span
from oddlot.core.support.text import nearest, or_nearest

MAX_CHARACTERS = 60


class OddlotError(Exception):
    """Base class of all errors that oddlot raises."""

    exit_code = 1
    code = "error"
    """Stable identifier of the error, such as `unknown_name`."""
    fields: dict[str, Any]
    """Values in the message. `reason` is the message of another library or of the system."""

    def __new__(cls, *args: Any, **_: Any) -> Self:
        """Create the error with empty fields, for subclasses that do not call `__init__`."""
        error = super().__new__(cls, *args)
        error.fields = {}
        return error

    def __init__(self, sentence: str, code: str = "", **fields: Any) -> None:
        super().__init__(sentence)
        self.code, self.fields = code or self.code, fields

    def __reduce__(self) -> Any:  # the arguments of a subclass may differ from its message
        return _restored, (type(self), self.args, vars(self))

    def with_message(self, sentence: str, **fields: Any) -> Self:
        """Return a copy with another message and more fields."""
        other = copy(self)
        other.args, other.fields = (sentence,), {**self.fields, **fields}
        return other


def _restored(kind: type[OddlotError], args: tuple[Any, ...], state: dict[str, Any]) -> OddlotError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class UsageError(OddlotError):
    """Invalid input. The message explains how to fix it.

    `key` is the invalid setting. It is used to find the line in a file.
    """

    exit_code = 2
    code = "usage"

    def __init__(self, sentence: str, code: str = "", key: str = "", **fields: Any) -> None:
        super().__init__(sentence, code, **fields)
        self.key = key

    def inside(self, name: str) -> Self:
        """Return a copy with its key inside the setting `name`."""
        other = copy(self)
        other.key = f"{name}.{self.key}"
        return other


class UnknownName(UsageError):
    """An unknown name. Fields: kind, given, nearest (the most similar name, or None)."""

    code = "unknown_name"

    def __init__(self, kind: str, given: str, choices: Iterable[str], key: str = "") -> None:
        choices = sorted(choices)
        super().__init__(f"unknown {kind} {given!r}. {or_nearest(given, choices)}", key=key)
        self.fields = {"kind": kind, "given": given, "nearest": nearest(given, choices)}


class InvalidValue(UsageError):
    """The value `given` of the setting `name` is invalid. Fields: name, given, must.

    `of` is the class that has the setting.
    """

    code = "invalid_value"

    def __init__(self, name: str, given: Any, must: str, of: str = "") -> None:
        value = given.__name__ if isinstance(given, type) else short(given)
        message = f"{of}({name}={value}): {name} must be {must}" if of else f"{name} = {value} must be {must}"
        super().__init__(message, key=name)
        self.fields = {"name": name, "given": given, "must": must}


class UsageErrors(UsageError):
    """Several errors. The message has one per line, and `errors` contains them."""

    code = "several_errors"

    def __init__(self, errors: Sequence[UsageError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)


def joined(errors: Sequence[UsageError]) -> UsageError:
    """Return one error that contains all of these, without duplicates."""
    distinct = list({str(error): error for error in errors}.values())
    return distinct[0] if len(distinct) == 1 else UsageErrors(distinct)


class JobError(OddlotError):
    """The job failed: its code raised, or its numbers are not finite. The run has stopped."""

    exit_code = 3
    code = "job"


class BadSamples(JobError):
    """Updates of the same samples were rejected repeatedly. `spans` are their positions in the shuffled order.

    Field `others`: number of other samples that were rejected and not merged since, for example if training diverges.
    Field `all_invalid`: whether every update of the run was rejected, for example if each loss is NaN.
    Field `task`: the last task with these samples that ended or hung its process, if that is the reason.
    """

    code = "bad_samples"

    def __init__(
        self, spans: tuple[Span, ...], why: str, others: int = 0, *, all_invalid: bool = False, task: str = ""
    ) -> None:
        places = ", ".join(f"{start}-{stop - 1} of epoch {epoch}" for epoch, start, stop in spans)
        super().__init__(
            f"samples {places} (positions in the shuffled order) {why}",
            spans=spans,
            others=others,
            all_invalid=all_invalid,
            **({"task": task} if task else {}),
        )
        self.spans, self.why = spans, why


class ClusterLost(JobError):
    """The head of the cluster, or the connection to it, was lost. The run is saved and can be resumed."""

    exit_code = 4
    code = "cluster_lost"


class CheckpointError(OddlotError):
    """A saved run cannot be used: it is damaged, missing or of another job."""

    exit_code = 2
    code = "checkpoint"


class ProtocolError(OddlotError):
    """A strategy returned an invalid command. The message contains the latest events."""

    code = "protocol"


class Rejection(OddlotError):
    """An update is invalid, and its samples are computed again. The message names the tensor."""

    code = "rejection"


class OddlotWarning(UserWarning):
    """A warning with a code and fields, like an error."""

    def __init__(self, sentence: str, code: str, **fields: Any) -> None:
        super().__init__(sentence)
        self.code, self.fields = code, fields


def short(value: object) -> str:
    """Return the `repr` of a value, cut to `MAX_CHARACTERS`."""
    text = repr(value)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "..."
