"""The commands of a queue's server and client, and what they add to jobs."""

import json
import os
import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from oddlot.core.support.errors import UsageError
from oddlot.queue.server.resources import gpu_indices
from oddlot.queue.server.training_command import job_name, planned_seconds, resuming_command
from tests.command import Oddlot
from tests.queue.server.queue_servers import PREDICTOR, Server, queue_server
from tests.transcripts import raises

NOBODY = "nobody"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    options = ["--cpus", "2", "--gpus", "2", "--grace", "1"]
    with queue_server(tmp_path_factory.mktemp("commands") / "queue", options) as server:
        yield server


@pytest.fixture
def queue(server: Server, oddlot: Oddlot, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that runs a command of the queue with this server."""
    monkeypatch.setenv("ODDLOT_QUEUE", str(server.folder.path))
    monkeypatch.delenv("ODDLOT_QUEUE_URL", raising=False)

    def run(*arguments: str) -> str:
        answer = oddlot("queue", *arguments)
        assert answer.code == 0, answer.err
        return answer.out

    return run


def test_submitted_command_keeps_its_own_options(queue: Any, server: Server, tmp_path: Path) -> None:
    options = ["--gpus", "1", "--env", "WORD=a=b", "--limit", "memory=8G", "--cwd", str(tmp_path), "--json"]
    job = json.loads(queue("submit", *options, "sh", "-c", 'echo "$WORD" $PWD', "--gpus", "2"))
    assert job["command"] == ["sh", "-c", 'echo "$WORD" $PWD', "--gpus", "2"]
    assert (job["gpus"], job["cpus"], job["limits"]) == (1, 1, {"memory": 8 * 10**9})
    server.wait(job["id"])
    assert queue("logs", str(job["id"])) == f"a=b {tmp_path}\n"
    assert queue("logs", "-f", str(job["id"])) == f"a=b {tmp_path}\n"


def test_job_is_listed_shown_and_cancelled(queue: Any, server: Server) -> None:
    number = queue("submit", "--name", "long one", "sleep", "600").split()[1]
    server.wait(int(number), "running")
    row = next(line.split() for line in queue("ls").splitlines() if "long one" in line)
    assert row[:2] == [number, "running"]
    shown, path = queue("show", number), f"PATH={os.environ['PATH']}"
    for text in ("sleep 600", str(Path.cwd()), "attempt 1"):
        assert text in shown
    assert path not in shown
    assert path in queue("show", "--env", number)
    queue("cancel", number)
    server.wait(int(number))
    assert number not in [line.split()[0] for line in queue("ls").splitlines() if "long one" in line]
    found = json.loads(queue("ls", "--all", "--json"))
    assert {job["id"]: job["state"] for job in found["ended"]}[int(number)] == "cancelled"


def test_output_of_a_waiting_job_and_of_an_unknown_attempt(
    queue: Any, oddlot: Oddlot, server: Server
) -> None:
    jobs = [queue("submit", "--cpus", "2", "sleep", "600").split()[1] for _ in range(2)]
    answer = oddlot("queue", "logs", jobs[1])
    assert (answer.code, answer.out) == (0, "")
    assert "pending" in answer.err
    for option in ([], ["-f"]):
        oddlot.rejects("unknown_attempt", "queue", "logs", "--attempt", "7", *option, jobs[1])
    queue("cancel", *jobs)
    for job in jobs:
        server.wait(int(job))


@pytest.mark.parametrize(
    ("code", "arguments"),
    [
        ("job_too_large", ["submit", "--gpus", "9", "true"]),
        ("invalid_value", ["submit", "--env", "WORD", "true"]),
        ("invalid_value", ["submit", "--limit", "memory=much", "true"]),
        ("invalid_value", ["submit", "--limit", "other=1", "true"]),
        ("unusable_folder", ["submit", "--cwd", "/no/such/folder", "true"]),
        ("unknown_job", ["show", "999999"]),
        ("unknown_job", ["cancel", "999999"]),
        ("not_root" if os.geteuid() else "unknown_user", ["token", "--user", "no-such-user"]),
    ],
)
def test_bad_input(queue: Any, oddlot: Oddlot, code: str, arguments: list[str]) -> None:
    oddlot.rejects(code, "queue", *arguments)


def test_bad_settings_of_a_server(queue: Any, oddlot: Oddlot, server: Server, tmp_path: Path) -> None:
    port = server.client.url.rpartition(":")[2]
    own = ["queue", "serve", "--predictor", PREDICTOR, "--folder"]
    oddlot.rejects("unusable_port", *own, str(tmp_path / "queue"), "--port", port, port=int(port))
    oddlot.rejects("queue_in_use", *own, str(server.folder.path))
    oddlot.rejects("unknown_name", *own, str(tmp_path / "queue"), "--policy", "qsf", nearest="qssf")
    for policy in ("fair_share", "las", "srtf"):
        oddlot.rejects(
            "policy_without_slurm",
            *own,
            str(tmp_path / "slurm"),
            "--slurm",
            "--policy",
            policy,
            policy=policy,
        )
    assert not (tmp_path / "slurm").exists()
    for path, code in (
        ("missing_module:Policy", "policy_not_importable"),
        ("json:JSONDecoder", "not_a_policy"),
    ):
        oddlot.rejects(code, *own, str(tmp_path / "queue"), "--policy", path)
    (tmp_path / "file").touch()
    oddlot.rejects("unwritable_folder", *own, str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [("", []), ("2, 0", [2, 0]), ("NoDevFiles", []), ("GPU-1f3a,GPU-2b", None), ("MIG-7", None)],
)
def test_gpus_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, visible: str, gpus: list[int] | None
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if gpus is None:
        with raises(UsageError, "gpu_uuids", visible=visible):
            gpu_indices()
    else:
        assert gpu_indices() == gpus


@pytest.mark.skipif(os.geteuid() != 0, reason="only a server of root runs jobs of other users")
def test_other_user_runs_own_jobs_and_sees_no_secrets(
    queue: Any, oddlot: Oddlot, server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    secret = int(queue("submit", "--env", "SECRET=1", "/no/such/cat", "password").split()[1])
    named = int(queue("submit", "--name", "public", "true").split()[1])
    assert server.wait(secret)["reason"]
    server.wait(named)
    lines = dict(line.split("=", 1) for line in queue("token", "--user", NOBODY).splitlines())
    older = json.loads(queue("token", "--user", NOBODY, "--json"))["token"]
    assert older != lines["ODDLOT_QUEUE_TOKEN"]
    monkeypatch.setenv("ODDLOT_QUEUE_URL", lines["ODDLOT_QUEUE_URL"])
    monkeypatch.setenv("ODDLOT_QUEUE_TOKEN", lines["ODDLOT_QUEUE_TOKEN"])
    oddlot.rejects("not_allowed", "queue", "ls")  # replaced by the newer token
    monkeypatch.setenv("ODDLOT_QUEUE_TOKEN", older)
    tmp_path.chmod(0o700)
    oddlot.rejects("unusable_folder", "queue", "submit", "--cwd", str(tmp_path), "id", "-u")
    job = json.loads(queue("submit", "--json", "--cwd", "/", "id", "-u"))
    server.wait(job["id"])
    assert job["user"] == NOBODY
    assert queue("logs", str(job["id"])) == f"{pwd.getpwnam(NOBODY).pw_uid}\n"
    shown = json.loads(queue("show", "--json", str(secret)))
    assert not {"command", "env", "cwd"} & shown.keys()
    assert (shown["name"], shown["reason"], shown["attempts"][0]["reason"]) == ("cat", "", "")
    listed = {one["id"]: one for one in json.loads(queue("ls", "--all", "--json"))["ended"]}
    assert (listed[secret]["name"], listed[secret]["reason"]) == ("cat", "")
    assert listed[named]["name"] == "public"
    oddlot.rejects("not_allowed", "queue", "logs", str(secret))
    oddlot.rejects("not_allowed", "queue", "cancel", str(secret))
    oddlot.rejects("not_allowed", "queue", "token", "--user", "daemon")


# --- commands of trainings -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "added"),
    [
        ("oddlot train digits", "--resume auto --out OUT"),
        ("/bin/oddlot train digits --out r", "--resume auto"),
        ("python3.11 -m oddlot train digits --resume=auto", ""),
        ("oddlot train digits --resume latest", ""),
        ("oddlot train digits --force", ""),
        ("oddlot simulate digits", ""),
        ("python train.py", ""),
        ("oddlot", ""),
    ],
)
def test_training_resumes_its_own_run(command: str, added: str) -> None:
    assert resuming_command(command.split(), "OUT") == [*command.split(), *added.split()]


def test_job_file_with_a_run_folder_and_a_plan(tmp_path: Path) -> None:
    fleet, file = tmp_path / "fleet.toml", tmp_path / "job.toml"
    fleet.write_text('[[machines]]\nname = "a"\ncount = 1\nseconds_per_sample = 0.01\n')
    plan = f'[plan]\nmachines = "{fleet}"\nseconds = [10, 20, 40]\ndollars = [0, 0, 0]\n'
    text = 'workload = "digits"\n\n[run]\nuntil = "accuracy>=0.9"\n'
    command = ["oddlot", "train", str(file)]
    file.write_text(text)
    assert planned_seconds(command) is None
    assert resuming_command(command, "OUT")[3:] == ["--resume", "auto", "--out", "OUT"]
    file.write_text(text.replace("[run]", '[run]\nout = "mine"') + plan)
    assert planned_seconds(command) == 20.0
    assert resuming_command(command, "OUT")[3:] == ["--resume", "auto"]
    file.write_text("not a file [")
    assert planned_seconds(command) is None


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("oddlot train digits --epochs 3", "train digits"),
        ("python -m oddlot train jobs/a.toml", "train a.toml"),
        ("python /home/me/train.py big --lr 1", "python train.py big"),
        ("./run.sh", "run.sh"),
    ],
)
def test_name_of_a_job_from_its_command(command: str, name: str) -> None:
    assert job_name(command.split()) == name
