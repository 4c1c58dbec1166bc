"""What can go wrong, as a tree.

    OddlotError
    ├── UsageError        you asked for something impossible          exit code 2
    │   ├── UnknownName   ... by a name that does not exist
    │   ├── InvalidValue  ... with a value that cannot be
    │   └── UsageErrors   ... in several places at once
    ├── JobError          your job failed: its code, its numbers      exit code 3
    │   └── BadSamples    ... the numbers of these samples
    ├── CheckpointError   a saved run cannot be used                  exit code 2
    ├── ProtocolError     a strategy broke the protocol: a bug        exit code 1
    └── Refusal           one update's numbers are bad: caught inside

Each error has a `code`, which stays the same when its sentence changes, and `fields` with the values that it is about.
Bad luck (a machine vanishes, a link is slow) is never an exception: it is an event.
"""

from collections.abc import Iterable, Sequence
from copy import copy
from typing import Any, Self

from oddlot.core.spans import Span
from oddlot.core.suggestions import nearest, or_nearest

MAX_CHARACTERS = 60


class OddlotError(Exception):
    """Everything that oddlot raises on purpose."""

    exit_code = 1
    code = "error"
    """What is wrong, as one word for programs, such as `unknown_name`."""
    fields: dict[str, Any]
    """The values that the sentence is about; `reason` is what another library or the system said."""

    def __new__(cls, *args: Any, **_: Any) -> Self:
        """With fields, also where a subclass of a user's own does not call `__init__`."""
        error = super().__new__(cls, *args)
        error.fields = {}
        return error

    def __init__(self, sentence: str, code: str = "", **fields: Any) -> None:
        super().__init__(sentence)
        self.code, self.fields = code or self.code, fields

    def __reduce__(self) -> Any:  # a subclass's arguments need not be its sentence
        return _restored, (type(self), self.args, vars(self))

    def retold(self, sentence: str, **fields: Any) -> Self:
        """A copy with another sentence and more fields."""
        other = copy(self)
        other.args, other.fields = (sentence,), {**self.fields, **fields}
        return other


def _restored(kind: type[OddlotError], args: tuple[Any, ...], state: dict[str, Any]) -> OddlotError:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class UsageError(OddlotError):
    """Something was asked for that cannot be done; the message says what would help.

    `key` is the setting that it is about, by which its line in a file is found.
    """

    exit_code = 2
    code = "usage"

    def __init__(self, sentence: str, code: str = "", key: str = "", **fields: Any) -> None:
        super().__init__(sentence, code, **fields)
        self.key = key

    def inside(self, name: str) -> Self:
        """A copy whose key is one of the setting `name`."""
        other = copy(self)
        other.key = f"{name}.{self.key}"
        return other


class UnknownName(UsageError):
    """There is no `kind` of this name. Fields: kind, given, nearest (None where none is like it)."""

    code = "unknown_name"

    def __init__(self, kind: str, given: str, choices: Iterable[str], key: str = "") -> None:
        choices = sorted(choices)
        super().__init__(f"unknown {kind} `{given}`: {or_nearest(given, choices)}", key=key)
        self.fields = {"kind": kind, "given": given, "nearest": nearest(given, choices)}


class InvalidValue(UsageError):
    """The setting `name` cannot have the value `given`. Fields: name, given, must."""

    code = "invalid_value"

    def __init__(self, name: str, given: Any, must: str) -> None:
        super().__init__(f"{name} = {short(given)} must be {must}", key=name)
        self.fields = {"name": name, "given": given, "must": must}


class UsageErrors(UsageError):
    """Several things that cannot be done, a line each; `errors` has them."""

    code = "several_errors"

    def __init__(self, errors: Sequence[UsageError]) -> None:
        super().__init__("\n".join(map(str, errors)))
        self.errors = tuple(errors)


def joined(errors: Sequence[UsageError]) -> UsageError:
    """Return one error that stands for all of these, without repetitions."""
    told = list({str(error): error for error in errors}.values())
    return told[0] if len(told) == 1 else UsageErrors(told)


class JobError(OddlotError):
    """The user's own code or numbers failed: the run has stopped."""

    exit_code = 3
    code = "job"


class BadSamples(JobError):
    """Updates of the same samples were refused again and again; `spans` are their places in the seeded order.

    Field `others`: how many other samples have been refused and not merged since, as when the training diverges.
    """

    code = "bad_samples"

    def __init__(self, spans: tuple[Span, ...], why: str, others: int = 0) -> None:
        places = ", ".join(f"{start} to {stop - 1} of epoch {epoch}" for epoch, start, stop in spans)
        super().__init__(
            f"samples {places} (positions in the shuffled order) {why}", spans=spans, others=others
        )
        self.spans, self.why = spans, why


class CheckpointError(OddlotError):
    """A checkpoint is damaged or belongs to another job."""

    exit_code = 2
    code = "checkpoint"


class ProtocolError(OddlotError):
    """A strategy asked for something that the books forbid; the message carries the story."""

    code = "protocol"


class Refusal(OddlotError):
    """An update's numbers are bad; the message names the tensor. Its work is done again: bad luck, not an end."""

    code = "refusal"


class OddlotWarning(UserWarning):
    """Something that goes on, though hardly as it was meant. Has a code and fields, as errors have."""

    def __init__(self, sentence: str, code: str, **fields: Any) -> None:
        super().__init__(sentence)
        self.code, self.fields = code, fields


def short(value: object) -> str:
    """The value as Python writes it, or the beginning of that."""
    text = repr(value)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "..."
