"""TOML tables generated from dataclasses: one key per setting, with the checks of its type hint."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, is_dataclass, replace
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Self, Union, get_args, get_origin

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ValidationError,
    ValidationInfo,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails, PydanticCustomError

from oddlot.config.toml_errors import Table, about, unknown_key, with_message
from oddlot.core.support.errors import UnknownName, UsageError
from oddlot.core.support.text import or_nearest
from oddlot.core.support.validation import UNIONS, Check, default_of, hints_of, settings_of

AROUND = "around"
"""Key in the validation context of a table. The value has the enclosing fields, each with the name of its kind."""
TEXT = Annotated[str, pydantic.Field(min_length=1)]


class Maker(Table):
    """A table with all settings of a dataclass, validated by the dataclass."""

    makes: ClassVar[type]
    alone: ClassVar[bool] = True
    """Whether the table is validated alone. Otherwise the table that contains it is validated."""

    def make(self) -> Any:
        """Return the dataclass, with defaults for missing keys."""
        return self.makes(**given(self, self.makes))

    @model_validator(mode="after")
    def _can_be_made(self) -> Self:
        with as_fault():
            if self.alone:
                self.make()
        return self


class PartialTable(Table):
    """A table with some settings of one of several dataclasses."""

    begins: ClassVar[Callable[[], Any] | None] = None
    """Function that returns the object to change, or None if the object is passed to `make`."""
    choosers: ClassVar[frozenset[str]] = frozenset()
    """Keys that selected this table."""
    kinds: ClassVar[Mapping[str, type]] = MappingProxyType({})
    """Dataclasses by name."""

    def make(self, begin: Any) -> Any:
        """Return a copy of `begin` with these settings. Raise UsageError if it lacks one."""
        begins = type(self).begins
        begin = begins() if begins else begin
        if callable(begin) and not is_dataclass(begin):
            (key, *_) = sorted(self.model_fields_set) or [""]
            message = (
                f"{key} cannot be changed: a function of the job makes the object. To replace it, set its kind too: "
                f"{', '.join(self.kinds)}"
            )
            raise UsageError(message, "made_by_function", key=key, kinds=list(self.kinds))
        for key in sorted(self.model_fields_set - self.choosers - settings_of(type(begin)).keys()):
            others = " or ".join(word for word, kind in self.kinds.items() if key in settings_of(kind))
            message = f"{key} is not a setting of {begin}: set a kind that has it, {others}"
            raise UsageError(
                message, "setting_of_another_kind", key=key, given=key, kind=type(begin).__name__
            )
        return replace(begin, **given(self, type(begin), begin))


@dataclass(frozen=True)
class TableChoice:
    """A choice of tables by the key `chooser`. A string instead of a table is the name of a kind."""

    chooser: str
    tables: Mapping[str, type[Table]]
    otherwise: type[Table] | None = None
    """Default table, or None if a kind is required."""
    hinted: Callable[[Collection[str]], Collection[str]] | None = None
    """Function from the names of the enclosing kinds to the kinds that an error may suggest. If None, all kinds."""
    elsewhere: Callable[[str], type[Table]] | None = None
    """Function from an import path to the table of that kind. It raises UsageError if the import fails. None if import
    paths are not supported."""

    def read(self, value: Any, info: ValidationInfo) -> Table:
        """Return the table of the named kind."""
        what, chooser = info.field_name or "", self.chooser
        around: tuple[tuple[str, str], ...] = (info.context or {}).get(AROUND, ())
        if isinstance(value, str):
            value = {chooser: value}
        if not isinstance(value, dict):
            message = f"{what} = {value!r} must be a table or a name. {or_nearest('', self.tables)}"
            raise about(UsageError(message, "neither_table_nor_name", name=what, given=value))
        if chooser not in value and self.otherwise:
            try:
                return self.otherwise.model_validate(value, context=info.context)
            except ValidationError as error:
                raise with_message(error, partial(self._hint_at_kinds, what, around)) from None
        name = str(value.get(chooser, ""))
        context = {**(info.context or {}), AROUND: (*around, (what, name))}
        return self._table(what, name).model_validate(value, context=context)

    def _table(self, what: str, name: str) -> type[Table]:
        if name in self.tables:
            return self.tables[name]
        if self.elsewhere is None or ":" not in name:
            raise about(self._unknown(what, name))
        with as_fault():
            return self.elsewhere(name)

    def _unknown(self, what: str, name: str) -> UsageError:
        if name:
            return UnknownName(what, name, self.tables, key=self.chooser)
        message = f"{what} needs `{self.chooser}`. {or_nearest(name, self.tables)}"
        return UsageError(message, "missing_kind", key=self.chooser, name=what)

    def _hint_at_kinds(
        self, what: str, around: tuple[tuple[str, str], ...], fault: ErrorDetails
    ) -> UsageError | None:
        """Suggest kinds that have a key which the default kind lacks."""
        key, table = str(fault["loc"][0]) if fault["loc"] else "", self.otherwise or Table
        if len(fault["loc"]) != 1 or key in table.model_fields:
            return None
        hinted = self.hinted([name for _, name in around]) if self.hinted else self.tables.keys()
        having = [word for word in self.tables if word in hinted and key in self.tables[word].model_fields]
        chooser = ".".join([*(field for field, _ in around), what, self.chooser])
        kinds = f"set a kind that has it, `{chooser}` = {' or '.join(having)}"
        return unknown_key(key, table.whose, kinds) if having else None

    @property
    def hint(self) -> Any:
        """Return the type hint of a key with this choice."""
        return Annotated[Table, BeforeValidator(self.read)]


def table_of(
    kind: type, /, choices: Mapping[Any, Any] = MappingProxyType({}), alone: bool = True, **choosers: str
) -> type[Maker]:
    """Return a table class with the settings of a dataclass. Settings with a default are optional.

    `choices` maps type hints to choices of tables or to other types of keys. `alone` is `Maker.alone`. `choosers` are
    the keys that named this table.
    """
    hints, columns = hints_of(kind), dict[str, Any]()
    for name, one in settings_of(kind).items():
        default: Any = None
        if one.default is MISSING and one.default_factory is MISSING:
            choice = choices.get(hints[name])
            default = pydantic.Field({}, validate_default=True) if choice and choice.otherwise else ...
        columns[name] = (column(hints[name], choices), default)
    columns |= {name: (str, default) for name, default in choosers.items()}
    table = create_model(f"{kind.__name__}Table", __base__=Maker, **columns)
    table.makes, table.alone, table.whose = kind, alone, f" of {kind.__name__}"
    return table


def change_of(
    kinds: Mapping[str, type],
    begins: Callable[[], Any] | None = None,
    choices: Mapping[Any, Any] = MappingProxyType({}),
    **choosers: str,
) -> type[PartialTable]:
    """Return a table class with settings of any of these dataclasses, given by name.

    The settings change the object that `begins` returns. `choosers` are the keys that named the table.
    """
    hints = {name: hints_of(kind)[name] for kind in kinds.values() for name in settings_of(kind)}
    columns: dict[str, Any] = {name: (column(hint, choices), None) for name, hint in hints.items()}
    columns |= {name: (str, default) for name, default in choosers.items()}
    table = create_model("PartialTable", __base__=PartialTable, **columns)
    table.kinds, table.begins, table.choosers = kinds, begins, frozenset(choosers)
    if begins:
        table.whose = f" of {type(begins()).__name__}"
    return table


def column(hint: Any, choices: Mapping[Any, Any] = MappingProxyType({})) -> Any:
    """Return the type of a setting in a table. Checks become validators, and dataclasses become tables."""
    if hint in choices:
        return choices[hint].hint if isinstance(choices[hint], TableChoice) else choices[hint]
    origin = get_origin(hint)
    if origin is Annotated:
        base, *checks = get_args(hint)
        # The checks of a union run first and accept any value: one error instead of one for each type.
        kind: Any = BeforeValidator if get_origin(base) in UNIONS else AfterValidator
        return Annotated[(column(base, choices), *(kind(validator(check)) for check in checks))]
    if is_dataclass(hint):
        return table_of(hint, choices=choices)  # type: ignore[arg-type]  # a dataclass is a type
    if origin not in {*UNIONS, tuple, Mapping}:
        return {str: TEXT, Any: pydantic.JsonValue}.get(hint, hint)
    parts = tuple(part if part is ... else column(part, choices) for part in get_args(hint))
    if origin is tuple:  # TOML has lists instead of tuples
        return Annotated[tuple[parts], pydantic.Field(strict=False)]  # type: ignore[valid-type]  # they are computed
    return Union[parts] if origin in UNIONS else dict[parts]  # type: ignore[valid-type,misc]  # noqa: UP007


def _made(table: Maker | PartialTable, now: Any) -> Any:
    """Return a nested setting. If the kind is unchanged, keys that are not given keep the values of `now`."""
    if isinstance(table, PartialTable):
        return table.make(now)
    is_there = type(now) is getattr(table, "makes", None)
    return replace(now, **given(table, type(now), now)) if is_there else table.make()


def given(table: Table, kind: type, begin: Any = None) -> dict[str, Any]:
    """Return the settings of a table as arguments of the dataclass `kind`.

    Nested settings change the settings of `begin` or, without it, the defaults.
    """
    known = settings_of(kind)
    values = {
        name: getattr(table, name)
        for name in known
        # given, or a choice with a default
        if name in table.model_fields_set or isinstance(getattr(table, name, None), Maker | PartialTable)
    }
    for name, value in values.items():
        if isinstance(value, Maker | PartialTable):
            try:
                values[name] = _made(
                    value, default_of(known[name]) if begin is None else getattr(begin, name)
                )
            except UsageError as error:
                raise error.inside(name) from None
    return values


@contextmanager
def as_fault() -> Iterator[None]:
    """Convert a UsageError into a validation error of the current table."""
    try:
        yield
    except UsageError as error:
        raise about(error) from None


def validator(check: Check) -> Callable[[Any], Any]:
    """Return a check as a pydantic validator."""

    def validate(value: Any) -> Any:
        must = check(value)
        if must:
            raise PydanticCustomError("rejected", "Input should be {must}", {"must": must})
        return value

    return validate
