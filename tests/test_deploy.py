"""The files in deploy/ match the tools that read them, this version of oddlot, and its version of Ray."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]  # it ships no types
from ray.autoscaler._private import util as ray_autoscaler

from oddlot import Ray
from oddlot.cli import app as cli
from oddlot.cli.run_command import RunCommand
from oddlot.config.job_file import JobFile
from tests.test_docs import blocks, commands

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
FILES = sorted(DEPLOY.iterdir())
CLUSTER_PAGE = ROOT / "docs/how-to/cluster.md"
TORCH_VERSION = re.compile(r"torch==([\d.]+)")
RAY_VERSION = re.compile(r"ray(?:\[\w+\])?==([\d.]+)|rayVersion: \"([\d.]+)\"|Ray (\d+\.\d+\.\d+)")
PLACES = {
    "spec": {
        "entrypoint", "submissionMode", "backoffLimit", "shutdownAfterJobFinishes", "ttlSecondsAfterFinished",
        "rayClusterSpec",
    },
    "spec.rayClusterSpec": {
        "rayVersion", "authOptions", "enableInTreeAutoscaling", "autoscalerOptions", "headGroupSpec",
        "workerGroupSpecs",
    },
    "spec.rayClusterSpec.authOptions": {"mode", "secretName"},
    "spec.rayClusterSpec.autoscalerOptions": {"version", "idleTimeoutSeconds", "upscalingMode", "resources"},
    "spec.rayClusterSpec.headGroupSpec": {"rayStartParams", "template"},
    "spec.rayClusterSpec.workerGroupSpecs": {
        "groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template",
    },
}  # fmt: skip
"""Fields of KubeRay's CRD (versions 1.6 and 1.7) that the RayJob may use."""


SKYPILOT = {
    "": {"name", "num_nodes", "workdir", "resources", "secrets", "setup", "run", "envs", "file_mounts"},
    "resources": {"accelerators", "any_of", "cpus", "infra", "instance_type", "job_recovery", "use_spot"},
    "resources.job_recovery": {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"},
}
"""Fields of SkyPilot 0.14's task schema that the task may use."""


def parsed(name: str) -> Any:
    return yaml.safe_load((DEPLOY / name).read_text(encoding="utf-8"))


def shell_of(path: Path) -> str:
    """Return the shell commands of a script, a YAML file, or the bash blocks of a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return "\n".join(block.text for block in blocks(text) if block.language == "bash")
    if path.suffix == ".yaml":
        return "\n".join(texts(yaml.safe_load(text)))
    return text


def texts(value: Any) -> Iterator[str]:
    """Yield all strings of a YAML document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from texts(inner)


def oddlot_commands(path: Path) -> Iterator[list[str]]:
    """Yield the arguments of each `oddlot` command in a file."""
    for line in commands(shell_of(path)):
        for found in re.finditer(r"(?:^|\s)oddlot (?=[a-z]+ )(.+)", line):
            words = shlex.split(re.split(r"\s(?:&|<|>|;)", found[1])[0])
            yield [word for word in words if word != "&"]


def test_deploy_has_only_known_files() -> None:
    names = {"Dockerfile", "aws-cluster.yaml", "kuberay-rayjob.yaml", "skypilot.yaml", "slurm.sh"}
    assert {path.name for path in FILES} == names


@pytest.mark.parametrize("path", [*FILES, CLUSTER_PAGE], ids=lambda path: path.name)
def test_oddlot_accepts_the_commands(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[RunCommand]()
    monkeypatch.setattr(RunCommand, "run", lambda self, *_: asked.append(self))
    group = typer.main.get_command(cli.app)
    found = list(oddlot_commands(path))
    assert found or path.name == "Dockerfile"
    for words in found:
        if words[0] == "notice":
            assert words == ["notice", "$!"]
            continue
        group.main(words, standalone_mode=False)  # an unknown option raises
        one = asked.pop()
        engine = JobFile.read(one.workload, one.overrides).engine()
        assert isinstance(engine, Ray), words
        assert engine.max_workers >= 2
        if path != CLUSTER_PAGE:
            assert one.resume == "auto"
            assert one.flags["checkpoints"]


@pytest.mark.parametrize("path", [*FILES, CLUSTER_PAGE], ids=lambda path: path.name)
@pytest.mark.parametrize(("package", "version"), [("ray", RAY_VERSION), ("torch", TORCH_VERSION)])
def test_versions_are_the_tested_ones(path: Path, package: str, version: re.Pattern[str]) -> None:
    constraints = (ROOT / "constraints.txt").read_text()
    (tested,) = re.findall(rf"^{package}==(.+)$", constraints, re.MULTILINE)
    named = ["".join(found) for found in version.findall(path.read_text(encoding="utf-8"))]
    assert named or (package, path.name) == ("torch", "kuberay-rayjob.yaml")  # its image has both
    assert set(named) <= {tested}


def test_image_copies_only_existing_files() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert {"pyproject.toml", "README.md", "LICENSE", "src"} == set(copied)
    assert all((ROOT / name).exists() for name in copied)


def test_skypilot_task_has_only_known_fields() -> None:
    task = parsed("skypilot.yaml")
    for place, known in SKYPILOT.items():
        inner = task
        for name in filter(None, place.split(".")):
            inner = inner[name]
        assert inner.keys() <= known, place


def test_ray_accepts_the_aws_cluster() -> None:
    (gpu_nodes,) = (
        one.text for one in blocks(CLUSTER_PAGE.read_text(encoding="utf-8")) if one.language == "yaml"
    )
    text = (DEPLOY / "aws-cluster.yaml").read_text(encoding="utf-8")
    nodes, others = text.split("\nfile_mounts:")
    cluster = ray_autoscaler.prepare_config(yaml.safe_load(f"{nodes}\n{gpu_nodes}\nfile_mounts:{others}"))
    ray_autoscaler.validate_config(cluster)  # validates it against ray-schema.json
    types = cluster["available_node_types"]
    assert types.keys() == {"head", "spot", "other_spot", "gpu"}
    assert len({one["node_config"]["InstanceType"] for one in types.values()}) == len(types)
    head, spot = types["head"], types["spot"]
    assert cluster["head_node_type"] == "head"
    assert head["resources"] == {"CPU": 0}
    assert "InstanceMarketOptions" not in head["node_config"]
    for name in types.keys() - {"head"}:
        assert types[name]["node_config"]["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert 0 <= spot["min_workers"] < spot["max_workers"] <= cluster["max_workers"]
    assert cluster["file_mounts"] == {
        "/home/ubuntu/.ray/auth_token": "~/.ray/auth_token",
        "/home/ubuntu/oddlot": ".",
    }
    assert any("RAY_AUTH_MODE=token" in line for line in cluster["setup_commands"])


def test_rayjob_has_only_known_fields() -> None:
    job = parsed("kuberay-rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert len(job["metadata"]["name"]) <= 47  # KubeRay appends a suffix
    for place, known in PLACES.items():
        inner = job
        for name in place.split("."):
            inner = inner[name]
        for each in inner if isinstance(inner, list) else [inner]:
            assert each.keys() <= known, place


def test_rayjob_has_an_on_demand_head_and_spot_workers() -> None:
    job = parsed("kuberay-rayjob.yaml")["spec"]
    cluster = job["rayClusterSpec"]
    assert job["backoffLimit"] > 0
    assert cluster["authOptions"] == {"mode": "token"}
    assert cluster["enableInTreeAutoscaling"] is True
    head, (group,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert head["template"]["spec"]["affinity"]
    assert group["template"]["spec"]["nodeSelector"]
    assert group["template"]["spec"]["tolerations"]
    assert group["minReplicas"] <= group["replicas"] < group["maxReplicas"]
    for pod in (head["template"]["spec"], group["template"]["spec"]):
        assert pod["volumes"] == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "4Gi"}}]
        for container in pod["containers"]:
            assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
            resources = container["resources"]
            assert resources["requests"] == resources["limits"]


@pytest.mark.parametrize("name", ["slurm.sh", "skypilot.yaml"])
def test_bash_parses_the_scripts(name: str) -> None:
    scripts = (
        [(DEPLOY / name).read_text()]
        if name.endswith(".sh")
        else [parsed(name)[key] for key in ("setup", "run")]
    )
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
        assert not done.stderr
        assert done.returncode == 0


def test_slurm_requeues_the_script() -> None:
    options = re.findall(r"^#SBATCH (--\S+)", (DEPLOY / "slurm.sh").read_text(), re.MULTILINE)
    assert {"--requeue", "--exclusive", "--open-mode=append"} <= set(options)
