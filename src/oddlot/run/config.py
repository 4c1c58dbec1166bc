"""The declaration of all settings of a run.

The keywords of `oddlot.fit`, the flags of `oddlot train` and `oddlot simulate`, the table `[run]` of job files and
run.json derive from `RunConfig`. Importing it loads neither numpy nor PyTorch.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from inspect import Parameter, Signature
from textwrap import fill
from typing import Any, TypedDict

from oddlot.core.support.errors import UnknownName, short
from oddlot.core.support.text import field_docs
from oddlot.core.support.validation import (
    KEEP_CHECKPOINTS,
    MAX_UPDATE_RATIO,
    NOT_IN_FILES,
    AtLeastOne,
    OverZero,
    Seed,
    check_settings,
    hints_of,
)
from oddlot.faults.plan import Chaos
from oddlot.history.best_metric import BestMetric
from oddlot.history.goals import Every
from oddlot.model.combine import Combine, Gate
from oddlot.model.rule_names import combine_of, gates_of, rule_name
from oddlot.wire.codec import Codec
from oddlot.wire.registry import codec_name, codec_of


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run, apart from job, strategy and engine."""

    until: str = ""
    """Goal, such as "accuracy>=0.98 or epochs>=20". Empty: the job's own."""
    seed: Seed = 0
    """Random seed."""
    codec: Codec | None = None
    """Encoding of updates, such as "bf16". Default: "nonzero" for sparse jobs, else "plain"."""
    shards: AtLeastOne | None = None
    """Number of fixed parts of the data, which workers keep. Default: 1 or, for strategies that assign complete shards,
    one per worker, or fewer if shards would have fewer than 10 minibatches. A resumed run keeps its number."""
    keep_shards: bool = True
    """Keep shards on machines. False: each task sends its samples."""
    epoch_barrier: bool = False
    """Start an epoch only when the previous one is merged."""
    skip_bad: bool = False
    """Skip samples after three invalid updates or three worker crashes."""
    max_update_ratio: OverZero | None = MAX_UPDATE_RATIO
    """Largest norm of an update, relative to the running median. None or infinity: no limit."""
    combine: Combine | None = None
    """Rule that merges several updates: "sum", "trimmed_mean", "median" or "krum". Default: "sum", weighted.
    Numbers follow after colons, as in "trimmed_mean:0.2" or "krum:1". Your own: an `oddlot.merging.Combine`, or its
    import path. Not on a mesh, and not for strategies that merge one update at a time."""
    gates: tuple[Gate, ...] = ()
    """Further checks of updates, such as "range:norm". Several are separated by commas. "range:norm" rejects updates
    with a norm outside the range of recent ones; "range:samples" and "range:loss" are similar. Gates run after the
    checks that every run has. After a resume, they start without recent updates. Your own: an `oddlot.merging.Gate`, or
    its import path. Not on a mesh."""
    chaos: Chaos | None = field(default=None, metadata=NOT_IN_FILES)
    """Faults to inject."""
    evaluate_every: Every = field(default_factory=lambda: Every(1, "epochs"))
    """Time between evaluations, such as "100 versions" or "30 seconds"."""
    checkpoint_every: Every = field(default_factory=lambda: Every(60, "seconds"))
    """Time between checkpoints, such as "100 versions"."""
    keep_best: BestMetric | None = None
    """Metric of the best weights to keep, such as "accuracy" or "max f1". The weights of the best evaluation so far
    are in the run folder, for `oddlot.load(run, "best")`. Metrics other than "accuracy" and "loss" need "max" or "min".
    Not on a mesh."""
    keep_checkpoints: AtLeastOne = KEEP_CHECKPOINTS
    """Number of newest checkpoints to keep."""
    about: Mapping[str, Any] = field(default_factory=dict, metadata=NOT_IN_FILES)
    """Your own JSON-serializable data for run.json."""

    def __post_init__(self) -> None:
        check_settings(self, of="")  # users pass them to `fit`

    @classmethod
    def of(cls, settings: Mapping[str, Any], others: Iterable[str] = ()) -> "RunConfig":
        """Return the settings from keywords. Intervals and codecs may be strings. Raise UsageError if one is invalid.

        `others`: further arguments of the function, for the error about an unknown argument.
        """
        known = {one.name for one in fields(cls)}
        for name in settings:
            if name not in known:
                raise _unknown(name, settings[name], known.union(others))
        given = {name: _parsed(name, value) for name, value in settings.items()}
        if given.get("about", ...) is None:
            given["about"] = {}
        return cls(**given)

    def plain(self) -> dict[str, Any]:
        """Return the settings as JSON-serializable data for run.json."""
        message = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "about"}
        if self.codec is not None:
            message["codec"] = codec_name(self.codec)
        if self.chaos is not None:
            message["chaos"] = [name for name, _ in self.chaos.named()]
        message["combine"] = None if self.combine is None else rule_name(self.combine)
        message["gates"] = [rule_name(gate) for gate in self.gates]
        return {
            name: str(value) if isinstance(value, Every | BestMetric) else value
            for name, value in message.items()
        }


@dataclass(frozen=True, kw_only=True)
class RunKeys(RunConfig):
    """The keys of the table `[run]`: the settings of a run, and the locations of its files."""

    out: str | None = None
    """Run folder. Default: a new folder below `runs`."""
    checkpoints: str | None = None
    """Folder or URL for checkpoints, such as s3://bucket/run. Default: in the run folder."""


class RunSettings(TypedDict, total=False):
    """The settings of a run as keywords of `oddlot.fit`, for type checkers and editors. See `RunConfig`."""

    until: str
    seed: int
    codec: Codec | str | None
    shards: int | None
    keep_shards: bool
    epoch_barrier: bool
    skip_bad: bool
    max_update_ratio: float | None
    combine: Combine | str | None
    gates: Sequence[Gate | str] | str
    chaos: Chaos | None
    evaluate_every: Every | str
    checkpoint_every: Every | str
    keep_best: BestMetric | str | None
    keep_checkpoints: int
    about: Mapping[str, Any] | None


BELONGS = {
    **dict.fromkeys(
        ("epochs", "seconds", "hours", "versions", "samples", "dollars"), "until='{name}>={value}'"
    ),
    **dict.fromkeys(("max_epochs", "num_epochs", "num_train_epochs"), "until='epochs>={value}'"),
    "max_steps": "until='versions>={value}'",
    **dict.fromkeys(("workers", "threads", "in_flight"), "engine=oddlot.Local({name}={value})"),
    **dict.fromkeys(
        ("lr", "momentum", "weight_decay"), "oddlot.Job(..., optimizer=oddlot.SGD({name}={value}))"
    ),
    **dict.fromkeys(("batch_size", "device", "optimizer", "metrics"), "oddlot.Job(..., {name}={value})"),
    **dict.fromkeys(
        ("callback", "hook", "hooks", "observer", "observers"),
        "callbacks=[...] with oddlot.Callback objects, or functions f(record) that are called after each event",
    ),
}
"""Keywords of other libraries' training functions, and the equivalent setting of oddlot."""


def _unknown(name: str, value: Any, known: Iterable[str]) -> UnknownName:
    """Return the error for a keyword that is no setting of a run."""
    error = UnknownName("argument", name, known, key=name)
    if name not in BELONGS:
        return error
    message = BELONGS[name].format(name=name, value=short(value))
    return error.with_message(f"unknown argument {name!r}: use {message}", nearest=None)


TEXTS: dict[Any, Callable[[str, str], Any]] = {
    Every: Every.parse,
    Codec | None: lambda text, _: codec_of(text),
    Combine | None: lambda text, _: combine_of(text),
    tuple[Gate, ...]: lambda text, _: gates_of(text),
    BestMetric | None: BestMetric.parse,
}
"""Types of settings that may be text, with functions that read the text, given the name of the setting."""


def _parsed(name: str, value: Any) -> Any:
    """Return the value of a setting. Text is parsed if its type is one of `TEXTS`."""
    hint = hints_of(RunConfig)[name]
    if hint is Every and not isinstance(value, Every):
        return Every.parse(value, name)
    if name == "gates":
        return gates_of(value)
    return TEXTS[hint](value, name) if hint in TEXTS and isinstance(value, str) else value


def with_settings(signature: Signature) -> Signature:
    """Return the signature of a function, with its `**settings` replaced by a keyword for each run setting."""
    own = [each for each in signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    for name, hint in hints_of(RunConfig).items():
        default, is_interval = getattr(RunConfig(), name), hint is Every
        own.append(
            Parameter(
                name,
                Parameter.KEYWORD_ONLY,
                default=str(default) if is_interval else default,
                annotation=str if is_interval else hint | str if hint in TEXTS else hint,
            )
        )
    return signature.replace(parameters=own)


def settings_text() -> str:
    """Return an entry per run setting for the arguments section of a docstring."""
    return "\n".join(
        fill(f"{name}: {text}", 116, initial_indent=" " * 8, subsequent_indent=" " * 12)
        for name, text in field_docs(RunConfig).items()
    )
