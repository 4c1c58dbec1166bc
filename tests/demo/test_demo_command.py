"""`oddlot demo digits` without a browser: its server, its static copy, and bad input."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from shutil import copytree
from socket import create_server
from typing import Any

import pytest

from oddlot import Run
from oddlot.core.support.errors import CheckpointError, UsageError
from oddlot.demo import server as serving, site
from oddlot.demo.model_file import DESCRIPTION, WEIGHTS
from oddlot.demo.run_site import run_site
from oddlot.demo.server import HOST, PageServer, serve
from oddlot.demo.site import DATA, INDEX, MODEL_LICENSE, POLICY, SHIPPED, STRIP, shipped_site
from oddlot.history.run_folder import CHECKPOINTS, MODEL, SUMMARY
from tests.command import Oddlot
from tests.demo.networks import train, train_autoencoder
from tests.demo.pages import running
from tests.fits import a_job
from tests.transcripts import raises


def reply(server: PageServer, path: str, method: str = "GET") -> tuple[int, Any, bytes]:
    connection = http.client.HTTPConnection(HOST, server.server_port, timeout=10)
    try:
        connection.request(method, path)
        found = connection.getresponse()
        return found.status, found.headers, found.read()
    finally:
        connection.close()


# --- the server ----------------------------------------------------------------------------------


def test_server_has_the_files_and_a_strict_policy() -> None:
    pages = shipped_site()
    with running(serve(pages, 0)) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, headers, content = reply(server, "/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert content == pages[INDEX]
        assert headers["Content-Security-Policy"].startswith(POLICY)
        assert POLICY.encode() in content
        for name in (WEIGHTS, "page.js", "page.css", "palette.css", STRIP, MODEL_LICENSE):
            assert reply(server, f"/{name}?again")[2] == pages[name]
        assert reply(server, f"/{WEIGHTS}", "HEAD")[2] == b""
        for unknown in ("/server.py", "/../digit_model.py", "/page", "/%2e%2e/site.py"):
            assert reply(server, unknown)[0] == 404
        assert reply(server, "/", "POST")[0] == 501


def test_busy_port_is_replaced_by_the_next_free_one() -> None:
    with create_server((HOST, 0)) as busy:
        port = busy.getsockname()[1]
        with serve({}, port) as server:
            assert port < server.server_port <= port + serving.TRIES


def test_no_free_port_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "TRIES", 1)
    with create_server((HOST, 0)) as busy:
        port = busy.getsockname()[1]
        with raises(UsageError, "no_free_port", port=port, last=port):
            serve({}, port)


def test_port_of_the_system_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(serving, "PageServer", forbidden)
    with raises(UsageError, "unusable_port", port=80, reason="Permission denied"):
        serve({}, 80)


# --- the command ---------------------------------------------------------------------------------


def test_command_prints_the_address_and_ends_with_ctrl_c() -> None:
    """Without a display, no browser is opened. The busy port is named."""
    hidden = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    env = {name: value for name, value in os.environ.items() if name not in hidden}
    with create_server((HOST, 0)) as busy:
        port = busy.getsockname()[1]
        command = [sys.executable, "-m", "oddlot", "demo", "digits", "--port", str(port)]
        with subprocess.Popen(
            command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as program:
            assert program.stdout
            lines = [program.stdout.readline() for _ in range(2)]
            found = re.search(r"http://127\.0\.0\.1:(\d+)/", lines[1])
            assert found, lines
            assert str(port) in lines[0]
            assert found[1] in lines[0]
            connection = http.client.HTTPConnection(HOST, int(found[1]), timeout=10)
            connection.request("GET", "/")
            assert connection.getresponse().read() == shipped_site()[INDEX]
            connection.close()
            program.send_signal(signal.SIGINT)
            _, errors = program.communicate(timeout=30)
        assert (program.returncode, errors.strip()) == (0, "")


@pytest.mark.parametrize("found", [True, False, OSError("no such program")])
def test_browser_is_opened(oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch, found: bool | OSError) -> None:
    """Without a browser, the address is printed."""
    opened = list[str]()

    def open_browser(address: str) -> bool:
        opened.append(address)
        if isinstance(found, OSError):
            raise found
        return found

    def stop(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("webbrowser.open", open_browser)
    monkeypatch.setattr(PageServer, "serve_forever", stop)
    monkeypatch.setenv("BROWSER", "firefox")
    answer = oddlot("demo", "digits", "--port", "0")
    assert answer.code == 0
    assert len(opened) == 1
    assert opened[0] in answer.out
    assert ("open it in a browser" in answer.out) is (found is not True)
    opened.clear()
    assert oddlot("demo", "digits", "--port", "0", "--no-browser").code == 0
    assert not opened


def test_static_copy_has_all_files(oddlot: Oddlot, digits_run: Path, tmp_path: Path) -> None:
    """It is overwritten by a copy of another model. `data.js` has the data of the binary file."""
    folder = tmp_path / "a" / "copy"
    sizes = []
    for arguments in ((), (str(digits_run),), (str(digits_run), "--int8")):
        assert oddlot("demo", "digits", *arguments, "--export", str(folder)).code == 0
        names = {path.name for path in folder.iterdir()}
        expected = shipped_site().keys() | {DATA}
        assert names == (expected - {MODEL_LICENSE} if arguments else expected)
        sizes.append((folder / WEIGHTS).stat().st_size)
        data = (folder / DATA).read_text().removeprefix("globalThis.DIGIT_DATA = ").removesuffix(";\n")
        assert json.loads(data)["description"] == json.loads((folder / DESCRIPTION).read_bytes())
        assert POLICY.encode() in (folder / INDEX).read_bytes()
    assert sizes[2] < sizes[1] / 3
    assert json.loads((folder / STRIP).read_bytes())["lost_tasks"] == 1
    assert not [
        text
        for path in folder.glob("*.*")
        for text in re.findall(rb"https?://", path.read_bytes())
        if path.suffix in {".html", ".css"}
    ]


def test_page_of_a_run_has_its_test_accuracy(autoencoder_run: Run, tmp_path: Path) -> None:
    """Before the classifier's stage, a run has none."""
    train_autoencoder(tmp_path, autoencoder_epochs=0, classifier_epochs=0)
    for folder, expected in ((autoencoder_run.folder, autoencoder_run.summary["accuracy"]), (tmp_path, None)):
        about = json.loads(run_site(str(folder), int8=False)[DESCRIPTION])["about"]
        assert about.get("accuracy") == expected
    assert autoencoder_run.summary["accuracy"] > 0.2, "it is of the trained classifier"


# --- bad input -----------------------------------------------------------------------------------


def test_run_of_another_workload_is_rejected(oddlot: Oddlot, tmp_path: Path) -> None:
    train(tmp_path / "run", a_job(name="sides"))
    run = str(tmp_path / "run")
    oddlot.rejects("not_a_digit_model", "demo", "digits", run, path=run, workload="sides")


def test_run_without_weights_is_rejected(oddlot: Oddlot, digits_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copytree(digits_run, run, ignore=lambda *_: {MODEL, CHECKPOINTS, SUMMARY})
    oddlot.rejects("no_complete_checkpoint", "demo", "digits", str(run))
    oddlot.rejects("no_run", "demo", "digits", str(tmp_path / "none"))


def test_run_with_a_damaged_model_is_rejected(oddlot: Oddlot, digits_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    copytree(digits_run, run)
    (run / MODEL).write_bytes((run / MODEL).read_bytes()[:-100])
    oddlot.rejects("damaged_file", "demo", "digits", str(run))


def test_damaged_shipped_model_is_rejected(
    oddlot: Oddlot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copytree(SHIPPED, tmp_path / "model")
    with (tmp_path / "model" / WEIGHTS).open("r+b") as file:
        file.write(b"damaged")
    monkeypatch.setattr(site, "SHIPPED", tmp_path / "model")
    path = str(tmp_path / "model")
    answer = oddlot.rejects("damaged_model", "demo", "digits", "--no-browser", path=path)
    assert isinstance(answer.error, CheckpointError)


def test_int8_needs_a_run(oddlot: Oddlot) -> None:
    oddlot.rejects("setting_without_run", "demo", "digits", "--int8", flag="--int8")


def test_folder_of_other_files_is_not_overwritten(oddlot: Oddlot, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mine.txt").write_text("mine")
    oddlot.rejects("folder_not_empty", "demo", "digits", "--export", str(folder), path=str(folder))
    assert [each.name for each in folder.iterdir()] == ["mine.txt"]
    path = str(folder / "mine.txt" / "copy")
    oddlot.rejects("unwritable_folder", "demo", "digits", "--export", path, path=path)
