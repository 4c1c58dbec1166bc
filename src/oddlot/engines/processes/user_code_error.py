"""Errors and warnings of workers, as data for the hub."""

import json
from contextlib import suppress
from typing import Any

from oddlot.core.support.errors import JobError, OddlotError, OddlotWarning, short
from oddlot.core.support.user_code import shortened, trace_of, user_code_failed
from oddlot.core.tasks import NodeId

MAX_CHARACTERS = 64_000
"""Maximum length of an error's text and fields together, as JSON."""


def plain_failure(error: BaseException) -> dict[str, Any]:
    """Return an error or warning as JSON data: its text and, for oddlot's own, its code and small fields."""
    if not isinstance(error, OddlotError | OddlotWarning):
        return {"text": trace_of(error)}
    text, fields = shortened(str(error)), dict[str, Any]()
    room = MAX_CHARACTERS - len(json.dumps(text))
    for name, value in error.fields.items():
        with suppress(Exception):  # the repr of a user's object may fail
            plain = json.dumps(value, default=short, skipkeys=True)
            if len(json.dumps(fields)) + len(plain) <= room:
                fields[name] = json.loads(plain)
    return {"text": text, "code": error.code, "fields": fields}


def failure_of(node: NodeId, failure: dict[str, Any]) -> JobError:
    """Return the error that a worker has sent."""
    text, code, fields = str(failure.get("text")), failure.get("code"), failure.get("fields")
    if type(code) is not str or type(fields) is not dict:  # not an error of oddlot
        return user_code_failed(node, text)
    error = JobError(text, code)
    error.fields = fields
    return error
