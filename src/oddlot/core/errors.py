"""What can go wrong, as a tree.

    OddlotError
    ├── UsageError        you asked for something impossible          exit code 2
    ├── JobError          your job failed: its code, its numbers      exit code 3
    │   └── BadSamples    ... the numbers of these samples
    ├── CheckpointError   a saved run cannot be used                  exit code 2
    ├── ProtocolError     a strategy broke the protocol: a bug        exit code 1
    └── Refusal           one update's numbers are bad: caught inside

Bad luck (a machine vanishes, a link is slow) is never an exception: it is an event.
"""

from oddlot.core.spans import Span


class OddlotError(Exception):
    """Everything that oddlot raises on purpose."""

    exit_code = 1


class UsageError(OddlotError):
    """Something was asked for that cannot be done; the message says what would help.

    `key` is the setting that it is about, by which its line in a file is found.
    """

    exit_code = 2

    def __init__(self, sentence: str, key: str = "") -> None:
        super().__init__(sentence)
        self.key = key


class JobError(OddlotError):
    """The user's own code or numbers failed: the run has stopped."""

    exit_code = 3


class BadSamples(JobError):
    """Updates of the same samples were refused again and again; `spans` are their places in the seeded order."""

    def __init__(self, spans: tuple[Span, ...], why: str) -> None:
        places = ", ".join(f"{start} to {stop - 1} of epoch {epoch}" for epoch, start, stop in spans)
        super().__init__(f"samples {places} (positions in the shuffled order) {why}")
        self.spans, self.why = spans, why


class CheckpointError(OddlotError):
    """A checkpoint is damaged or belongs to another job."""

    exit_code = 2


class ProtocolError(OddlotError):
    """A strategy asked for something that the books forbid; the message carries the story."""


class Refusal(OddlotError):
    """An update's numbers are bad; the message names the tensor. Its work is done again: bad luck, not an end."""
