"""Pickling by value for workers."""

import os
import sys
import threading
from types import ModuleType

import cloudpickle
import pytest

from oddlot.core.support.errors import UsageError
from oddlot.engines.local.shared_memory import open_parcel, pack_parcel
from oddlot.engines.processes.object_parcel import pickled, unpickled
from tests.transcripts import raises

LOCK = threading.Lock()


@pytest.mark.parametrize("registered", [False, True])
def test_functions_of_a_spawned_script_are_pickled_by_value(
    monkeypatch: pytest.MonkeyPatch, registered: bool
) -> None:
    """The script's module is `__mp_main__` there. A worker has no such module."""
    script = ModuleType("__mp_main__")
    exec("def seven(): return 7", vars(script))
    with monkeypatch.context() as child:
        child.setitem(sys.modules, script.__name__, script)
        if registered:
            cloudpickle.register_pickle_by_value(script)
        parcel = pack_parcel(script.seven)
        assert (script.__name__ in cloudpickle.list_registry_pickle_by_value()) is registered
        if registered:
            cloudpickle.unregister_pickle_by_value(script)
    assert open_parcel(parcel)() == 7
    os.close(parcel)


def test_object_that_stands_for_a_module_is_pickled_by_name() -> None:
    """PyTorch replaces `torch.backends.cudnn` by such an object, and scripts set its `benchmark`."""
    name = "torch.backends.cudnn"
    [again] = unpickled(pickled([sys.modules[name]]))
    assert again is sys.modules[name]


def locked() -> None:
    """Use a lock, as a helper of a training step that writes to a log may do."""
    with LOCK:
        return


def test_unpicklable_global_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The global belongs to a script. A script's functions are pickled by value."""
    monkeypatch.setattr(locked, "__module__", "__main__")

    def step(_: object) -> None:
        locked()

    with raises(UsageError, "cannot_be_pickled", attribute="step.locked.LOCK"):
        pack_parcel({"step": step})
