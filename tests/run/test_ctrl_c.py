"""Ctrl-C and SIGTERM stop a run cleanly, or at once if sent twice. Signals that were ignored before stay ignored."""

import json
import os
import signal
from pathlib import Path

import pytest

from oddlot import Asynchronous, Run, fit
from oddlot.checkpoint import format as checkpoint
from oddlot.checkpoint.storage import Storage
from oddlot.core.records import Record
from oddlot.history.run_folder import RunFolder
from tests.fits import a_job, fleet, trained
from tests.processes import descendants, ends, program, says
from tests.run.test_resume import ENDLESS

pytestmark = pytest.mark.usefixtures("warm_start")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_interrupt_signals_stop_cleanly_and_save(number: signal.Signals, tmp_path: Path) -> None:
    """All processes receive the signal, as from a terminal or a service manager. `timeout` sends SIGTERM once more."""
    with program("-c", ENDLESS, tmp_path) as process:
        says(process, "saved")
        with ends(descendants(process.pid)):
            if number == signal.SIGTERM:
                process.send_signal(number)
            os.killpg(process.pid, number)
            _, versions, ended = says(process, "stopped").split()
        assert process.wait() == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    assert ended == "interrupted"
    assert checkpoint.newest(Storage(tmp_path / "checkpoints")).version == int(versions)
    assert json.loads((tmp_path / "summary.json").read_text())["ended"] == "interrupted"
    until = f"versions>={int(versions) + 5}"
    run, _ = trained(a_job(), Asynchronous(), fleet(), until, RunFolder(tmp_path), resume=True)
    assert run.summary["versions"] == int(versions) + 5


STUBBORN = """
import signal

import oddlot
from tests.fits import a_job, local, rows


def measures_forever(outputs, targets):
    print("measuring", flush=True)
    signal.pause()


oddlot.fit(
    a_job(eval_data=rows(), metrics={"endless": measures_forever}), oddlot.Asynchronous(), local(2),
    quiet=True, until="EPOCHS", evaluate_every="1 versions", out=OUT,
)
"""


@pytest.mark.parametrize(
    "epochs",
    [
        pytest.param("epochs>=1", id="the final version"),
        pytest.param("epochs>=1e6", id="another", marks=pytest.mark.long),
    ],
)
def test_sigterm_saves_without_waiting_for_evaluations(epochs: str, tmp_path: Path) -> None:
    """SIGTERM waits for no running or final evaluation, because a preempted machine has only seconds left."""
    out = tmp_path / "run"
    with program("-c", STUBBORN.replace("EPOCHS", epochs).replace("OUT", repr(str(out)))) as process:
        assert process.stderr is not None
        assert "measuring" in process.stderr.readline(), "workers print to stderr"
        with ends([process.pid, *descendants(process.pid)]):
            process.send_signal(signal.SIGTERM)
        assert process.wait() == 1
        assert "oddlot.run.fit.Interrupted" in process.stderr.read()
    summary = json.loads((out / "summary.json").read_text())
    assert summary["ended"] == "interrupted"
    assert checkpoint.newest(Storage(out / "checkpoints")).version == summary["versions"]


HANGS = """
import signal, threading, warnings

import oddlot
from oddlot.checkpoint import background_writer, storage
from tests.fits import a_job, fleet

background_writer.LONG_WRITE_SECONDS = 0.1
writes, begun = storage.Storage.write, []


def hangs(self, name, pieces):
    begun.append(name)
    return writes(self, name, pieces) if len(begun) <= WRITES else threading.Event().wait()


def impatient(warning, *_):
    print(warning.code, flush=True)
    signal.raise_signal(signal.SIGINT)


storage.Storage.write, warnings.showwarning = hangs, impatient
warnings.simplefilter("always")
oddlot.fit(a_job(), oddlot.Asynchronous(), fleet(), until="epochs>=1", checkpoint_every="1 versions", out=OUT)
"""


@pytest.mark.parametrize(
    ("writes", "saved", "code"),
    [(0, False, -signal.SIGINT), (3, True, 1)],
    ids=["KeyboardInterrupt at first", "Interrupted at the end"],
)
def test_ctrl_c_ends_a_run_with_hanging_checkpoint_storage(
    writes: int, saved: bool, code: int, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with program("-c", HANGS.replace("WRITES", str(writes)).replace("OUT", repr(str(out)))) as process:
        says(process, "checkpoint_location_hangs")
        assert process.wait() == code
    assert (out / "model.safetensors").exists() == saved


def raised(*numbers: signal.Signals) -> Run:
    """Run a job with an observer that raises these signals at once."""
    left = list(numbers)

    def watch(_: Record) -> None:
        while left:
            signal.raise_signal(left.pop(0))

    return fit(a_job(), Asynchronous(), fleet(computes=False), until="epochs>=2", callbacks=[watch])


def test_second_ctrl_c_raises_keyboard_interrupt() -> None:
    with pytest.raises(KeyboardInterrupt) as end:
        raised(signal.SIGINT, signal.SIGINT)
    assert type(end.value) is KeyboardInterrupt


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_ignored_signals_stay_ignored(number: signal.Signals) -> None:
    """A shell starts background jobs with ignored signals, and they stay ignored."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        assert raised(number, number).ended == "epochs>=2"
        assert signal.getsignal(number) == signal.SIG_IGN
    finally:
        signal.signal(number, before)


EARLY = """
import os, runpy, signal, sys


class Impatient:
    def find_spec(self, name, path, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)


sys.meta_path.insert(0, Impatient())
runpy.run_module("oddlot", run_name="__main__")
"""


def test_ctrl_c_during_import_prints_no_traceback() -> None:
    with program("-c", EARLY) as process:
        assert process.wait() == 130
        assert process.stderr is not None
        assert process.stderr.read() == ""
