"""Job files and `--set`: the settings of valid files, and the errors of invalid files."""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from oddlot.config import job_file
from oddlot.config.job_file import JobFile
from oddlot.config.overrides import Override
from oddlot.config.strategy_tables import describe_settings
from oddlot.core.optimizers import SGD, Adam, AdamW
from oddlot.core.strategy import Strategy
from oddlot.core.support.errors import UsageError, UsageErrors
from oddlot.core.support.validation import settings_of
from oddlot.engines.local.config import Local
from oddlot.engines.ray.config import Ray
from oddlot.machines.buying import Buying
from oddlot.strategies import AdaptiveK, AdaptiveLoad, FastestK, LocalSGD, Quorum, Synchronous
from oddlot.strategies.registry import BY_NAME, INSIDE, WRAPPERS
from oddlot.strategies.support.stage_switching import ByPlateau
from oddlot.train.lr_schedules import Cosine, Linear, MultiStep
from tests.transcripts import raises, transcribe

JOB = """\
[workload]
name = "digits"
hidden = 16

[run]
until = "epochs>=2"
codec = "fp16"

[engine]
workers = 3

[strategy]
name = "local_sgd"
steps = 4
server = { momentum = 0.9 }

[job]
batch_size = 8
optimizer = { lr = 0.5 }
"""


def read(folder: Path, text: str, *sets: str) -> JobFile:
    path = folder / "job.toml"
    path.write_text(text)
    return JobFile.read(str(path), [Override.parse(text) for text in sets])


def rejected(folder: Path, text: str, code: str, *sets: str, **fields: Any) -> None:
    """Assert that reading the job file with these settings raises this error."""
    with raises(UsageError, code, **fields) as caught:
        use(read(folder, text, *sets))
    assert caught.fields.get("path") == (None if sets else str(folder / "job.toml"))


def use(file: JobFile) -> None:
    file.strategy()
    file.engine()
    file.run_settings()
    file.job()


def test_complete_job_file_is_read(tmp_path: Path) -> None:
    file = read(tmp_path, JOB)
    assert file.strategy() == LocalSGD(steps=4, server=SGD(lr=1.0, momentum=0.9))
    assert file.engine() == Local(workers=3)
    assert file.run_settings() == {"until": "epochs>=2", "codec": "fp16"}
    assert file.name == "job"
    job = file.job()
    assert (job.batch_size, job.lr_schedule, job.max_grad_norm) == (8, None, None)
    assert job.optimizer == SGD(lr=0.5, momentum=0.9), "the workload's own, with another lr"
    assert job.model()[-1].in_features == 16  # type: ignore[index]


def test_example_in_the_module_docstring_is_valid(tmp_path: Path) -> None:
    example = (job_file.__doc__ or "").partition("\n\n")[2]
    assert read(tmp_path, example).strategy() == LocalSGD(8, SGD(lr=0.7, momentum=0.9, nesterov=True))


def test_workload_name_alone_uses_the_defaults() -> None:
    file = JobFile.read("digits")
    assert file.strategy() == Synchronous()
    assert file.engine() == Local()
    assert file.run_settings() == {}
    assert file.name == "digits"
    assert JobFile.read("package.module:function").name == "function"


def test_set_options_override_the_job_file(tmp_path: Path) -> None:
    file = read(
        tmp_path, JOB, "strategy.server.lr=0.1", "run.until=loss<=1e-3", "engine.workers=1", "run.codec=plain"
    )
    assert file.strategy() == LocalSGD(4, SGD(lr=0.1, momentum=0.9))
    assert file.run_settings() == {"until": "loss<=1e-3", "codec": "plain"}
    assert file.engine() == Local(workers=1)


def test_changing_the_strategy_drops_its_settings(tmp_path: Path) -> None:
    assert read(tmp_path, JOB, "strategy.k=3", "strategy.name=fastest_k").strategy() == FastestK(3)
    same = read(tmp_path, JOB, "strategy.name=local_sgd").strategy()
    assert same == LocalSGD(4, SGD(1.0, 0.9))


@pytest.mark.parametrize(
    ("sets", "changed"),
    [
        (["optimizer.nesterov=true"], SGD(lr=0.5, momentum=0.9, nesterov=True)),
        (["optimizer.kind=adam"], Adam()),
        (["optimizer.betas=[0.5, 0.6]", "optimizer.kind=adamw"], AdamW(betas=(0.5, 0.6))),
        (["optimizer.kind=sgd"], SGD()),
        (["lr_schedule.kind=cosine", "lr_schedule.epochs=30"], Cosine(30)),
        (["lr_schedule={kind = 'linear', epochs = 9.5, floor = 0.1}"], Linear(9.5, floor=0.1)),
        (["lr_schedule=steps", "lr_schedule.at_epochs=[10, 20.5]"], MultiStep((10, 20.5))),
        (["max_grad_norm=1"], 1.0),
    ],
)
def test_job_settings_are_changed_by_set_options(tmp_path: Path, sets: list[str], changed: Any) -> None:
    job = read(tmp_path, JOB, *(f"job.{text}" for text in sets)).job()
    assert getattr(job, re.split(r"\W", sets[0])[0]) == changed


def test_setting_of_an_optimizer_made_by_a_function_is_rejected() -> None:
    sets = [Override.parse(f"job.optimizer.{text}") for text in ("lr=0.1", "kind=adam")]
    with raises(UsageError, "made_by_function", flag="--set job.optimizer.lr=0.1"):
        JobFile.read("char_lm", sets[:1]).job()
    assert JobFile.read("char_lm", sets).job().optimizer == Adam(lr=0.1)


def test_changing_the_schedule_drops_its_settings(tmp_path: Path) -> None:
    text = JOB + '[job.lr_schedule]\nkind = "linear"\nepochs = 20\nfloor = 0.5\n'
    assert read(tmp_path, text, "job.lr_schedule.epochs=30").job().lr_schedule == Linear(30, floor=0.5)
    other = read(tmp_path, text, "job.lr_schedule.epochs=30", "job.lr_schedule.kind=cosine")
    assert other.job().lr_schedule == Cosine(30)


def test_all_errors_are_reported_at_once(tmp_path: Path) -> None:
    with raises(UsageErrors, "several_errors") as caught:
        read(tmp_path, 'workload = "digits"\n[job.lr_schedule]\nkind = "cosine"\nepoch = 3')
    message = [(error.code, error.fields["line"]) for error in caught.value.errors]
    assert message == [("missing_key", 2), ("unknown_key", 4)]
    bad = JOB.replace("workers = 3", "workers = 0").replace("steps = 4", "steps = 4.5")
    with raises(UsageErrors, "several_errors") as caught:
        read(tmp_path, bad.replace("batch_size = 8", "seed = 3").replace("lr = 0.5", "momentum = 1"))
    assert [error.fields["line"] for error in caught.value.errors] == [10, 14, 18, 19]


@pytest.mark.parametrize(
    ("before", "after", "code", "fields"),
    [
        ('"digits"', '"digts"', "unknown_name", {"line": 2, "kind": "workload", "nearest": "digits"}),
        ("until", "untl", "unknown_key", {"line": 6, "given": "untl", "nearest": "until"}),
        ("workers = 3", "workers = 0", "invalid_value", {"line": 10, "name": "engine.workers", "given": 0}),
        (
            "workers = 3",
            "workers = 2.5",
            "invalid_value",
            {"line": 10, "name": "engine.workers", "given": 2.5},
        ),
        ("workers = 3", "kind = 'ray'\nworkers = [16, 2]", "invalid_value", {"line": 11, "given": [16, 2]}),
        ("workers = 3", "workers = [2, 16]", "range_of_workers", {"line": 10, "given": [2, 16]}),
        ("workers = 3", "kind = 'rai'", "unknown_name", {"line": 10, "kind": "engine", "nearest": "ray"}),
        (
            "workers = 3",
            "num_gpus = 1",
            "setting_of_another_engine",
            {"line": 10, "engine": "local", "name": "num_gpus"},
        ),
        (
            "workers = 3",
            "threads = 2\nkind = 'ray'",
            "setting_of_another_engine",
            {"line": 10, "engine": "ray", "name": "threads"},
        ),
        ('"fp16"', '"fp8"', "unknown_name", {"line": 7, "kind": "codec", "nearest": "fp16"}),
        ("hidden", "hiddn", "unknown_name", {"line": 3, "kind": "option", "nearest": "hidden"}),
        ("hidden = 16", "hidden = '16'", "invalid_value", {"line": 3, "name": "hidden", "given": "16"}),
        ("hidden = 16", "hidden = 2026-01-02", "date_without_quotes", {"line": 3}),
        ("hidden = 16", "hidden = 0", "invalid_value", {"line": 3, "name": "hidden", "given": 0}),
        ("local_sgd", "locl_sgd", "unknown_name", {"line": 13, "kind": "strategy", "nearest": "local_sgd"}),
        ("steps", "step", "unknown_key", {"line": 14, "given": "step", "nearest": "steps"}),
        ("steps = 4", "round = {}", "unknown_key", {"line": 14, "given": "round", "nearest": None}),
        ("steps = 4", "steps = 'x'", "invalid_value", {"line": 14, "name": "strategy.steps"}),
        ("momentum", "momentm", "unknown_key", {"line": 15, "given": "momentm", "nearest": "momentum"}),
        ("[strategy]", "[strategies]", "unknown_key", {"line": 12, "nearest": "strategy"}),
        (
            "[workload]",
            'task = "digits"\n[workload]',
            "unknown_key",
            {"line": 1, "given": "task", "nearest": "workload.name"},
        ),
        ("batch_size = 8", "batch_size = 0", "invalid_value", {"line": 18, "name": "job.batch_size"}),
        ("batch_size = 8", "max_grad_nrm = 1", "unknown_key", {"line": 18, "nearest": "max_grad_norm"}),
        ("batch_size = 8", "max_grad_norm = 0", "invalid_value", {"line": 18, "name": "job.max_grad_norm"}),
        ("{ lr", "{ betas", "invalid_value", {"line": 19, "name": "job.optimizer.betas"}),
        ("momentum", "eps", "setting_of_another_kind", {"line": 15, "given": "eps", "kind": "SGD"}),
        ("lr = 0.5", "eps = 1e-8", "setting_of_another_kind", {"line": 19, "given": "eps", "kind": "SGD"}),
        ("{ lr = 0.5", "{ kind = 'adm'", "unknown_name", {"line": 19, "kind": "optimizer"}),
        ("{ lr = 0.5 }", "'adm'", "unknown_name", {"line": 19, "kind": "optimizer", "given": "adm"}),
        ("{ lr = 0.5 }", "3", "neither_table_nor_name", {"line": 19, "name": "optimizer"}),
        ('name = "digits"\n', "", "missing_key", {"line": 1, "name": "workload.name"}),
        ("batch_size = 8", "lr_schedule = {kind='cosin'}", "unknown_name", {"line": 18, "nearest": "cosine"}),
        ("batch_size = 8", "lr_schedule = {epochs=3}", "missing_kind", {"line": 18, "name": "lr_schedule"}),
        (
            "batch_size = 8",
            "lr_schedule = {kind='cosine'}",
            "missing_key",
            {"name": "job.lr_schedule.epochs"},
        ),
        ("batch_size = 8", "lr_schedule = {kind='linear', epochs=-3}", "invalid_value", {"given": -3}),
        ("batch_size = 8", "lr_schedule = {kind='linear', epochs='3'}", "invalid_value", {"given": "3"}),
        ("batch_size = 8", "lr_schedule = {kind='linear', epochs=3, floor=2}", "invalid_value", {"given": 2}),
        (
            "batch_size = 8",
            "lr_schedule = {kind='cosine', epochs=3, warmup_epochs=5}",
            "invalid_value",
            {"given": 5},
        ),
        (
            "batch_size = 8",
            "lr_schedule = {kind='steps', at_epochs=[2, 1]}",
            "invalid_value",
            {"given": [2, 1]},
        ),
        ("batch_size = 8", "lr_schedule = {kind='steps', at_epochs=2}", "invalid_value", {"given": 2}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_error_in_a_file_has_its_line(
    tmp_path: Path, before: str, after: str, code: str, fields: dict[str, Any]
) -> None:
    assert before in JOB
    rejected(tmp_path, JOB.replace(before, after, 1), code, **fields)


@pytest.mark.parametrize(
    ("setting", "code", "fields"),
    [
        ("strategy.stesp=3", "unknown_key", {"given": "stesp", "nearest": "steps"}),
        ("strategy.name=fastest", "unknown_name", {"kind": "strategy", "nearest": "fastest_k"}),
        ("strategy.server.lr=fast", "invalid_value", {"name": "strategy.server.lr", "given": "fast"}),
        ("strategy.steps.x=1", "no_table", {"name": "steps", "given": 4}),
        ("strategy=fastest", "unknown_name", {"kind": "strategy", "nearest": "fastest_k"}),
        ("job.lr_schedule=cosin", "unknown_name", {"kind": "lr_schedule", "nearest": "cosine"}),
        ("job.lr_schedule.epochs=3", "missing_kind", {"name": "lr_schedule"}),
        ("job.max_grad_norm=none", "invalid_value", {"name": "job.max_grad_norm", "given": "none"}),
        ("job.optimizer.kind=[]", "unknown_name", {"kind": "optimizer", "given": "[]"}),
        ("workload.hidden=-1", "invalid_value", {"name": "hidden", "given": -1}),
        ("engine.num_cpus=3", "setting_of_another_engine", {"engine": "local", "name": "num_cpus"}),
        ("engine.workers=[1, 2]", "range_of_workers", {"given": [1, 2]}),
        ("engine.workrs=3", "unknown_key", {"given": "workrs", "nearest": "workers"}),
        ("until=3", "unknown_key", {"given": "until", "nearest": "run.until"}),
        ("run.workers=3", "unknown_key", {"given": "workers", "nearest": "engine.workers"}),
        ("job.lr=3", "unknown_key", {"given": "lr", "nearest": "job.optimizer.lr"}),
        ("epochs=3", "unknown_key", {"given": "epochs", "nearest": "run.until"}),
        ("run.until=", "empty_value", {"name": "run.until"}),
        ("run.checkpoint_every=often", "invalid_value", {"name": "checkpoint_every", "given": "often"}),
        ("run.until=3", "invalid_value", {"name": "run.until", "given": 3}),
        ("workload=mist", "unknown_name", {"kind": "workload", "nearest": "mnist"}),
        ("strategy", "no_setting_and_value", {}),
        ("strategy..k=1", "no_setting_and_value", {}),
        ("=1", "no_setting_and_value", {}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_error_on_the_command_line_has_its_flag(
    tmp_path: Path, setting: str, code: str, fields: dict[str, Any]
) -> None:
    rejected(tmp_path, JOB, code, setting, flag=f"--set {setting}", **fields)


def test_deeply_nested_value_is_rejected() -> None:
    with raises(UsageError, "nested_too_deeply", flag="--set strategy.k"):
        Override.parse(f"strategy.k={'[' * 5_000}")


def test_table_can_be_given_as_a_name(tmp_path: Path) -> None:
    text = 'workload = "digits"\nstrategy = "fastest_k"\nengine = "ray"\n[job]\noptimizer = "adam"\n'
    settings = read(tmp_path, text, "strategy.k=3", "job.optimizer.lr=0.5", "engine.workers=3")
    assert settings.strategy() == FastestK(k=3)
    assert settings.engine() == Ray(3)
    assert settings.job().optimizer == Adam(lr=0.5)
    other = read(tmp_path, text, "strategy=local_sgd", "strategy.server=adam")
    assert other.strategy() == LocalSGD(server=Adam())


@pytest.mark.parametrize(
    ("sets", "strategy"),
    [
        # the strategy sets the server's defaults, not the class SGD
        (["=local_sgd", ".server=sgd", ".server.momentum=0.9"], LocalSGD(server=SGD(1.0, 0.9))),
        # `nesterov` needs a momentum: the strategy's default
        (
            ["=quorum", ".inner.server.kind=sgd", ".inner.server.nesterov=true"],
            Quorum(LocalSGD(server=SGD(0.7, 0.9, nesterov=True))),
        ),
        (["=adaptive_k", ".switch=plateau"], AdaptiveK(switch=ByPlateau())),
        (["=adaptive_k", ".times=[[1.0, 2], [2.0, 3]]"], AdaptiveK(times=((1.0, 2), (2.0, 3)))),
        (["=adaptive_load", ".table=[[1, 4, 0.5]]"], AdaptiveLoad(((1, 4, 0.5),))),
    ],
)
def test_set_options_choose_a_strategy(sets: list[str], strategy: Strategy) -> None:
    assert JobFile.read("digits", [Override.parse(f"strategy{text}") for text in sets]).strategy() == strategy


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('name = "local_sgd"\nserver = { momentum = 0.9 }', "strategy.server=sgd"),
        ('name = "quorum"\ninner = { steps = 3 }', "strategy.inner=local_sgd"),
        ('name = "quorum"\ninner = { server = { lr = 0.5 } }', "strategy.inner.server=sgd"),
        ('name = "deadline"\ninner = { samples = 3 }', "strategy.inner=synchronous"),
        ('name = "adaptive_k"\nswitch = { window = 3 }', "strategy.switch=gradients"),
        ("samples = 3", "strategy=synchronous"),
    ],
)
def test_naming_the_default_kind_keeps_the_settings_of_the_file(text: str, word: str, tmp_path: Path) -> None:
    text = f'workload = "digits"\n[strategy]\n{text}\n'
    assert read(tmp_path, text, word).strategy() == read(tmp_path, text).strategy()


def test_invalid_part_of_a_strategy_is_rejected(tmp_path: Path) -> None:
    text = 'workload = "digits"\nstrategy = "adaptive_k"\n'
    rejected(tmp_path, text, "unknown_name", "strategy.switch=error", kind="switch", given="error")
    rejected(tmp_path, text, "invalid_value", "strategy.times=[[1.0, 'x']]", name="strategy.times[0][1]")


@pytest.mark.parametrize(
    ("key", "place"),
    [
        ("seed", {"line": 3}),
        ("batch_size", {"line": 8}),
        ("k", {"line": 6}),
        ("name", {"line": 5}),
        ("workers", {"flag": "--set engine.workers=5"}),
        ("shards", {}),
        ("", {}),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_later_errors_have_the_line_or_flag_of_the_setting(
    tmp_path: Path, key: str, place: dict[str, Any]
) -> None:
    text = (
        'workload = "digits"\n[run]\nseed = 5\n[strategy]\nname = "fastest_k"\nk = 5\n[job]\nbatch_size = 5\n'
    )
    source = read(tmp_path, text, "engine.workers=5").source
    place |= {"path": str(tmp_path / "job.toml")} if "line" in place else {}

    def finds_out() -> None:
        raise UsageError(f"{key} = 5: it is bad", "bad", key)

    with raises(UsageError, "bad") as caught, source.placed_in_any():
        finds_out()
    assert caught.fields == place


def test_unknown_workload_without_a_file_has_no_location() -> None:
    with raises(UsageError, "unknown_name", kind="workload", nearest="digits") as caught:
        JobFile.read("digt")
    assert not {"path", "line", "flag"} & caught.fields.keys()
    with raises(UsageError, "unreadable_file", path="absent.toml"):
        JobFile.read("absent.toml")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("-1e-3", -1e-3),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ('"3"', "3"),
        ("accuracy>=0.98", "accuracy>=0.98"),
        ("/data/mnist", "/data/mnist"),
        ("a=b", "a=b"),
        ("2013-05-31", "2013-05-31"),
        ("9" * 5_000, "9" * 5_000),
        ("", ""),
    ],
    ids=lambda part: str(part)[:20],
)
def test_set_value_is_toml_or_a_string(text: str, value: Any) -> None:
    assert Override.parse(f"a.b={text}") == Override(f"--set a.b={text}", ("a", "b"), value)


def test_setting_is_described_by_its_docstring() -> None:
    @dataclass
    class Strange:
        least: int
        """Minimum."""
        names: tuple[str, str] = ("a", "b")
        most: int | None = None
        """Total. None: without a limit."""
        seen: list[int] = field(default_factory=list)
        sums: dict[str, float] = field(default_factory=dict)
        waiting: list = field(default_factory=list)  # type: ignore[type-arg]  # users write it so

    lines = list(describe_settings(Strange, "it."))
    transcribe("\n".join(lines))
    assert list(settings_of(Strange)) == ["least", "names", "most"], "the others are its state"
    assert [line.partition(" = ")[0] for line in lines] == ["it.least", "it.names", "# it.most"]
    assert lines[0].endswith("   # Minimum.")
    assert lines[1] == 'it.names = ["a", "b"]'
    assert "None" not in lines[2], "which a file has not"


@pytest.mark.parametrize("name", [*BY_NAME, *WRAPPERS])
def test_described_strategy_settings_are_valid_and_complete(name: str) -> None:
    """The output of `oddlot strategies` is valid text for a job file."""
    kind: Any = {**BY_NAME, **WRAPPERS}[name]
    lines = list(describe_settings(kind, "strategy."))
    plain = tomllib.loads("\n".join(lines)).get("strategy", {})
    made = kind(INSIDE.get(kind, Synchronous)()) if name in WRAPPERS else kind()
    assert JobFile.read("digits", [Override("", ("strategy",), {"name": name} | plain)]).strategy() == made
    text_of = (line for line in lines if not line.startswith("#   "))  # settings of other kinds
    assert {line.split(".")[1].split(" ")[0] for line in text_of} == settings_of(kind).keys()


def test_only_kinds_allowed_for_a_setting_are_listed() -> None:
    kinds = {kind: "\n".join(describe_settings(kind, "")) for kind in (AdaptiveK, AdaptiveLoad)}
    assert 'switch.kind = "gradients"   # gradients, plateau\n' in kinds[AdaptiveK]
    assert 'switch.kind = "gradients"   # gradients, plateau, error\n' in kinds[AdaptiveLoad]


@pytest.mark.parametrize(
    ("table", "sets", "engine"),
    [
        ("", [], Local()),
        ('kind = "local"\nworkers = 3', [], Local(3)),
        ("workers = 3", ["kind=ray"], Ray(3)),
        ("workers = [2, 16]\nnum_gpus = 1", ["kind=ray"], Ray((2, 16), num_gpus=1)),
        (
            'kind = "ray"\nworkers = [2, 16]\nnum_gpus = 1',
            ["in_flight=3"],
            Ray((2, 16), num_gpus=1, in_flight=3),
        ),
        ('kind = "ray"', ["resources.spot=1", "workers=[4, 4]"], Ray((4, 4), resources={"spot": 1})),
        ('kind = "ray"\nruntime_env = { working_dir = "." }', [], Ray(runtime_env={"working_dir": "."})),
        ('kind = "ray"', ["address=auto", "lost_after_seconds=3"], Ray(address="auto", lost_after_seconds=3)),
        ('kind = "ray"\nbuying = { deadline_hours = 6 }', [], Ray(buying=Buying(6.0))),
        (
            'kind = "ray"\n[engine.buying]\ndeadline_hours = 6',
            ["buying.policy=greedy"],
            Ray(buying=Buying(6.0, "greedy")),
        ),
        ("", ["kind=ray", "buying.deadline_hours=2"], Ray(buying=Buying(2.0))),
    ],
)
def test_engine_is_chosen_by_file_and_set_options(
    tmp_path: Path, table: str, sets: list[str], engine: Local | Ray
) -> None:
    text = f'workload = "digits"\n[engine]\n{table}\n'
    assert read(tmp_path, text, *(f"engine.{text}" for text in sets)).engine() == engine


def test_engine_validation_errors_have_their_line(tmp_path: Path) -> None:
    with raises(UsageError, "invalid_value", name="engine.workers", line=4):
        read(tmp_path, 'workload = "digits"\n[engine]\nkind = "ray"\nworkers = [2, 20_000]\n')
    with raises(UsageError, "invalid_value", name="engine.buying.deadline_hours", line=4):
        read(tmp_path, 'workload = "digits"\nengine.kind = "ray"\n[engine.buying]\ndeadline_hours = -1\n')
    with raises(UsageError, "too_many_workers", line=3):
        read(tmp_path, 'workload = "digits"\n[engine]\nworkers = 20_000\n')


def test_resume_drops_settings_of_another_engine(tmp_path: Path) -> None:
    before = {"workload": {"name": "digits"}, "engine": {"workers": 3, "threads": 2}}
    ray = Override.parse("engine.kind=ray")
    assert JobFile.read("digits", [ray], before).engine() == Ray(3)
    path = tmp_path / "job.toml"
    path.write_text('workload = "digits"\n')
    earlier = [Override.parse("engine.threads=2"), Override.parse("engine.workers=3")]
    assert JobFile.read(str(path), [ray], earlier=earlier).engine() == Ray(3)
    assert JobFile.read(str(path), earlier=earlier).engine() == Local(3, threads=2)


def test_reading_settings_imports_no_pytorch(tmp_path: Path) -> None:
    """Settings of engines and descriptions of strategies do not import PyTorch."""
    (tmp_path / "job.toml").write_text(JOB)
    program = """\
import sys
import oddlot.cli.app
from oddlot import Local, Machine, Ray, Simulated
from oddlot.cli.completion import keys
from oddlot.config.strategy_tables import describe_settings
from oddlot.config.job_file import JobFile
from oddlot.config.overrides import Override
from oddlot.strategies import AdaptiveK
sets = "engine.kind=ray", "engine.lost_after_seconds=5", "job.batch_size=9", "job.lr_schedule={kind='cosine', epochs=3}"
file = JobFile.read(sys.argv[1], [Override.parse(each) for each in sets])
assert file.engine() == Ray(3, lost_after_seconds=5.0)
file.strategy(), file.run_settings(), Local(), Simulated([Machine("m1", 0.1)])
list(describe_settings(AdaptiveK, "strategy.")), keys()
sys.exit(bool({"torch", "numpy"} & set(sys.modules)))
"""
    path = str(tmp_path / "job.toml")
    assert subprocess.run([sys.executable, "-c", program, path], check=False).returncode == 0
