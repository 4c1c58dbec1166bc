"""The settings of a run: a job file, and what the command line says on top of it.

task = "digits"                                # or "package.module:function"
until = "accuracy>=0.98 or epochs>=30"
workers = 4

[task_options]
hidden = 128

[strategy]
name = "local_sgd"
steps = 8
server = { lr = 0.7, momentum = 0.9, nesterov = true }

[job.optimizer]
lr = 0.05                                      # the rest as the task has it; with `kind`, another optimizer

[job.lr_schedule]
kind = "cosine"                                # or "linear", "steps"
epochs = 30
"""

import tomllib
from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from oddlot.config.dataclass_tables import (
    Change,
    Choice,
    Maker,
    as_fault,
    change_of,
    column,
    table_of,
    validator,
)
from oddlot.config.toml_errors import KeyPath, Table, at_line, faults, locate, read_table, said
from oddlot.config.toml_text import check_text
from oddlot.core.errors import MAX_CHARACTERS, UsageError, joined
from oddlot.core.optimizers import SGD, Adam, AdamW, Optimizer
from oddlot.core.strategy import Strategy
from oddlot.core.strategy_wrapper import Inner, Wrapper
from oddlot.core.validation import ABOVE_ZERO, NOT_NEGATIVE, SEED, at_least, hints_of
from oddlot.run.config import RunConfig
from oddlot.run.goals import Every
from oddlot.strategies import Synchronous
from oddlot.strategies.registry import BY_NAME, INSIDE, WRAPPERS, strategy_class
from oddlot.strategies.support.stage_switching import ByError, ByGradients, ByNoConstants, ByPlateau, Switch
from oddlot.train.lr_schedules import Cosine, Linear, MultiStep
from oddlot.workloads import check_task, load_task

if TYPE_CHECKING:
    from oddlot.engines.local.config import Local
    from oddlot.train.job import Job
    from oddlot.wire.codec import Codec

Count = Annotated[int, AfterValidator(validator(at_least(1)))]
Price = Annotated[float, AfterValidator(validator(NOT_NEGATIVE))]
Positive = Annotated[float, AfterValidator(validator(ABOVE_ZERO))]
Seed = Annotated[int, AfterValidator(validator(SEED))]
Text = Annotated[str, pydantic.Field(min_length=1)]
OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": SGD, "adam": Adam, "adamw": AdamW}
BY_NO_CONSTANTS: dict[str, type[ByNoConstants]] = {"gradients": ByGradients, "plateau": ByPlateau}
SWITCHES: dict[str, type[Switch]] = {**BY_NO_CONSTANTS, "error": ByError}
KINDS: dict[Any, Mapping[str, type]] = {
    Optimizer: OPTIMIZERS,
    Switch: SWITCHES,
    ByNoConstants: BY_NO_CONSTANTS,
}
"""of dataclasses that stand for each other, by the names that job files use"""
SCHEDULES: dict[str, type] = {"cosine": Cosine, "linear": Linear, "steps": MultiStep}
DEEPEST = 3
"""strategies inside each other that the command line can name"""
STRATEGIES = [("strategy", *["inner"] * depth) for depth in range(DEEPEST + 1)]
NAMED: dict[tuple[str, ...], str] = {
    **dict.fromkeys(STRATEGIES, "name"),
    **{(*table, key): "kind" for table in STRATEGIES for key in ("server", "switch")},
    ("job", "optimizer"): "kind",
    ("job", "lr_schedule"): "kind",
}
"""Tables, and the key in them that decides which other keys they may have. A table may be its name alone."""
CHOOSERS = {(*table, chooser) for table, chooser in NAMED.items()}
"""Another word for one of these throws the table's other keys away."""


def word_of(makes: Callable[[], Strategy]) -> str:
    """What job files call a strategy."""
    words: dict[type[Strategy], str] = {kind: word for word, kind in BY_NAME.items()}
    return words[type(makes())]


OPTIMIZER_TABLES = {name: table_of(kind, alone=False, kind=name) for name, kind in OPTIMIZERS.items()}
OPTIMIZER = Choice("kind", OPTIMIZER_TABLES, change_of(OPTIMIZERS))
"""Without a kind, some numbers of the optimizer that is there change."""
SCHEDULE = Choice("kind", {name: table_of(kind, kind=name) for name, kind in SCHEDULES.items()})
SWITCH_TABLES = {name: table_of(kind, kind=name) for name, kind in SWITCHES.items()}
OF_STRATEGIES: dict[Any, Choice] = {Optimizer: OPTIMIZER}
OF_STRATEGIES |= {
    union: Choice("kind", {name: SWITCH_TABLES[name] for name in KINDS[union]}, SWITCH_TABLES["gradients"])
    for union in (Switch, ByNoConstants)
}
STRATEGY_TABLES: dict[str, Any] = {
    name: table_of(kind, choices=OF_STRATEGIES, name=name) for name, kind in BY_NAME.items()
}


@cache
def _table_elsewhere(name: str) -> type[Table]:
    """The table of a user's own strategy."""
    kind = strategy_class(name)
    choices = {**OF_STRATEGIES, **({Inner: _inside(kind)} if issubclass(kind, Wrapper) else {})}
    return table_of(kind, choices=choices, name=name)


STRATEGY = Choice("name", STRATEGY_TABLES, STRATEGY_TABLES["synchronous"], elsewhere=_table_elsewhere)


def _inside(wrapper: type) -> Choice:
    """Any strategy; where none is named, or the one that the wrapper has then, some settings of that one."""
    if wrapper not in INSIDE:
        return replace(STRATEGY, hinted=_fitting)
    begins, word = INSIDE[wrapper], word_of(INSIDE[wrapper])
    change = change_of({word: type(begins())}, begins=begins, choices=OF_STRATEGIES, name=word)
    return replace(
        STRATEGY, tables=ChainMap({word: change}, STRATEGY_TABLES), otherwise=change, hinted=_fitting
    )


def _fitting(around: Collection[str]) -> set[str]:
    """Strategies that can be inside these: none of them again, and in some only such as wait for everybody."""
    if any(WRAPPERS[name] in INSIDE for name in around):
        return {word for word, kind in BY_NAME.items() if kind().traits(1).waits_for_all}
    return {*BY_NAME, *WRAPPERS} - {*around}


STRATEGY_TABLES |= {
    name: table_of(kind, choices={Inner: _inside(kind)}, name=name) for name, kind in WRAPPERS.items()
}


class JobTable(Table):
    """What of the task's job is to be otherwise."""

    batch_size: Count | None = None
    device: str | None = None
    keep_optimizer: bool | None = None
    optimizer: Annotated[Maker | Change, BeforeValidator(OPTIMIZER.read)] | None = None
    lr_schedule: Annotated[Maker, BeforeValidator(SCHEDULE.read)] | None = None
    max_grad_norm: Positive | None = None


def _run_setting(hint: Any) -> Any:
    """The column of a run setting; rhythms are texts, and no text is empty."""
    if hint is Every:
        return Annotated[str, BeforeValidator(_rhythm)]
    return Text if hint is str else column(hint)


def _rhythm(value: object, info: ValidationInfo) -> str:
    with as_fault():
        Every.parse(value, info.field_name or "")
    return str(value)


SET_OTHERWISE = {"codec", "chaos", "about"}
"""run settings that a job file does not have, or by names"""
RUN_SETTINGS = {name: hint for name, hint in hints_of(RunConfig).items() if name not in SET_OTHERWISE}


class FileTable(Table):
    """What a job file has beside the run settings."""

    task: str
    task_options: dict[str, pydantic.JsonValue] = pydantic.Field({})
    strategy: Annotated[Maker, BeforeValidator(STRATEGY.read)] = STRATEGY_TABLES["synchronous"]()
    job: JobTable = JobTable()
    workers: Count | None = None
    threads: Count | None = None
    in_flight: Count | None = None
    dollars_per_hour: Price | None = None
    codec: Literal["plain", "bf16", "fp16", "nonzero", "nonzero_bf16", "nonzero_fp16"] | None = None
    checkpoints: Text | None = None
    out: Text | None = None

    @field_validator("task")
    @classmethod
    def _known(cls, value: str) -> str:
        with as_fault():
            check_task(value)
        return value


_COLUMNS: dict[str, Any] = {name: (_run_setting(hint) | None, None) for name, hint in RUN_SETTINGS.items()}
RunTable: type[FileTable] = create_model("RunTable", __base__=FileTable, **_COLUMNS)
"""A whole job file."""


def _unnamed(key: str, around: Mapping[str, Any]) -> str | None:
    """Which kind of a strategy or its settings the table `key` of this one has, where it does not name it."""
    match key:
        case "server" | "switch":
            return "sgd" if key == "server" else "gradients"
        case "strategy" | "inner":
            wrapper = WRAPPERS.get(str(around.get("name"))) if key == "inner" else None
            return word_of(INSIDE.get(wrapper, Synchronous)) if wrapper else "synchronous"
    return None


@dataclass(frozen=True, slots=True)
class Override:
    """A value from the command line, and the words that gave it."""

    flag: str
    keys: tuple[str, ...]
    value: Any

    @classmethod
    def parse(cls, text: str) -> "Override":
        """Read the `a.b=c` of `--set a.b=c`; c is a TOML value, or else a text."""
        name, equals, value = text.partition("=")
        keys = tuple(name.strip().split("."))
        if not equals or not all(keys):
            told = f"--set {text}: write a setting and its value, such as --set strategy.k=3"
            raise UsageError(told, "no_setting_and_value", flag=f"--set {text}")
        try:
            check_text(f"{name} = {value}")
            parsed = tomllib.loads(f"value = {value}")["value"]
        except UsageError as error:
            begin = name if len(name) <= MAX_CHARACTERS else f"{name[:MAX_CHARACTERS]}..."
            raise error.retold(f"--set {begin}: {error}", flag=f"--set {begin}") from None
        except ValueError:  # no TOML, or a whole number that Python refuses for its many digits
            parsed = value
        except RecursionError:
            told = f"--set {name}: its value has too many brackets in each other"
            raise UsageError(told, "nested_too_deeply", flag=f"--set {name}") from None
        chooser = NAMED.get(keys) if isinstance(parsed, str) else None
        return cls(f"--set {text}", (*keys, chooser) if chooser else keys, parsed)

    def put_into(self, table: dict[str, Any]) -> None:
        """Set the value in nested tables, which are made where they are missing."""
        *parents, last = self.keys
        unnamed: str | None = None
        for depth, key in enumerate(parents, 1):
            unnamed = _unnamed(key, table)
            inner = table.setdefault(key, {})
            if isinstance(inner, str) and (chooser := NAMED.get(self.keys[:depth])):
                inner = table[key] = {chooser: inner}
            if not isinstance(inner, dict):
                told = f"{self.flag}: `{key}` is {inner!r}, which has no settings"
                raise UsageError(told, "no_table", flag=self.flag, name=key, given=inner)
            table = inner
        if self.keys in CHOOSERS and table.get(last, unnamed) != self.value:
            table.clear()
        table[last] = self.value


@dataclass(frozen=True)
class Source:
    """Where each setting came from."""

    plain: dict[str, Any]
    overrides: Sequence[Override] = ()
    path: Path | None = None
    text: str = ""

    @property
    def about(self) -> dict[str, Any]:
        """What a run's folder keeps of it, for whoever goes on."""
        overrides = [[each.flag, list(each.keys), each.value] for each in self.overrides]
        return {"settings": self.plain, "overrides": overrides}

    def placed_at(self, keys: KeyPath, error: UsageError) -> UsageError:
        """The error with the flag, or the file and line, that said these keys; as it is where neither was used."""
        found = said(self.plain, keys)
        for override in reversed(self.overrides):
            depth = min(len(found), len(override.keys))
            if depth and list(override.keys[:depth]) == found[:depth]:
                # a flag has its value with it
                sentence = str(error).removeprefix(f"{error.key} = {self.plain.get(error.key)!r}: ")
                return error.retold(f"{override.flag}: {sentence}", flag=override.flag)
        return at_line(self.path, locate(self.text, keys), error) if self.path else error

    @contextmanager
    def placed(self, *tables: tuple[str, ...]) -> Iterator[None]:
        """Puts the place before a UsageError: that of its key in one of these tables, or else that of the first table.

        The whole file, `()`, is no place.
        """
        try:
            yield
        except UsageError as error:
            keys = next(
                (k for t in tables if said(self.plain, k := (*t, *error.key.split("."))) == [*k]), tables[0]
            )
            raise (self.placed_at(keys, error) if keys else error) from None


@dataclass(frozen=True)
class JobFile:
    """A job file, or a task alone, with what the command line says on top of it."""

    table: FileTable
    source: Source

    @classmethod
    def read(
        cls, task: str, overrides: Sequence[Override] = (), before: Mapping[str, Any] | None = None
    ) -> "JobFile":
        """The settings for a task, on top of those of a run `before`, or for a job file.

        UsageError: every fault with its flag, or its file and line.
        """
        path = Path(task) if task.endswith(".toml") else None
        text = read_table(path, RunTable)[0] if path else ""
        plain = tomllib.loads(text) if path else {**deepcopy(before or {}), "task": task}
        source = Source(plain, overrides, path, text)
        for override in sorted(overrides, key=_choosers_first):
            override.put_into(source.plain)
        try:
            return cls(RunTable.model_validate(source.plain), source)
        except ValidationError as error:
            raise joined([source.placed_at(keys, fault) for keys, fault in faults(error)]) from None

    @property
    def name(self) -> str:
        """What a folder of this task's runs is called."""
        return self.source.path.stem if self.source.path else self.table.task.rpartition(":")[2]

    @property
    def strategy_names(self) -> list[str]:
        """What its strategy is called, and those inside."""
        names, table = list[str](), getattr(self.table, "strategy", None)
        while table is not None:
            names.append(table.name)
            table = getattr(table, "inner", None)
        return names

    def strategy(self) -> Strategy:
        """The strategy, new."""
        strategy: Strategy = self.table.strategy.make()
        return strategy

    def job(self) -> "Job":
        """The task's job with its changes. UsageError, or JobError when the task's own code fails."""
        with self.source.placed(("task_options",)):
            job = load_task(self.table.task, self.table.task_options)
        table = self.table.job
        said = {
            name: getattr(table, name)
            for name in ("batch_size", "device", "keep_optimizer", "max_grad_norm", "lr_schedule")
        }
        changes: dict[str, Any] = {
            name: value.make() if isinstance(value, Maker) else value
            for name, value in said.items()
            if value is not None
        }
        if table.optimizer is not None:
            with self.source.placed(("job", "optimizer")):
                rule = table.optimizer
                changes["optimizer"] = rule.make() if isinstance(rule, Maker) else rule.make(job.optimizer)
        with self.source.placed(("job",)):
            return replace(job, **changes)

    def fit_options(self) -> dict[str, Any]:
        """Those arguments of `fit` that were given."""
        codec = self.table.codec
        return self._given(*RUN_SETTINGS, "checkpoints") | ({} if codec is None else {"codec": _codec(codec)})

    def local(self) -> "Local":
        """The worker processes."""
        from oddlot.engines.local.config import Local

        return Local(**self._given("workers", "threads", "in_flight", "dollars_per_hour"))

    def _given(self, *names: str) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self.table, name)) is not None}


def _choosers_first(override: Override) -> tuple[bool, int]:
    """Another word for a chooser throws away what stands beneath it: so the outer ones come first."""
    chooses = override.keys in CHOOSERS
    return not chooses, len(override.keys) if chooses else 0


def _codec(name: str) -> "Codec":
    """Of the form `nonzero_bf16`: how numbers travel, and before it whether zeros do."""
    from oddlot.wire.codec import Half, Plain
    from oddlot.wire.nonzero_blocks import NonZero

    halves = {"bf16": Half("bf16"), "fp16": Half("fp16")}
    of = halves.get(name.rpartition("_")[2], Plain())
    return NonZero(of) if name.startswith("nonzero") else of
