"""Workloads by name: built-in jobs on real data, and users' functions that return a job."""

import ast
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import Parameter
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from oddlot.core.support.errors import InvalidValue, JobError, OddlotError, UnknownName, UsageError
from oddlot.core.support.text import counted, or_nearest
from oddlot.core.support.user_code import trace_of, user_module

MAX_NAMED = 5
"""Largest number of functions that an error lists."""


def script_given(name: str) -> UsageError | None:
    """Return an error that suggests the right name for a file such as `mymodule.py:job`. None for other names."""
    file, _, function = name.partition(":")
    path = Path(file if file.endswith(".py") else f"{file}.py").expanduser()
    if not (file.endswith(".py") or (not function and path.is_file())):
        return None
    if not path.is_file():
        return UsageError(f"there is no file {path}", "missing_file", path=str(path))
    names = [function] if function else functions_of(path)
    here, folder = Path.cwd(), path.resolve().parent
    module = ".".join(
        [*folder.relative_to(here).parts, path.stem] if folder.is_relative_to(here) else [path.stem]
    )
    write = f"{module}:{names[0] if names else 'FUNCTION'}"
    where = "" if folder.is_relative_to(here) else f" in the folder {folder}"
    others = f". It also has {', '.join(f'`{each}`' for each in names[1:MAX_NAMED])}" if names[1:] else ""
    message = f"{name!r} is a Python file: name its function that returns a Job, as in `oddlot train {write}`{where}"
    return UsageError(message + others, "python_file_given", given=name, write=write, functions=names)


def functions_of(path: Path) -> list[str]:
    """Return the public functions of a Python file. Functions that create a Job are first.

    Return an empty list if the file cannot be read.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    found = [each for each in tree.body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
    return [each.name for each in sorted(found, key=lambda each: not _makes_job(each))]


def _makes_job(function: ast.FunctionDef) -> bool:
    """Return whether a function calls `Job` or `oddlot.Job`."""
    calls = (each.func for each in ast.walk(function) if isinstance(each, ast.Call))
    return any("Job" in (getattr(call, "id", ""), getattr(call, "attr", "")) for call in calls)


if TYPE_CHECKING:
    from oddlot.train.job import Job
    from oddlot.train.stages import Stage


@dataclass(frozen=True, slots=True)
class Workload:
    """A built-in workload."""

    place: str
    """Import path of its function, `module:function`."""
    description: str
    """Description in one line."""


WORKLOADS = {
    "digits": Workload(
        "oddlot.workloads.digits:digits", "1,797 handwritten digits of 8 x 8 pixels, packaged with oddlot"
    ),
    "mnist": Workload(
        "oddlot.workloads.mnist:mnist", "70,000 handwritten digits of 28 x 28 pixels, from your IDX files"
    ),
    "fashion_mnist": Workload(
        "oddlot.workloads.mnist:fashion_mnist",
        "70,000 images of clothes of 28 x 28 pixels, from your IDX files",
    ),
    "digit_autoencoder": Workload(
        "oddlot.workloads.digit_autoencoder:digit_autoencoder",
        "autoencoder and classifier of digits with pre-trained layers, in stages, from MNIST or the packaged digits",
    ),
    "cifar10": Workload(
        "oddlot.workloads.cifar10:cifar10",
        "60,000 color images of 32 x 32 pixels, from your batches, archives or folders",
    ),
    "char_lm": Workload(
        "oddlot.workloads.char_lm:char_lm", "language model of characters, a small GPT, from your text file"
    ),
    "xmc": Workload(
        "oddlot.workloads.extreme_classification:xmc",
        "sparse features and many labels, from your files in the format of the Extreme Classification Repository",
    ),
    "recommend": Workload(
        "oddlot.workloads.recommend:recommend",
        "recommender from a log of shown and clicked items, from your file or a generated log",
    ),
}
"""The built-in workloads by name. Their modules are imported on first use."""


def check_workload(name: str) -> None:
    """Raise UsageError unless the name is a built-in workload or has the form `package.module:function`."""
    if name in WORKLOADS:
        return
    if script := script_given(name):
        raise script
    if re.fullmatch(r"[\w.]+:\w+", name):
        return
    if ":" in name:
        message = f"invalid workload {name!r}: name a function as package.module:function"
        raise UsageError(message, "invalid_workload_name", given=name)
    unknown = UnknownName("workload", name, WORKLOADS)
    other = (
        "; or name a function as module:function (mymodule:job of mymodule.py), or a job file ending in .toml"
    )
    raise unknown.with_message(f"{unknown}{other}")


def load_workload(name: str, options: Mapping[str, Any] | None = None) -> "Job":
    """Return the job of a built-in workload, or of the function at `package.module:function`, with these options.

    A job without a name gets the name of the function. Raise UsageError if the workload or an option is unknown, or if
    the workload has several stages, and JobError if the function raises an exception.
    """
    from oddlot.train.job import Job

    found = load_stages(name, options)
    if not isinstance(found, Job):
        names = [stage.name for stage in found]
        message = (
            f"the workload {name} has {counted(len(names), 'stage')}, and this needs a workload with one job"
        )
        raise UsageError(message, "workload_has_stages", workload=name, stages=names)
    return found


def load_stages(name: str, options: Mapping[str, Any] | None = None) -> "Job | Sequence[Stage]":
    """Return the job of a workload as `load_workload` does, or its stages, if it has several."""
    from oddlot.train.job import Job
    from oddlot.train.stages import is_staged

    function = workload_function(name)
    known = inspect.signature(function).parameters
    options = {key: _as_text(known.get(key), value) for key, value in (options or {}).items()}
    _check_options(name, known, options)
    found = _call(f"the workload {name}", lambda: function(**options))
    if is_staged(found):
        return [replace(stage, job=_named(stage.job, name)) for stage in found]
    if not isinstance(found, Job):
        message = (
            f"the workload {name} must return an oddlot.Job, or a list of stages, not {type(found).__name__}"
        )
        raise UsageError(message, "workload_returns_no_job", workload=name, given=type(found).__name__)
    return _named(found, name)


def _named(job: "Job", workload: str) -> "Job":
    """Return the job with the name of its workload, unless it has its own."""
    return replace(job, name=workload.rpartition(":")[2]) if job.name == type(job).name else job


def options_of(name: str) -> Mapping[str, Parameter]:
    """Return the options of a workload: the parameters of its function, by name."""
    return inspect.signature(workload_function(name)).parameters


def workload_function(name: str) -> Callable[..., Any]:
    """Return the function of a workload. Raise UsageError or JobError if it cannot be imported."""
    check_workload(name)
    place = WORKLOADS[name].place if name in WORKLOADS else name
    module_name, _, function_name = place.partition(":")
    module = _call(f"importing {module_name}", lambda: _import(module_name))
    function = getattr(module, function_name, None)
    if not callable(function):
        names = [name for name, it in vars(module).items() if inspect.isfunction(it) and name[0] != "_"]
        message = f"{module_name} has no function {function_name!r}. {or_nearest(function_name, names)}"
        if hides := _hides_one_here(module):
            message += (
                f". {module.__file__} hides the module of this name in the current folder: rename yours"
            )
        raise UnknownName("function", function_name, names).with_message(
            message, module=module_name, hides=hides
        )
    return function  # type: ignore[no-any-return]  # checked above


def _hides_one_here(module: ModuleType) -> bool:
    """Return whether the current folder, last on the import path, has another module with this name."""
    here, name = Path.cwd(), module.__name__.partition(".")[0]
    there = (here / f"{name}.py").is_file() or (here / name).is_dir()
    return there and here not in Path(module.__file__ or here).parents


def _import(name: str) -> ModuleType:
    try:
        return user_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists, but an import inside it failed
        message = f"there is no module {error.name}: add its folder to PYTHONPATH"
        raise UsageError(message, "missing_module", module=error.name) from None


def _call(what: str, act: Callable[[], Any]) -> Any:
    """Return `act()`. Raise JobError, with the traceback, if the user's code raises an exception."""
    try:
        return act()
    except OddlotError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - raised again as a JobError
        reason = trace_of(error)
        raise JobError(f"{what} failed:\n{reason}", "user_code_failed", where=what, reason=reason) from None


def _as_text(parameter: Parameter | None, value: Any) -> Any:
    """Return the text of a number for an option of type str, because `--set` reads numbers as TOML does."""
    is_text = parameter is not None and parameter.annotation is str
    return str(value) if is_text and type(value) in {int, float} else value


def _check_options(name: str, known: Mapping[str, Parameter], options: Mapping[str, Any]) -> None:
    """Raise UsageError, with the option as key, unless the workload's function has these parameters."""
    if any(parameter.kind is Parameter.VAR_KEYWORD for parameter in known.values()):
        return
    for key, value in options.items():
        if key not in known:
            message = f"{key} is not an option of the workload {name}. {or_nearest(key, known)}"
            raise UnknownName("option", key, known, key=key).with_message(message, workload=name)
        kind = known[key].annotation
        if (
            kind in {int, float, str, bool}
            and type(value) is not kind
            and (kind, type(value)) != (float, int)
        ):
            message = f"{key} = {value!r}: the workload {name} takes a value of type {kind.__name__}"
            raise InvalidValue(key, value, f"of type {kind.__name__}").with_message(message, workload=name)
    for key, parameter in known.items():
        if parameter.default is Parameter.empty and key not in options:
            message = f"{key} is missing: the workload {name} needs this option"
            raise UsageError(message, "missing_option", key, workload=name)
