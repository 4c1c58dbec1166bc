"""Who uses which block of the arena: the first ones hold versions, the rest are the workers' for updates."""

from heapq import heappop, heappush

from oddlot.core.errors import OddlotError
from oddlot.core.tasks import Facts
from oddlot.engines.local.shared_memory import Arena
from oddlot.engines.payloads import decode_into
from oddlot.train.flat_buffer import FlatBuffer, Layout
from oddlot.train.store import Payload
from oddlot.wire.codec import Codec
from oddlot.wire.packet import Packet


class Blocks:
    """The pool that the store takes versions from, and the update blocks of `workers` workers.

    The lowest free block is used first, so that memory stays as small as the run allows.
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
        """the version that the update in a block began from; its task holds it"""
        self._parked: dict[int, Payload] = {}
        """payloads in the store's inbox that still lie in their worker's block"""

    def take(self) -> FlatBuffer:
        """A block for a new version."""
        if not self._free_versions:
            told = "too many versions are held at once: release versions that were kept"
            raise OddlotError(told, "too_many_kept")
        return self._flat(heappop(self._free_versions))

    def give(self, block: FlatBuffer) -> None:
        """A version is over."""
        heappush(self._free_versions, self.number(block))

    def number(self, flat: FlatBuffer) -> int:
        """Which block of the arena this is."""
        return self._numbers[id(flat)]

    def take_update(self, index: int, start: FlatBuffer) -> int:
        """A block for the next update of worker `index`, which begins from `start`."""
        free = self._free_updates[index]
        if not free:
            self._move_out(next(block for block in self._parked if self._owner[block] == index))
        block = heappop(free)
        self._starts[block] = self.number(start)
        return block

    def give_update(self, block: int) -> None:
        """Nobody reads or writes this block any more."""
        heappush(self._free_updates[self._owner[block]], block)

    def payload(self, facts: Facts, block: int) -> Payload:
        """The update that a worker has put into its block. FrameError: there is none."""
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
        """A strategy keeps updates longer than their worker can wait: copy this one to the hub's own memory."""
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
