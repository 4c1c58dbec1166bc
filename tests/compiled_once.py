"""Share numba's on-disk cache between processes, such as the workers of pytest-xdist.

One process compiles a kernel. The others wait for it and load the result. Processes that do not import numba are not
affected.
"""

import fcntl
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

DISPATCHER = "numba.core.dispatcher"
LOCKS = "compiled_once.lock"
"""Name of the lock file next to the compiled kernels. Each kernel locks one byte."""
_held = Counter[tuple[str, str]]()


def install() -> None:
    """Patch numba as soon as it is imported."""
    if DISPATCHER in sys.modules:
        _patch(sys.modules[DISPATCHER])
    else:
        sys.meta_path.insert(0, _WhenImported())


class _WhenImported(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> ModuleSpec | None:
        if name != DISPATCHER:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        assert spec is not None
        loader: Any = spec.loader
        execute = loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            _patch(module)

        loader.exec_module = execute_and_patch
        return spec


def _patch(module: Any) -> None:
    from numba.core.compiler_lock import global_compiler_lock

    compile_here = module.Dispatcher.compile

    def compile_once(dispatcher: Any, signature: Any) -> Any:
        """Compile a kernel while its lock is held.

        Numba looks in the cache on disk first, and finds the result of another process there.
        """
        folder, function = dispatcher._cache.cache_path, dispatcher.py_func
        if folder is None:
            return compile_here(dispatcher, signature)
        with global_compiler_lock, _locked(folder, f"{function.__module__}.{function.__qualname__}"):
            return compile_here(dispatcher, signature)

    module.Dispatcher.compile = compile_once


@contextmanager
def _locked(folder: str, kernel: str) -> Iterator[None]:
    """Lock a kernel against other processes.

    A kernel also locks the kernels that it calls. Calls have no cycles, so there is no deadlock.
    """
    place = crc32(kernel.encode()) >> 1
    if not _held[folder, kernel]:
        fcntl.lockf(_locks(folder), fcntl.LOCK_EX, 1, place)
    _held[folder, kernel] += 1
    try:
        yield
    finally:
        _held[folder, kernel] -= 1
        if not _held[folder, kernel]:
            fcntl.lockf(_locks(folder), fcntl.LOCK_UN, 1, place)


@cache
def _locks(folder: str) -> int:
    """Open the lock file once per process.

    It is never closed, because closing any descriptor of the file releases all locks of the process.
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    return os.open(path / LOCKS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
