"""`oddlot export`, for runs of `oddlot train --keep-best`."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

from oddlot.cli import completion
from oddlot.run.saved_weights import READERS
from tests.command import Oddlot
from tests.transcripts import mask


@pytest.mark.parametrize("weights", ["last", "best"])
def test_export_writes_the_weights_of_a_trained_workload(weights: str, oddlot: Oddlot) -> None:
    oddlot("simulate", "digits", "--epochs", "2", "--keep-best", "accuracy", "--out", "run")
    answer = oddlot("export", "run", "--weights", weights)
    mask(number=r"\d[\d,.]*")
    name, _, message = answer.out.partition(": ")
    assert (answer.code, name) == (0, f"run-{weights}.safetensors")
    assert message.startswith(f"{weights} weights, version ")
    assert len(load_file(name)) == 8
    assert oddlot("export", "run", "named.safetensors", "--weights", weights).code == 0
    assert Path("named.safetensors").read_bytes() == Path(name).read_bytes()


def test_run_without_weights_is_rejected(oddlot: Oddlot) -> None:
    oddlot("simulate", "digits", "--epochs", "1", "--out", "run")
    oddlot.rejects("no_best_weights", "export", "run", "--weights", "best", path="run")
    oddlot.rejects("unknown_name", "export", "run", "--weights", "first", given="first")
    oddlot.rejects("no_run", "export", "elsewhere", path="elsewhere")
    oddlot.rejects("no_direction", "simulate", "digits", "--keep-best", "f1", "--out", "other", given="f1")


def test_shell_completes_the_kinds_of_weights() -> None:
    assert set(completion.weights("")) == READERS.keys()
