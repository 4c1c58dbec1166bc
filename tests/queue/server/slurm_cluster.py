"""A cluster of Slurm on this machine, with its own daemons, ports and folder."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.queue.server.queue_servers import wait_for

DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
SETTINGS = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={controller}
SlurmdPort={daemon}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PriorityType=priority/basic
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1
KillWait=1
ReturnToService=2
MailProg=/bin/true
SwitchType=switch/none
MpiDefault=none
NodeName=localhost NodeAddr=127.0.0.1 CPUs=1 State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""
PATHS = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])


def reason_to_skip() -> str:
    """Return why a cluster cannot be started here, or an empty string."""
    missing = [name for name in DAEMONS if shutil.which(name, path=PATHS) is None]
    if missing:
        return f"Slurm is not installed ({', '.join(missing)}): apt-get install slurm-wlm munge"
    return "only root can start the daemons of Slurm" if os.geteuid() else ""


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def slurm_cluster(folder: Path, more: str = "") -> Iterator[None]:
    """Run a cluster with one core, and set SLURM_CONF. `more`: further lines of slurm.conf."""
    for name in ("state", "spool", "munge"):
        (folder / name).mkdir(parents=True)
    key, settings = folder / "munge.key", folder / "slurm.conf"
    key.write_bytes(secrets.token_bytes(256))
    key.chmod(0o400)
    settings.write_text(SETTINGS.format(folder=folder, controller=_free_port(), daemon=_free_port()) + more)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(settings)
    try:
        munge = [f"--{name}-file={folder}/munge/{name}" for name in ("pid", "log", "seed")]
        _start("munged", "--force", f"--key-file={key}", f"--socket={folder}/munge/socket", *munge)
        _start("slurmctld", "-f", str(settings))
        _start("slurmd", "-f", str(settings))
        wait_for(lambda: "idle" in _output("sinfo", "-h", "-o", "%T"), "the node is idle")
        yield
    finally:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run(["scancel", "--user=root", "--signal=KILL"], timeout=20, check=False)
        for path in (folder / "slurmd.pid", folder / "slurmctld.pid", folder / "munge" / "pid"):
            with suppress(OSError, ValueError):
                os.kill(int(path.read_text()), signal.SIGTERM)
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before


def _start(name: str, *arguments: str) -> None:
    program = shutil.which(name, path=PATHS)
    assert program
    subprocess.run([program, *arguments], check=True, timeout=60)


def _output(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout


def submit(name: str, script: str, *options: str) -> int:
    """Submit a batch job, and return its number."""
    command = ["sbatch", "--parsable", "-o", "/dev/null", "-J", name, *options, "--wrap", script]
    return int(
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=60, cwd="/").stdout
    )


def priorities() -> dict[int, int]:
    """Return the priorities of the pending jobs. The waiting tasks of an array are one job."""
    lines = _output("squeue", "-h", "-t", "PD", "-o", "%A %Q").splitlines()
    return {int(job): int(priority) for job, priority in map(str.split, lines)}


def started(job: int) -> float | None:
    """Return when a job has started, or None if it waits."""
    found = _output("squeue", "-h", "--states=all", "-j", str(job), "-o", "%T %S").split()
    return float(found[1]) if found and found[0] in {"RUNNING", "COMPLETED", "COMPLETING"} else None
