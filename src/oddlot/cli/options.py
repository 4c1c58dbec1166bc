"""The arguments and options that commands share."""

from typing import Annotated

import typer

from oddlot.cli import completion as completing

Task = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A built-in task, module:function, or a job file (.toml).",
        autocompletion=completing.workloads,
    ),
]
Strategy = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Strategy: see `oddlot strategies`.",
        show_default="synchronous",
        autocompletion=completing.strategies,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="A setting of a job file, such as codec=bf16, in_flight=2, evaluate_every='100 versions', "
        "job.batch_size=64. Repeatable.",
        autocompletion=completing.settings,
    ),
]
Until = Annotated[
    str | None, typer.Option(metavar="GOAL", help='When to stop, such as "accuracy>=0.98 or epochs>=30".')
]
Epochs = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Stop after N epochs: --until 'epochs>=N'. Not with --until."),
]
Rate = Annotated[
    float | None,
    typer.Option(
        "--lr", metavar="RATE", help="Learning rate: --set job.optimizer.lr=RATE.", show_default="the task's"
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Device: auto, cpu, cuda, cuda:1 or mps.",
        show_default="the task's",
        autocompletion=completing.devices,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Folder of the task's files (its option data_dir).", show_default="$ODDLOT_DATA"
    ),
]
Seed = Annotated[int | None, typer.Option(help="Random seed.", show_default="0")]
Out = Annotated[str | None, typer.Option(metavar="DIR", help="Run folder.", show_default="runs/TASK-N")]
SimulatedOut = Annotated[
    str | None, typer.Option(metavar="DIR", help="Run folder.", show_default="runs/TASK-simulated-N")
]
CheckpointEvery = Annotated[
    str | None,
    typer.Option(
        metavar="INTERVAL",
        help='Time between checkpoints, such as "100 versions".',
        show_default="60 seconds",
    ),
]
Checkpoints = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="Another place for checkpoints: a folder, s3://...",
        show_default="in the run folder",
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Resume the run in --out (default: the task's newest run).")
]
Force = Annotated[bool, typer.Option("--force", help="Overwrite the run in --out.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print errors and warnings only.")]
Workers = Annotated[int | None, typer.Option(help="Number of worker processes.", show_default="2")]
ChaosFile = Annotated[str | None, typer.Option("--chaos", metavar="FILE.toml", help="Faults to inject.")]
RunDir = Annotated[str, typer.Argument(metavar="RUN", help="Run folder.")]
Seeds = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Simulate N runs each, spot and on demand: medians and ranges."),
]
Compute = Annotated[
    bool, typer.Option("--compute/--no-compute", help="Train, or only keep the time (for large fleets).")
]
Machines = Annotated[str, typer.Option(metavar="FILE.toml", help="Fleet file.")]
