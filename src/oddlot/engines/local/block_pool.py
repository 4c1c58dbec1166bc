"""Allocation of the arena's blocks. The first blocks are for versions, the others for the workers' updates."""

from heapq import heappop, heappush

from oddlot.core.support.errors import OddlotError
from oddlot.core.tasks import Facts
from oddlot.engines.local.shared_memory import Arena
from oddlot.engines.payloads import decode_into
from oddlot.model.flat_buffer import FlatBuffer, Layout
from oddlot.model.payload import Payload
from oddlot.wire.codec import Codec
from oddlot.wire.packet import Packet


class BlockPool:
    """An allocator of blocks for versions, and of the update blocks of `workers` workers.

    The lowest free block is used first, to reduce memory use.
    """

    def __init__(
        self, arena: Arena, layout: Layout, versions: int, workers: int, codec: Codec | None
    ) -> None:
        self.arena, self.layout, self.codec = arena, layout, codec
        self._free_versions = list(range(versions))
        each = (arena.blocks - versions) // workers
        self._free_updates = [
            list(range(at, at + each)) for at in range(versions, versions + each * workers, each)
        ]
        self._owner = {block: index for index, free in enumerate(self._free_updates) for block in free}
        self._flats: dict[int, FlatBuffer] = {}
        self._numbers: dict[int, int] = {}
        self._starts: dict[int, int] = {}
        """Block of the start version of the update in a block. The task holds the version."""
        self._parked: dict[int, Payload] = {}
        """Payloads in the store's inbox that are still in a block of their worker."""

    def take(self) -> FlatBuffer:
        """Return a block for a new version."""
        if not self._free_versions:
            message = "too many versions are held at the same time: release kept versions"
            raise OddlotError(message, "too_many_kept")
        return self._flat(heappop(self._free_versions))

    def give(self, block: FlatBuffer) -> None:
        """Free the block of a version."""
        heappush(self._free_versions, self.number(block))

    def number(self, flat: FlatBuffer) -> int:
        """Return the number of a block."""
        return self._numbers[id(flat)]

    def take_update(self, index: int, start: FlatBuffer) -> int:
        """Return a block for the next update of worker `index`. The update starts from `start`."""
        free = self._free_updates[index]
        if not free:
            self._move_out(next(block for block in self._parked if self._owner[block] == index))
        block = heappop(free)
        self._starts[block] = self.number(start)
        return block

    def give_update(self, block: int) -> None:
        """Free an update block."""
        heappush(self._free_updates[self._owner[block]], block)

    def payload(self, facts: Facts, block: int) -> Payload:
        """Return the update in a worker's block. Raise FrameError if the block has no valid update."""
        if self.codec is not None:
            flat = FlatBuffer.empty(self.layout)
            try:
                packet = Packet.read(self.arena.block(block).numpy()[: facts.bytes_up])
                decode_into(flat, self.codec, packet, facts.kind, self._flat(self._starts[block]))
            finally:
                self.give_update(block)
            return Payload(facts.kind, flat)

        def free() -> None:
            del self._parked[block]
            self.give_update(block)

        payload = self._parked[block] = Payload(facts.kind, self._flat(block), free)
        return payload

    def _move_out(self, block: int) -> None:
        """Copy an update to the hub's memory, because its worker needs the block before the strategy has merged it."""
        payload = self._parked[block]
        flat = FlatBuffer.empty(self.layout)
        flat.copy_(payload.flat)
        payload.flat = flat
        payload.release()

    def _flat(self, block: int) -> FlatBuffer:
        if block not in self._flats:
            flat = FlatBuffer(self.layout, self.arena.block(block)[: self.layout.bytes])
            self._flats[block], self._numbers[id(flat)] = flat, block
        return self._flats[block]
