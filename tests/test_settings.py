"""Job files and `--set`: what good ones mean, and what each bad one is told."""

import ast
import inspect
import textwrap
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from oddlot import settings
from oddlot.core.errors import UsageError
from oddlot.core.rules import SGD, Adam, AdamW
from oddlot.core.switching import ByPlateau
from oddlot.engines.on_local import Local
from oddlot.listed import describe_settings
from oddlot.machines.tables import settings_of
from oddlot.settings import JobFile, Override
from oddlot.strategies import (
    BY_NAME,
    INSIDE,
    WRAPPERS,
    AdaptiveK,
    AdaptiveLoad,
    Asynchronous,
    FastestK,
    LocalSGD,
    Quorum,
    Synchronous,
)
from oddlot.train.schedules import Cosine, Linear, MultiStep
from oddlot.wire.codec import Half, Plain

JOB = """\
task = "digits"
until = "epochs>=2"
workers = 3
codec = "fp16"

[task_options]
hidden = 16

[strategy]
name = "local_sgd"
steps = 4
server = { momentum = 0.9 }

[job]
batch = 8
optimizer = { lr = 0.5 }
"""


def read(folder: Path, text: str, *sets: str) -> JobFile:
    path = folder / "job.toml"
    path.write_text(text)
    return JobFile.read(str(path), [Override.parse(text) for text in sets])


def told(folder: Path, text: str, *sets: str) -> str:
    """The sentence that a bad job file gets, without its folder."""
    with pytest.raises(UsageError) as refusal:
        use(read(folder, text, *sets))
    return str(refusal.value).replace(f"{folder}/", "")


def use(file: JobFile) -> None:
    file.strategy()
    file.local()
    file.fit_options()
    file.job()


def test_a_job_file_says_everything(tmp_path: Path) -> None:
    file = read(tmp_path, JOB)
    assert file.strategy() == LocalSGD(steps=4, server=SGD(lr=1.0, momentum=0.9))
    assert file.local() == Local(workers=3)
    assert file.fit_options() == {"until": "epochs>=2", "codec": Half("fp16")}
    assert file.name == "job"
    job = file.job()
    assert job.batch == 8
    assert job.optimizer == SGD(lr=0.5, momentum=0.9), "the task's own, with another lr"
    assert job.model()[-1].in_features == 16  # type: ignore[index]


def test_the_module_s_own_example_is_valid(tmp_path: Path) -> None:
    example = (settings.__doc__ or "").partition("\n\n")[2]
    assert read(tmp_path, example).strategy() == LocalSGD(8, SGD(lr=0.7, momentum=0.9, nesterov=True))


def test_a_task_alone_takes_the_defaults() -> None:
    file = JobFile.read("digits")
    assert file.strategy() == Synchronous()
    assert file.local() == Local()
    assert file.fit_options() == {}
    assert file.name == "digits"
    assert JobFile.read("package.module:function").name == "function"


def test_the_command_line_wins(tmp_path: Path) -> None:
    file = read(tmp_path, JOB, "strategy.server.lr=0.1", "until=loss<=1e-3", "workers=1", "codec=plain")
    assert file.strategy() == LocalSGD(4, SGD(lr=0.1, momentum=0.9))
    assert file.fit_options() == {"until": "loss<=1e-3", "codec": Plain()}
    assert file.local() == Local(workers=1)


def test_another_strategy_leaves_the_old_one_s_settings_behind(tmp_path: Path) -> None:
    assert read(tmp_path, JOB, "strategy.k=3", "strategy.name=fastest_k").strategy() == FastestK(3)
    assert read(tmp_path, JOB, "strategy.name=local_sgd").strategy() == LocalSGD(4, SGD(1.0, 0.9)), (
        "the same one"
    )


@pytest.mark.parametrize(
    ("sets", "optimizer"),
    [
        ([], SGD(lr=0.5, momentum=0.9)),
        (["job.optimizer.nesterov=true"], SGD(lr=0.5, momentum=0.9, nesterov=True)),
        (["job.optimizer.kind=adam"], Adam()),
        (["job.optimizer.betas=[0.5, 0.6]", "job.optimizer.kind=adamw"], AdamW(betas=(0.5, 0.6))),
        (["job.optimizer.kind=sgd"], SGD()),
    ],
)
def test_an_optimizer_is_changed_or_chosen(tmp_path: Path, sets: list[str], optimizer: Any) -> None:
    assert read(tmp_path, JOB, *sets).job().optimizer == optimizer


@pytest.mark.parametrize(
    ("sets", "schedule"),
    [
        ([], None),
        (["job.schedule.kind=cosine", "job.schedule.epochs=30"], Cosine(30)),
        (["job.schedule={kind = 'linear', epochs = 9.5, floor = 0.1}"], Linear(9.5, floor=0.1)),
        (["job.schedule=steps", "job.schedule.at_epochs=[10, 20.5]"], MultiStep((10, 20.5))),
    ],
)
def test_a_schedule_is_chosen(tmp_path: Path, sets: list[str], schedule: Any) -> None:
    assert read(tmp_path, JOB, *sets).job().schedule == schedule


def test_another_schedule_leaves_the_old_one_s_settings_behind(tmp_path: Path) -> None:
    text = JOB + '[job.schedule]\nkind = "linear"\nepochs = 20\nfloor = 0.5\n'
    assert read(tmp_path, text, "job.schedule.epochs=30").job().schedule == Linear(30, floor=0.5)
    other = read(tmp_path, text, "job.schedule.epochs=30", "job.schedule.kind=cosine")
    assert other.job().schedule == Cosine(30)


def test_a_gradient_is_clipped_if_that_is_said(tmp_path: Path) -> None:
    assert read(tmp_path, JOB).job().clip_norm is None
    assert read(tmp_path, JOB, "job.clip_norm=1").job().clip_norm == 1.0


@pytest.mark.parametrize(
    ("schedule", "sentence"),
    [
        (
            'kind = "cosin"\nepochs = 3',
            "3: unknown schedule `cosin`: did you mean `cosine`? There are: cosine, linear",
        ),
        ("epochs = 3", "2: schedule needs `kind`: there are: cosine, linear, steps"),
        ('kind = "cosine"', "2: `epochs` is missing in `job.schedule`"),
        ('kind = "cosine"\nepoch = 3', "4: unknown key `epoch` of Cosine: did you mean `epochs`?"),
        ('kind = "linear"\nepochs = -3', "4: `job.schedule.epochs` is -3: it must be finite and above 0"),
        ('kind = "linear"\nepochs = "3"', "4: `job.schedule.epochs` is '3': it must be a valid number"),
        ('kind = "cosine"\nepochs = 3\nfloor = 2', "5: `job.schedule.floor` is 2: it must be from 0 to 1"),
        (
            'kind = "cosine"\nepochs = 3\nwarmup_epochs = 5',
            "5: warmup_epochs = 5 must be less than epochs = 3",
        ),
        (
            'kind = "steps"\nat_epochs = [2, 1]',
            "4: `job.schedule.at_epochs` is [2, 1]: it must be a list of numbers above 0, each above the one before",
        ),
        (
            'kind = "steps"\nat_epochs = 2',
            "4: `job.schedule.at_epochs` is 2: it must be a list, in brackets",
        ),
    ],
)
def test_a_fault_in_a_schedule_is_told_with_its_line(tmp_path: Path, schedule: str, sentence: str) -> None:
    answer = told(tmp_path, f'task = "digits"\n[job.schedule]\n{schedule}\n')
    assert f"job.toml:{sentence}" in answer


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            '"digits"',
            '"digts"',
            "job.toml:1: unknown task `digts`: did you mean `digits`? There are: cifar10, digits,",
        ),
        ("until", "untl", "job.toml:2: unknown key `untl`: did you mean `until`?"),
        ("workers = 3", "workers = 0", "job.toml:3: `workers` is 0: it must be at least 1"),
        ("workers = 3", "workers = 2.5", "job.toml:3: `workers` is 2.5: it must be a valid integer"),
        (
            '"fp16"',
            '"fp8"',
            "job.toml:4: unknown codec `fp8`: did you mean `fp16`? There are: bf16, fp16, nonzero",
        ),
        ("hidden", "hiddn", "job.toml:7: hiddn is no option of the task digits: did you mean `hidden`?"),
        (
            "hidden = 16",
            "hidden = '16'",
            "job.toml:7: hidden = '16': the task digits takes a value of type int",
        ),
        (
            "hidden = 16",
            "hidden = 2026-01-02",
            "job.toml:7: `task_options.hidden` is 2026-01-02: write a date or a time as a text, in quotes",
        ),
        ("hidden = 16", "hidden = 0", "job.toml:7: hidden = 0: the network needs at least 1 hidden unit"),
        (
            "local_sgd",
            "locl_sgd",
            "job.toml:10: unknown strategy `locl_sgd`: did you mean `local_sgd`? There are",
        ),
        (
            "steps",
            "step",
            "job.toml:11: unknown key `step` of LocalSGD: did you mean `steps`? There are: name, server, steps",
        ),
        ("steps = 4", "round = {}", "job.toml:11: unknown key `round`"),
        ("steps = 4", "steps = 'x'", "job.toml:11: `strategy.steps` is 'x': it must be a valid integer"),
        ("momentum", "momentm", "job.toml:12: unknown key `momentm`: did you mean `momentum`?"),
        ("[strategy]", "[strategies]", "job.toml:9: unknown key `strategies`: did you mean `strategy`?"),
        ("batch = 8", "batch = 0", "job.toml:15: `job.batch` is 0: it must be at least 1"),
        ("batch = 8", "clip_nrm = 1", "job.toml:15: unknown key `clip_nrm`: did you mean `clip_norm`?"),
        ("batch = 8", "clip_norm = 0", "job.toml:15: `job.clip_norm` is 0: it must be finite and above 0"),
        ("{ lr", "{ betas", "job.toml:16: `job.optimizer.betas` is 0.5: it must be a list, in brackets"),
        ("momentum", "eps", "job.toml:12: eps is no setting of SGD(lr=1.0"),
        ("lr = 0.5", "eps = 1e-8", "job.toml:16: eps is no setting of SGD(lr=0.03, momentum=0.9"),
        ("{ lr = 0.5", "{ kind = 'adm'", "job.toml:16: unknown optimizer `adm`: did you mean `adam`?"),
        ("{ lr = 0.5 }", "'adm'", "job.toml:16: unknown optimizer `adm`: did you mean `adam`?"),
        ("{ lr = 0.5 }", "3", "job.toml:16: optimizer = 3 is neither a table nor a name"),
        ('task = "digits"\n', "", "job.toml:1: `task` is missing"),
    ],
)
def test_a_fault_in_a_file_is_told_with_its_line(
    tmp_path: Path, before: str, after: str, sentence: str
) -> None:
    assert before in JOB
    answer = told(tmp_path, JOB.replace(before, after, 1))
    assert answer.startswith(sentence)
    assert "\n" not in answer


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("strategy.stesp=3", "unknown key `stesp` of LocalSGD: did you mean `steps`?"),
        ("strategy.name=fastest", "unknown strategy `fastest`: did you mean `fastest_k`?"),
        ("strategy.server.lr=fast", "`strategy.server.lr` is 'fast': it must be a valid number"),
        ("strategy.steps.x=1", "`steps` is 4, which has no settings"),
        ("strategy=fastest", "unknown strategy `fastest`: did you mean `fastest_k`?"),
        ("job.schedule=cosin", "unknown schedule `cosin`: did you mean `cosine`?"),
        ("job.schedule.epochs=3", "schedule needs `kind`: there are: cosine, linear, steps"),
        ("job.clip_norm=none", "`job.clip_norm` is 'none': it must be a valid number"),
        ("job.optimizer.kind=[]", "unknown optimizer `[]`: there are: adam, adamw, sgd"),
        ("task_options.hidden=-1", "hidden = -1: the network needs at least 1"),
        ("workrs=3", "unknown key `workrs`: did you mean `workers`?"),
        ("until=", "`until` is empty"),
        ("checkpoint_every=often", "checkpoint_every = 'often' is not a rhythm such as"),
        ("until=3", "`until` is 3: it must be a valid string"),
        ("task=mist", "unknown task `mist`: did you mean `mnist`?"),
        ("strategy", "write a setting and its value, such as --set strategy.k=3"),
        ("strategy..k=1", "write a setting and its value"),
        ("=1", "write a setting and its value"),
    ],
)
def test_a_fault_on_the_command_line_is_told_with_its_words(
    tmp_path: Path, setting: str, sentence: str
) -> None:
    assert told(tmp_path, JOB, setting).startswith(f"--set {setting}: {sentence}")


def test_a_value_of_brackets_in_brackets_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--set strategy\.k: its value has too many brackets"):
        Override.parse(f"strategy.k={'[' * 5_000}")


def test_a_table_may_be_its_name_alone(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('task = "digits"\nstrategy = "fastest_k"\n[job]\noptimizer = "adam"\n')
    settings = JobFile.read(
        str(path), [Override.parse("strategy.k=3"), Override.parse("job.optimizer.lr=0.5")]
    )
    assert settings.strategy() == FastestK(k=3)
    assert settings.job().optimizer == Adam(lr=0.5)
    other = [Override.parse("strategy=local_sgd"), Override.parse("strategy.server=adam")]
    assert JobFile.read(str(path), other).strategy() == LocalSGD(server=Adam())


def test_the_kind_that_is_there_already_changes_nothing_else() -> None:
    """Its settings are those that are listed, and not those of its class."""
    words = ["strategy=local_sgd", "strategy.server=sgd", "strategy.server.momentum=0.9"]
    found = JobFile.read("digits", [Override.parse(text) for text in words])
    assert found.strategy() == LocalSGD(server=SGD(lr=1.0, momentum=0.9))


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
def test_naming_what_a_file_has_unnamed_keeps_its_settings(text: str, word: str, tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text(f'task = "digits"\n[strategy]\n{text}\n')
    named = JobFile.read(str(path), [Override.parse(word)]).strategy()
    assert named == JobFile.read(str(path)).strategy()


def test_a_kind_is_made_with_what_stands_beside_it() -> None:
    """A momentum that is not said is there already, which `nesterov` needs."""
    words = ["strategy=quorum", "strategy.inner.server.kind=sgd", "strategy.inner.server.nesterov=true"]
    found = JobFile.read("digits", [Override.parse(text) for text in words]).strategy()
    assert found == Quorum(LocalSGD(server=SGD(0.7, 0.9, nesterov=True)))


def test_rows_are_lists_of_lists(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('task = "digits"\n[strategy]\nname = "adaptive_k"\ntimes = [[1.0, 2], [2.0, 3]]\n')
    assert JobFile.read(str(path)).strategy() == AdaptiveK(times=((1.0, 2), (2.0, 3)))
    words = [Override.parse(text) for text in ("strategy=adaptive_load", "strategy.table=[[1, 4, 0.5]]")]
    assert JobFile.read(str(path), words).strategy() == AdaptiveLoad(((1, 4, 0.5),))
    words = [Override.parse(text) for text in ("strategy=adaptive_k", "strategy.switch=plateau")]
    assert JobFile.read("digits", words).strategy() == AdaptiveK(switch=ByPlateau())
    with pytest.raises(UsageError, match="unknown switch `error`: there are: gradients, plateau"):
        JobFile.read("digits", [*words[:1], Override.parse("strategy.switch=error")])
    told = r"`strategy.times\[0\]\[1\]` is 'x': it must be a valid integer"
    with pytest.raises(UsageError, match=told):
        JobFile.read(str(path), [Override.parse("strategy.times=[[1.0, 'x']]")]).strategy()


def test_what_is_found_out_later_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "job.toml"
    path.write_text('task = "digits"\nseed = 3\n[strategy]\nname = "fastest_k"\nk = 9\n[job]\nbatch = 9\n')
    source = JobFile.read(str(path), [Override.parse("workers=5")]).source
    for key, place in {
        "seed": f"{path}:2: ",
        "batch": f"{path}:7: ",
        "k": f"{path}:5: ",
        "workers": "--set workers=5: ",
        "shards": "",
        "": "",
        "name": f"{path}:4: ",
    }.items():
        with pytest.raises(UsageError) as error, source.placed((), ("job",), ("strategy",)):
            raise UsageError("it is bad", key)
        assert str(error.value) == f"{place}it is bad"
    with pytest.raises(UsageError, match=r":2: seed = 3: it is bad"), source.placed((), ("job",)):
        raise UsageError("seed = 3: it is bad", "seed")


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    bad = JOB.replace("workers = 3", "workers = 0").replace("steps = 4", "steps = 4.5")
    answer = told(tmp_path, bad.replace("batch = 8", "seed = 3").replace("lr = 0.5", "momentum = 1"))
    places = [line.partition(" ")[0] for line in answer.splitlines()]
    assert places == ["job.toml:3:", "job.toml:11:", "job.toml:15:", "job.toml:16:"]


def test_a_bad_task_without_a_file_is_just_told() -> None:
    with pytest.raises(UsageError, match=r"^unknown task `digt`: did you mean `digits`\?"):
        JobFile.read("digt")
    with pytest.raises(UsageError, match=r"absent\.toml cannot be read: No such file"):
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
        ("", ""),
    ],
)
def test_a_value_is_toml_or_else_a_text(text: str, value: Any) -> None:
    assert Override.parse(f"a.b={text}") == Override(f"--set a.b={text}", ("a", "b"), value)


def test_state_is_no_setting() -> None:
    @dataclass
    class Strange:
        least: int
        names: tuple[str, str] = ("a", "b")
        seen: list[int] = field(default_factory=list)
        sums: dict[str, float] = field(default_factory=dict)

    assert list(settings_of(Strange)) == ["least", "names"]


@pytest.mark.parametrize("name", [*BY_NAME, *WRAPPERS])
def test_every_setting_of_a_strategy_is_described_and_can_be_set(name: str) -> None:
    """What `oddlot strategies` prints is itself a job file's text."""
    kind: Any = {**BY_NAME, **WRAPPERS}[name]
    lines = list(describe_settings(kind, "strategy."))
    plain = tomllib.loads("\n".join(lines)).get("strategy", {})
    made = kind(INSIDE.get(kind, Synchronous)()) if name in WRAPPERS else kind()
    assert JobFile.read("digits", [Override("", ("strategy",), {"name": name} | plain)]).strategy() == made
    told_of = (line for line in lines if not line.startswith("#   "))  # that is what other kinds would have
    assert {line.split(".")[1].split(" ")[0] for line in told_of} == settings_of(kind).keys()


def test_only_kinds_that_a_setting_may_have_are_listed() -> None:
    kinds = {kind: "\n".join(describe_settings(kind, "")) for kind in (AdaptiveK, AdaptiveLoad)}
    assert 'switch.kind = "gradients"   # gradients, plateau\n' in kinds[AdaptiveK]
    assert 'switch.kind = "gradients"   # gradients, plateau, error\n' in kinds[AdaptiveLoad]


def test_a_setting_s_meaning_is_what_stands_beneath_it() -> None:
    (meaning,) = (line for line in describe_settings(Asynchronous, "") if line.startswith("# samples"))
    source = ast.parse(textwrap.dedent(inspect.getsource(Asynchronous)))
    assert meaning == "# samples = ...   # per task; left out: the job's batch"
    assert "per task; None: the job's batch" in ast.unparse(source)
