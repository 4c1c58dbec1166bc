"""Computation of a simulated mesh: the job's real gradients, one task after the other, in this process."""

from oddlot.core.tasks import Task
from oddlot.engines.mesh.messages import Tensors
from oddlot.engines.mesh.packing import copied, travels_unchanged
from oddlot.engines.simulated.compute import Exact
from oddlot.train.flat_buffer import FlatBuffer
from oddlot.train.learner import Learner
from oddlot.train.store import Payload, Pool
from oddlot.wire.codec import Codec
from oddlot.wire.plain import Plain


class PeerComputation(Exact):
    """Computes the tasks of all peers with one learner. Models between peers are encoded; gradients are not sent."""

    def __init__(self, learner: Learner, pool: Pool, codec: Codec) -> None:
        super().__init__(learner, pool, Plain())
        self.exchange_codec = codec
        self.bytes_down = 0

    def compute(self, task: Task, weights: FlatBuffer) -> tuple[float | None, Payload]:
        """Return the task's mean loss and its update."""
        self.runner.learner.holds = None  # versions of several peers have the same numbers
        found = super().compute(task, weights)
        self.bytes_up = 0
        return found

    def travelled(self, tensors: Tensors, *, exact: bool) -> tuple[int, Tensors]:
        """Return the bytes of tensors on the network, and them as the receiver gets them."""
        layout = tensors.weights.layout
        codec = Plain() if exact else self.exchange_codec
        if isinstance(codec, Plain) and travels_unchanged(layout, tensors.layers):
            size = layout.bytes
        else:
            size, tensors = copied(tensors, codec, self.pool.take, self.pool.give)
        optimizer = tensors.optimizer or {}
        return size + sum(one.nbytes for one in optimizer.values()), tensors
