"""TOML files whose errors name the file, the line, and what was probably meant.

A file's tables are pydantic models derived from `Table`. The parser forgets the lines; `locate` finds them.
"""

import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from oddlot.core.errors import UsageError
from oddlot.core.nearest import or_nearest

KeyPath = Sequence[str | int]
AnyTable = TypeVar("AnyTable", bound="Table")
MOST_LETTERS = 10_000_000
"""of a file"""


class Table(BaseModel):
    """A TOML table: every key is known, and a number is not a text that looks like one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
    whose: ClassVar[str] = ""
    """whose settings these are, for sentences about them: ` of FastestK`"""

    @model_validator(mode="wrap")
    @classmethod
    def _name_the_nearest(cls, table: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """An unknown key's remedy is known only here, in its own table."""
        try:
            return handler(table)
        except ValidationError as error:
            raise retold(error, cls._remedy) from None

    @classmethod
    def _remedy(cls, fault: ErrorDetails) -> str:
        if fault["type"] != "extra_forbidden" or len(fault["loc"]) > 1:
            return ""
        key = str(fault["loc"][0])
        return f"unknown key `{key}`{cls.whose}: {or_nearest(key, cls.model_fields)}"


def retold(error: ValidationError, better: Callable[[ErrorDetails], str]) -> ValidationError:
    """The same faults; those for which `better` has a sentence are told by it."""
    faults = [_retold(fault, better(fault)) for fault in error.errors(include_url=False)]
    return ValidationError.from_exception_data(error.title, faults)


def _retold(fault: ErrorDetails, sentence: str) -> InitErrorDetails:
    told = PydanticCustomError(fault["type"], "{told}", {**fault.get("ctx", {}), "told": fault["msg"]})
    if sentence:
        told = about("", sentence)
    return InitErrorDetails(type=told, loc=fault["loc"], input=fault["input"])


def about(key: str, sentence: str) -> PydanticCustomError:
    """What a validator of a `Table` raises about one of its keys (`server.lr`: of a table in it), or about itself."""
    return PydanticCustomError("about", "{sentence}", {"sentence": sentence, "key": key})


def checked_path(path: object) -> Path:
    """The path of a file to read. UsageError: it is none."""
    if not isinstance(path, str | Path) or "\0" in str(path) or not str(path):
        raise UsageError(f"path = {path!r} must be a file's path")
    return Path(path)


def read_table(path: Path, kind: type[AnyTable]) -> tuple[str, AnyTable]:
    """The file's text and what it says. UsageError: it cannot be read, is no TOML, or no such table."""
    try:
        with path.open(encoding="utf-8-sig") as file:  # some editors begin with a mark
            text = file.read(MOST_LETTERS + 1)
        if len(text) > MOST_LETTERS:
            raise UsageError(f"{path} has more than {MOST_LETTERS:,} letters: that is no such file")
        return text, kind.model_validate(tomllib.loads(text), context={"folder": path.parent})
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text in UTF-8: byte {error.start} is wrong") from None
    except RecursionError:
        raise UsageError(f"{path} is not valid TOML: it has too many brackets in each other") from None
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d+)", str(error))
        number = line[1] if line else text.rstrip().count("\n") + 1
        raise UsageError(f"{path}:{number}: not valid TOML: {error}") from None
    except ValidationError as error:
        raise explain(path, text, error) from None


def explain(path: Path, text: str, error: ValidationError) -> UsageError:
    """All that `error` found in the file, one line each: file, line, key and remedy."""
    lines = sorted((locate(text, keys), sentence) for keys, sentence in faults(error))
    return UsageError("\n".join(f"{path}:{line}: {sentence}" for line, sentence in lines))


def faults(error: ValidationError) -> list[tuple[KeyPath, str]]:
    """All that `error` found: the keys that lead there, and a sentence."""
    return [(_keys(detail), _sentence(detail)) for detail in error.errors(include_url=False)]


def locate(text: str, keys: KeyPath) -> int:
    """The number (from 1) of the line in valid TOML that first says `keys`, or as much of them as it says.

    Works by reading ever shorter beginnings of the file: without the line sought, the keys are missing.
    """
    lines = text.split("\n")
    keys = said(tomllib.loads(text), keys)

    def says(count: int) -> bool:
        while True:  # a beginning that ends inside a value is not TOML: read on to the value's end
            try:
                return said(tomllib.loads("\n".join(lines[:count])), keys) == keys
            except tomllib.TOMLDecodeError:
                count += 1

    return max(1, bisect_left(range(len(lines)), True, key=says))


def said(value: Any, keys: KeyPath) -> list[str | int]:
    """The part of `keys` that leads somewhere: pydantic puts names of union members between, which do not."""
    found: list[str | int] = []
    for key in keys:
        with suppress(LookupError, TypeError):
            value = value[key]
            found.append(key)
    return found


def _keys(detail: ErrorDetails) -> KeyPath:
    keys = detail["ctx"]["key"].split(".") if detail["type"] == "about" else ()
    return (*detail["loc"], *keys)


def _sentence(detail: ErrorDetails) -> str:
    *parents, key = detail["loc"] or ("the file",)
    match detail["type"]:
        case "about":
            return detail["msg"]
        case "missing" if isinstance(key, int):
            return f"`{_dotted(parents)}` is {detail['input']!r}: it has too few values"
        case "too_long":
            return f"`{_dotted(detail['loc'])}` is {detail['input']!r}: it has too many values"
        case "missing":
            return f"`{key}` is missing" + (f" in `{_dotted(parents)}`" if parents else "")
        case "literal_error":
            word, choices = str(detail["input"]), re.findall(r"'([^']*)'", detail["ctx"]["expected"])
            return f"unknown {key} `{word}`: {or_nearest(word, choices)}"
        case "string_too_short":
            return f"`{_dotted(detail['loc'])}` is empty"
        case "invalid-json-value":
            return f"`{_dotted(detail['loc'])}` is {detail['input']}: write a date or a time as a text, in quotes"
        case "tuple_type":
            return f"`{_dotted(detail['loc'])}` is {detail['input']!r}: it must be a list, in brackets"
        case "model_type":
            return f"`{_dotted(detail['loc'])}` is {detail['input']!r}: it must be a table"
    remedy = detail["msg"].replace("Input should", "it must")
    return f"`{_dotted(detail['loc'])}` is {detail['input']!r}: {remedy}"


def _dotted(keys: KeyPath) -> str:
    return (
        "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in keys).lstrip(".") or "the file"
    )
