"""The settings of a run: the one place where each is declared.

The keywords of `oddlot.fit`, the keys of job files and `--set`, and run.json derive from `RunConfig`.
"""

import ast
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from inspect import Parameter, Signature
from itertools import pairwise
from textwrap import dedent, fill
from typing import Any, get_type_hints

from oddlot.checkpoint.writer import KEEP
from oddlot.core.errors import UnknownName
from oddlot.core.validation import AtLeastOne, OverZero, Seed, check_settings
from oddlot.faults.plan import Chaos
from oddlot.run.goals import Every
from oddlot.train.gates import MAX_UPDATE_RATIO
from oddlot.wire.codec import Codec


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """How a run goes, apart from job, strategy and engine."""

    until: str = ""
    """Goal, such as "accuracy>=0.98 or epochs>=20"; empty: the job's own."""
    seed: Seed = 0
    """Random seed."""
    codec: Codec | None = None
    """Encoding of updates; None: `NonZero()` for a job that is sparse, else `Plain()`."""
    shards: AtLeastOne | None = None
    """Fixed parts of the data, which a worker keeps. None: of a resumed run, its own; for strategies of whole shards
    one for each worker, or fewer of at least 10 minibatches; else 1."""
    keep_shards: bool = True
    """Whether a machine keeps the shards that it has had; otherwise each task brings its data along."""
    epoch_barrier: bool = False
    """Whether an epoch begins only when the one before is wholly merged."""
    skip_bad: bool = False
    """Whether samples are skipped whose numbers are bad three times, or that end or hang three processes."""
    max_update_ratio: OverZero | None = MAX_UPDATE_RATIO
    """Largest norm of an update, in running medians; None or infinity: any."""
    chaos: Chaos | None = None
    """Faults to inject."""
    evaluate_every: Every = field(default_factory=lambda: Every(1, "epochs"))
    """Time between evaluations, such as "100 versions", "30 seconds" or "1 epochs"."""
    checkpoint_every: Every = field(default_factory=lambda: Every(60, "seconds"))
    """Time between checkpoints."""
    keep_checkpoints: AtLeastOne = KEEP
    """Number of newest checkpoints that are kept."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Plain data of yours that run.json keeps."""

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> "RunConfig":
        """Return the config of keywords, in which rhythms are texts. UsageError names a wrong one."""
        known = [one.name for one in fields(cls)]
        for name in settings:
            if name not in known:
                raise UnknownName("setting", name, known, key=name)
        rhythms = {
            name: Every.parse(value, name)
            for name, value in settings.items()
            if get_type_hints(cls)[name] is Every and not isinstance(value, Every)
        }
        given = {**settings, **rhythms}
        if given.get("about", ...) is None:
            given["about"] = {}
        return cls(**given)


def with_settings(signature: Signature) -> Signature:
    """Return the signature of a function with a keyword for each run setting in place of its `**settings`."""
    own = [each for each in signature.parameters.values() if each.kind is not Parameter.VAR_KEYWORD]
    hints = get_type_hints(RunConfig)
    made = [
        Parameter(
            one.name,
            Parameter.KEYWORD_ONLY,
            default=str(getattr(RunConfig(), one.name))
            if hints[one.name] is Every
            else getattr(RunConfig(), one.name),
            annotation=str if hints[one.name] is Every else hints[one.name],
        )
        for one in fields(RunConfig)
    ]
    return signature.replace(parameters=[*own, *made])


def settings_told() -> str:
    """Return a line about each run setting, from the text beneath its field."""
    found = []
    source = ast.parse(dedent(inspect.getsource(RunConfig))).body[0]
    for one, text in pairwise(ast.iter_child_nodes(source)):
        match one, text:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(meaning))):
                found.append(
                    fill(
                        f"{name}: {' '.join(meaning.split())}",
                        116,
                        initial_indent="    ",
                        subsequent_indent="        ",
                    )
                )
    return "\n".join(found)
