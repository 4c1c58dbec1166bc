"""Two machines on this host: Linux namespaces, each with its own network and processes."""

import shutil
import subprocess
import sys
from pathlib import Path

HEAD, OTHER = "10.77.0.1", "10.77.0.2"
"""Addresses of the machines. Packets stay in their network."""

SETUP = f"""
set -eu
ip link set lo up
ip link add head type veth peer name other
ip addr add {HEAD}/24 dev head
ip link set head up
ip route add default dev head
unshare --net --pid --mount-proc --kill-child sleep infinity &
NODE=$!
until [ "$(readlink /proc/$NODE/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do sleep 0.1; done
ip link set other netns $NODE
on_other() {{ nsenter --net --target "$NODE" "$@"; }}
on_other ip link set lo up
on_other ip addr add {OTHER}/24 dev other
on_other ip link set other up
on_other ip route add default dev other
until child=$(pgrep -P "$NODE" sleep); do sleep 0.1; done
cat > "$BIN/on-other" <<END
#!/bin/bash
exec nsenter --net --pid --mount --wdns=$HOME --target $child "\\$@"
END
chmod +x "$BIN/on-other"
"""
"""Script that connects two networks. `on-other COMMAND` then runs a command on the second machine."""


def why_not() -> str:
    """Return the reason why such machines cannot be created here, or an empty string if they can."""
    if sys.platform != "linux":
        return "namespaces exist on Linux only"
    missing = [name for name in ("ip", "nsenter", "pgrep", "unshare") if shutil.which(name) is None]
    if missing:
        return f"the programs {', '.join(missing)} are missing"
    tried = subprocess.run([*_unshare(), "true"], capture_output=True, text=True, check=False)
    return tried.stderr.strip()


def run_on_two_nodes(script: str, home: Path, seconds: float) -> "subprocess.CompletedProcess[str]":
    """Run the script on the first machine for at most `seconds`, and end all processes of both machines.

    `home` is the home folder of both, with a virtual environment in `venv` and programs in `bin`.
    """
    programs = home / "bin"
    programs.mkdir(exist_ok=True)
    (home / "venv").symlink_to(Path(sys.prefix))
    path = f"{programs}:{Path(sys.prefix) / 'bin'}:/usr/sbin:/usr/bin:/sbin:/bin"
    return subprocess.run(
        [*_unshare(), "bash", "-c", SETUP + script],
        env={"HOME": str(home), "BIN": str(programs), "PATH": path, "LANG": "C.UTF-8"},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


def _unshare() -> list[str]:
    return ["unshare", "--map-root-user", "--net", "--pid", "--mount-proc", "--kill-child"]
