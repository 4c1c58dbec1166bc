"""The shell scripts of the files in deploy/ run on two machines with separate networks."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from oddlot.report.run_report import RunReport
from tests.test_deploy import DEPLOY, parsed
from tests.two_nodes import HEAD, OTHER, run_on_two_nodes, why_not

pytestmark = [pytest.mark.ray, pytest.mark.skipif(bool(why_not()), reason=f"no namespaces: {why_not()}")]
SECONDS = 240.0
NODES = (
    f'python -c \'import ray; ray.init("{HEAD}:6379", log_to_driver=False); '
    'print("alive nodes:", sum(node["Alive"] for node in ray.nodes()))\''
)
SKYPILOT = """
import subprocess, sys, time
import ray  # its copy of psutil
import psutil

script = psutil.Popen(["bash", "-c", open(sys.argv[1]).read()])
there = []
while script.poll() is None:
    there = script.children(recursive=True) or there
    time.sleep(1)
for child in there:
    if child.is_running():
        child.terminate()
sys.exit(script.returncode)
"""
"""Program that runs a script as SkyPilot does. It terminates the processes of the script's last second."""


@pytest.fixture
def home() -> Iterator[Path]:
    """Yield a home folder with a path that is short enough for Ray's sockets."""
    path = Path(tempfile.mkdtemp(prefix="oddlot-"))
    yield path
    shutil.rmtree(path)


def small(script: str, home: Path) -> str:
    """Return the script with fewer epochs, and with a folder instead of a bucket."""
    changed = script.replace("s3://BUCKET", str(home / "checkpoints")).replace("--epochs 20", "--epochs 2")
    assert changed != script
    return changed


def is_whole(home: Path) -> bool:
    """Return whether the run has reached its goal and merged every sample exactly once."""
    run = RunReport.read(home / "runs/digits-1")
    return run.summary["ended"] == "epochs>=2" and run.proof.is_exactly_once


def test_skypilot_script_trains_on_two_nodes(home: Path) -> None:
    (home / "run.sh").write_text(small(parsed("skypilot.yaml")["run"], home))
    (home / "skypilot.py").write_text(SKYPILOT)
    done = run_on_two_nodes(
        f"""
        export SKYPILOT_NODE_IPS=$'{HEAD}\\n{OTHER}' RAY_AUTH_TOKEN=$(openssl rand -hex 32) RAY_TMPDIR={home}
        SKYPILOT_NODE_RANK=1 on-other python skypilot.py run.sh & rank_1=$!
        SKYPILOT_NODE_RANK=0 bash run.sh
        wait $rank_1
        RAY_AUTH_MODE=token {NODES}
        """,
        home,
        SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "alive nodes: 2" in done.stdout
    assert is_whole(home)


def test_slurm_script_trains_on_two_nodes(home: Path) -> None:
    for name, text in {
        "scontrol": 'printf "head\\nother\\n"',
        "srun": 'until [ "$1" = ray ]; do shift; done; exec on-other "$@"',
    }.items():
        (home / "bin").mkdir(exist_ok=True)
        (home / "bin" / name).write_text(f"#!/bin/bash\n{text}\n")
        (home / "bin" / name).chmod(0o755)
    script = (DEPLOY / "slurm.sh").read_text()
    (home / "slurm.sh").write_text(script.replace("--epochs 20", "--epochs 2"))
    done = run_on_two_nodes(
        f"export SLURM_CPUS_PER_TASK=2 SLURM_JOB_NODELIST=2 RAY_TMPDIR={home}; bash slurm.sh",
        home,
        SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert is_whole(home)


def test_aws_cluster_commands_train_on_two_nodes(home: Path) -> None:
    cluster = parsed("aws-cluster.yaml")
    head = small_head("\n".join(cluster["head_start_ray_commands"]))
    (home / "head.sh").write_text(head)
    (home / "worker.sh").write_text("\n".join(cluster["worker_start_ray_commands"]))
    done = run_on_two_nodes(
        f"""
        export RAY_HEAD_IP={HEAD} RAY_AUTH_MODE=token RAY_TMPDIR={home}
        ray get-auth-token --generate > /dev/null
        bash head.sh
        on-other bash worker.sh
        RAY_ADDRESS={HEAD}:6379 oddlot train digits --epochs 2 --engine ray --workers 1-2 --quiet
        {NODES}
        """,
        home,
        SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert "alive nodes: 2" in done.stdout
    assert is_whole(home)


def small_head(text: str) -> str:
    """Return the commands of the head node without the autoscaler and without CPUs for workers.

    The autoscaler needs a cloud account.
    """
    changed = text.replace("--autoscaling-config=~/ray_bootstrap_config.yaml", "--num-cpus=0")
    assert changed != text
    return changed
