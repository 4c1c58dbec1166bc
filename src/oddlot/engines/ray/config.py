"""`engine=Ray(...)`: workers on the machines of a Ray cluster."""

from collections.abc import Collection
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from oddlot.core.tasks import NodeId
from oddlot.engines.base import Open, Opened, RunData
from oddlot.engines.ray.settings import RaySettings

if TYPE_CHECKING:
    from oddlot.engines.ray.ray_messages import RayMessages
    from oddlot.engines.ray.started_actors import StartedActors


@dataclass(frozen=True)
class Ray(RaySettings):
    """Workers on the machines of a Ray cluster, one actor each. Needs `pip install "ray>=2.58"`.

    Without an address, a cluster that runs on this machine is used, or else one is started for the run. Lost workers
    are replaced, and machines that join the cluster get workers, up to the largest number.
    """

    kind: ClassVar[str] = "ray"
    is_remote: ClassVar[bool] = True
    mesh: ClassVar[None] = None

    def begin(self, closing: ExitStack) -> Open:
        """Connect to the cluster and start the actors. They import PyTorch while the job is prepared."""
        from oddlot.engines.ray.cluster import check_room, connect

        is_own, runtime_env, messages = connect(self.address, self.runtime_env, closing)
        settings = replace(self, runtime_env=runtime_env)
        check_room(settings, is_own)
        from oddlot.engines.ray.started_actors import StartedActors  # imports Ray

        started = StartedActors(settings)
        closing.callback(started.close)
        return partial(_open, started, messages, closing)


def _open(
    started: "StartedActors",
    messages: "RayMessages",
    closing: ExitStack,
    data: RunData,
    now: float,
    taken: Collection[NodeId],
) -> Opened:
    """Open the engine and send the job to the workers."""
    from oddlot.engines.buying_plan import BuyingPlan
    from oddlot.engines.processes.process_setup import WorkerSetup
    from oddlot.engines.ray.cluster import check_shared_memory
    from oddlot.engines.ray.engine import RayEngine
    from oddlot.engines.ray.ray_messages import FILE
    from oddlot.model.block_pool import Pool
    from oddlot.model.flat_buffer import FlatBuffer

    settings = started.settings
    plan = BuyingPlan.of(settings.buying, data.work, data.job.batch_size)
    messages.path = data.logs / FILE if data.logs else None
    check_shared_memory((settings.in_flight + 1) * data.layout.bytes)
    engine = RayEngine(started, WorkerSetup.of(data, max(1, int(settings.num_cpus))), now, taken, plan)
    closing.callback(engine.close)
    pool = Pool(lambda: FlatBuffer.empty(data.layout))
    return Opened(engine, pool, faults=engine.faults, wants_checkpoint=engine.head.wants_checkpoint)
