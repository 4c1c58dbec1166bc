"""Settings and fixtures for all tests: Hypothesis profiles, golden texts, CPU time, and fork servers."""

import atexit
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import cloudpickle
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings

from tests import compiled_once
from tests.command import FLEET, JOB, MY_JOBS, Oddlot
from tests.transcripts import Transcript, rewrite, rewrite_errors
from tests.warm_start import WarmPopen, server

if TYPE_CHECKING:
    from oddlot.engines.local.fork_client import ForkClient

# Must be set before PyTorch is imported. Waiting threads sleep, because parallel tests have more threads than cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Normal priority: at Ray's default niceness of 15, a worker takes minutes to start while other tests run.
os.environ.setdefault("RAY_worker_niceness", "0")
compiled_once.install()
settings.register_profile("fast", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("thorough", deadline=None, max_examples=2000)
settings.load_profile("fast")  # pytest --hypothesis-profile=thorough searches longer
# Background jobs of a shell ignore Ctrl-C, and nohup ignores SIGHUP. Programs of the tests would inherit this.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what comes out into tests/stories and tests/messages"
    )


TEXTS = pytest.StashKey[dict[str, str]]()
"""Texts by test, with --rewrite."""
SENTENCES = pytest.StashKey[list[tuple[str, str]]]()
"""Codes and sentences of errors, by test, with --rewrite."""
COLLECTED = pytest.StashKey[set[str]]()
"""All tests of the files that are run, including deselected tests."""
WORKERS = pytest.StashKey[list[dict[str, Any]]]()
"""Results of pytest-xdist's workers."""


def pytest_configure(config: pytest.Config) -> None:
    config.stash[TEXTS] = {}
    config.stash[SENTENCES] = []
    config.stash[COLLECTED] = set()
    config.stash[WORKERS] = []


def pytest_itemcollected(item: pytest.Item) -> None:
    item.config.stash[COLLECTED].add(item.nodeid.removeprefix("tests/"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Compare the texts of a test with its transcript, or store them with --rewrite."""
    transcript = Transcript(item.nodeid)
    yield
    if item.config.getoption("rewrite"):
        item.config.stash[TEXTS][transcript.test] = transcript.block
        item.config.stash[SENTENCES] += transcript.sentences
    else:
        transcript.compare()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[WORKERS].append(getattr(node, "workeroutput", {}))


def pytest_sessionfinish(session: pytest.Session) -> None:
    config, texts = session.config, dict[str, str]()
    narrowed = any("::" in argument for argument in config.args)
    found = set() if narrowed else config.stash[COLLECTED]
    if hasattr(config, "workeroutput"):
        config.workeroutput.update(
            {"texts": config.stash[TEXTS], "found": [*found], "sentences": config.stash[SENTENCES]}
        )
    elif config.getoption("rewrite"):
        sentences = config.stash[SENTENCES]
        for each in config.stash[WORKERS]:
            texts |= each.get("texts", {})
            found |= {*each.get("found", [])}
            sentences += map(tuple, each.get("sentences", []))
        own = config.stash[TEXTS]
        texts.update(own)
        rewrite(texts, found)
        rewrite_errors(sentences)


def cpu_seconds() -> float:
    """Return the CPU time (user + system) of this process and its ended descendants, in seconds."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"CPU time (user + system): {cpu_seconds():.0f} s")


@pytest.fixture
def oddlot(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Oddlot:
    """Return the command line, in a folder with a fleet, a job file and a user's module."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.delitem(sys.modules, "my_jobs", raising=False)
    monkeypatch.delenv("ODDLOT_DATA", raising=False)
    for name, text in {"fleet.toml": FLEET, "job.toml": JOB, "my_jobs.py": MY_JOBS}.items():
        (tmp_path / name).write_text(text)
    return Oddlot(capsys, monkeypatch)


@pytest.fixture(params=["memory://bucket/run", "folder"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield a location outside of the run's folder."""
    MemoryFileSystem.store.clear()
    yield request.param if "://" in request.param else str(tmp_path / "elsewhere")
    MemoryFileSystem.store.clear()


@pytest.fixture(scope="module")
def fork_server(request: pytest.FixtureRequest) -> Iterator[None]:
    """Use one fork server for all runs of the module, and pickle the module by value: workers need no pytest."""
    from oddlot.engines.local import config as on_local

    cloudpickle.register_pickle_by_value(request.module)
    with patch.object(on_local, "ForkClient", _lasting_fork_server):
        yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="module")
def warm_start() -> Iterator[None]:
    """Start programs of the module's tests with PyTorch already imported."""
    if sys.platform != "linux":
        yield
        return
    server()  # runs before the first test lists processes
    with patch.object(subprocess, "Popen", WarmPopen):
        yield


@cache
def _lasting_fork_server() -> "ForkClient":
    """Return a fork server that all runs share, because its start takes longer than a small run."""
    from oddlot.engines.local.fork_client import ForkClient

    fork_server = ForkClient()
    atexit.register(fork_server.close)
    patch.object(fork_server, "close", lambda: None).start()
    return fork_server
