"""Start Python programs with PyTorch already imported. This saves seconds of CPU time per program.

`WarmPopen` replaces `subprocess.Popen` in tests that start many processes. Programs are forked from a process that has
only run imports. A forked program is a child of the test process. Its parent, standard streams, signals and exit code
equal a fresh interpreter's. Programs that it starts itself run in fresh interpreters.
"""

import atexit
import ctypes
import fcntl
import gc
import json
import os
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
ROOT = Path(__file__).parent.parent
MOST_BYTES, MOST_FDS = 1 << 17, 16
ABOVE = 100
"""Received descriptors are moved above this number, because the program needs the lower numbers."""
FRESH = subprocess.Popen
"""Class that starts a fresh interpreter."""
WARM = "from tests.warm_start import serve; exec(compile(serve(FD), '<string>', 'exec'))"


class WarmPopen(subprocess.Popen[Any]):
    """A `subprocess.Popen` that forks `python -c CODE` and `python -m MODULE` from a process with PyTorch."""

    def _execute_child(  # type: ignore[no-untyped-def]
        self, args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
        p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
        start_new_session, *more,
    ):  # fmt: skip
        options = args[1 : 1 + next((at for at, one in enumerate(args[1:]) if one in {"-c", "-m"}), 0)]
        if args[0] != sys.executable or not {*options} <= {"-u", "-P"} or not {"-c", "-m"} & {*args}:
            return super()._execute_child(  # type: ignore[misc]
                args, executable, preexec_fn, close_fds, pass_fds, cwd, env, startupinfo, creationflags, shell,
                p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite, restore_signals, gid, gids, uid, umask,
                start_new_session, *more,
            )  # fmt: skip
        streams = [own if own != -1 else at for at, own in enumerate((p2cread, c2pwrite, errwrite))]
        request = {
            "arguments": args[1 + len(options) :],
            "is_safe": "-P" in options,
            "folder": str(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
            "passed": list(pass_fds),
            "leads": start_new_session,
            "parent": os.getpid(),
        }
        self.pid = fork(request, [*streams, *pass_fds])
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)  # type: ignore[attr-defined]
        return None


@cache
def server() -> socket.socket:
    """Return the socket of the process that forks. The process ends with this one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = FRESH(
        [sys.executable, "-c", WARM.replace("FD", str(theirs.fileno()))],
        cwd=ROOT,
        pass_fds=[theirs.fileno()],
        start_new_session=True,
    )
    theirs.close()
    atexit.register(process.wait)
    atexit.register(ours.close)  # called first: handlers are called in reverse order
    return ours


def fork(request: dict[str, Any], fds: list[int]) -> int:
    """Return the process id of a new child of this process."""
    prctl = ctypes.CDLL(None).prctl
    here = server()
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # this process adopts orphans from now on
    try:
        socket.send_fds(here, [json.dumps(request).encode()], fds)
        return int(here.recv(64))
    finally:
        prctl(PR_SET_CHILD_SUBREAPER, 0)


def serve(fd: int) -> str:
    """Fork on request. In each new process, return the code to execute."""
    import oddlot.engines.local.worker
    import oddlot.run.peer_process  # noqa: F401

    gc.freeze()  # keeps ending processes from writing to shared memory

    with socket.socket(fileno=fd) as hub:
        while True:
            message, fds, _, _ = socket.recv_fds(hub, MOST_BYTES, MOST_FDS)
            if not message:
                os._exit(0)
            if (child := os.fork()) == 0:
                if os.fork():
                    os._exit(0)  # orphans the new process, so that the test process adopts it
                return become(json.loads(message), fds, hub)
            os.waitpid(child, 0)
            for one in fds:
                os.close(one)


def become(request: dict[str, Any], fds: list[int], hub: socket.socket) -> str:
    """Set up this process like a fresh interpreter, and return the code of its program."""
    while os.getppid() != request["parent"]:
        time.sleep(0.001)
    if request["leads"]:
        os.setsid()
    hub.send(str(os.getpid()).encode())
    hub.close()
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, ABOVE) for one in fds]
    os.closerange(3, ABOVE)
    for one, number in zip(moved, (0, 1, 2, *request["passed"]), strict=True):
        os.dup2(one, number)
        os.close(one)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    own = [place for place in sys.path if place and place not in places]
    kind, program, *arguments = request["arguments"]
    first = [] if request["is_safe"] else [""] if kind == "-c" else [str(Path.cwd())]
    sys.path[:] = [*first, *places, *own]
    sys.argv[:] = [kind, *arguments]
    if kind == "-c":
        return str(program)
    return f"import runpy; runpy.run_module({program!r}, run_name='__main__', alter_sys=True)"
