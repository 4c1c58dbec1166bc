"""One random history of a strategy, with a check of its promises after each event."""

import copy
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, NoReturn

from oddlot.core.commands import Action
from oddlot.core.conductor import Conductor
from oddlot.core.conductor_checks import read_conductor
from oddlot.core.events import Arrived
from oddlot.core.records import ECHO, Record
from oddlot.core.sample_spans import samples_in
from oddlot.core.strategy import Strategy
from oddlot.core.sum_tree import samples_sent
from oddlot.core.support.errors import ProtocolError
from oddlot.core.support.serialization import to_plain
from oddlot.core.tasks import Facts
from oddlot.testing.run_scenario import Data, ScenarioRun, decisions, state_line
from oddlot.testing.state_checks import StateChecks

PROMISES = {
    0: "the sample accounting is exact: each sample of each epoch is merged exactly once",
    1: "the same history gives the same actions",
    2: "a copy made during a run, or saved as JSON and read back, continues identically",
    3: "late updates of lost workers never reach the strategy",
    4: "while work and a worker are left, a task is open or an alarm is set",
    5: "when all open tasks finish and no worker is lost, every sample is merged",
    6: "a strategy sends only valid commands",
}
Move = tuple[str, int, int]
"""Type of an event, index of the worker, task or peer among the candidates, and amount (0 to 3)."""
WEIGHTS = {"join": 8, "finish": 8, "lose": 8, "cancelled": 4, "leave": 2, "late": 2, "wait": 2, "reject": 2}
RARE = {"evaluated": 2, "fitted": 2, "resume": 1}
MESH = {"peer": 2, "peer_lost": 1, "request": 3, "model": 4, "push": 2, "bad_model": 1}
"""Moves of peers, for strategies on a mesh only."""
MOVES = [verb for verb, weight in (WEIGHTS | RARE | MESH).items() for _ in range(weight)]
PEERS = ("p", "q", "r")
FITTED = "fitted 1x1=1", "fitted 1x1=0.1 2x1=0.3 2x4=1", "fitted 3x2=1", "fitted 1x4=0.5 4x4=2 9x8=9"
LINES_AT_MOST = 400


class BrokenPromise(AssertionError):
    """A strategy broke a promise.

    `promise` is its number. `story` is the history, as a story file for `run_story`. For promise 0, `code` identifies
    the inconsistency.
    """

    def __init__(self, promise: int, why: str, story: str, code: str = "") -> None:
        head = f"promise {promise} is broken: {PROMISES[promise]}.\nFailure: {why}."
        super().__init__(f"{head}\n\nHistory:\n{story}")
        self.promise, self.story, self.code = promise, story, code


class StrategyTrial:
    """A run of a strategy, compared with a second run of the same history and with copies made during the run.

    At most `workers` workers run at the same time.
    """

    def __init__(self, make: Callable[[], Strategy], data: Data, workers: int) -> None:
        self.make, self.workers = make, workers
        strategy = make()
        traits = strategy.traits(data.batch)
        self.is_mesh = traits.mesh
        if traits.exact:  # runs with shards or skipped samples are rejected
            data = replace(data, shards=1, skip_bad=False)
        if self.is_mesh:
            data, self.workers = replace(data, in_flight=1), 1
        self.data = data
        self.play = ScenarioRun(data.conductor(strategy))
        self.others = [(1, data.conductor(make()))]
        """Numbers of promises, and conductors that must make the same decisions."""
        self.log: list[Record] = []
        self.checks = StateChecks()
        self.joined = 0
        self.history = [f"strategy {make()!r}", str(data)]
        self.lived: tuple[str, ...] = ()
        """The history before the open tasks finish, without decisions."""

    @property
    def conductor(self) -> Conductor:
        return self.play.conductor

    def live(self, moves: Sequence[Move], copied_after: int) -> None:
        """Run the possible moves, and copy the run after the first `copied_after`."""
        for move in moves[:copied_after]:
            self._move(*move)
        self._copy()
        for move in moves[copied_after:]:
            self._move(*move)
        self.lived = tuple(line for line in self.history if not line.startswith(">"))

    def end(self) -> None:
        """Finish open tasks, the oldest first, until no work is left."""
        limit = 10 + self.data.size * (self.data.epochs or 1)  # each update may have a single sample
        merged, unmerged = 0, 0
        while (line := self._next_answer()) is not None:
            self._do(line)
            unmerged = unmerged + 1 if len(self.checks.merged) == merged else 0
            merged = len(self.checks.merged)
            if unmerged > limit:
                self._break(5, f"the last {unmerged} events merged nothing")
        held = self.conductor.inbox or self.conductor.open or self.conductor.ledger.leases
        if held or not self.conductor.done:
            self._break(5, "no task is open and no alarm is set, but samples are not merged")
        for promise, other in self.others:
            if other.to_plain() != self.conductor.to_plain():
                self._break(promise, "the states differ at the end")

    # --- moves -----------------------------------------------------------------------------------

    def _move(self, verb: str, pick: int, amount: int) -> None:
        if self.conductor.done:
            return
        likely = (line for each in (verb, "join", "finish") if (line := self._line(each, pick, amount)))
        for line in likely:
            self._do(line)
            break
        while self.play.measuring:
            self._do(f"change norm=1 inner={amount - 1} drift=0.{amount}")

    def _line(self, verb: str, pick: int, amount: int) -> str | None:
        """Return the line of a move, or None if the move is not possible now."""
        if verb in MESH:
            return self._peer_line(verb, PEERS[pick % len(PEERS)], amount) if self.is_mesh else None
        if self.is_mesh and verb in {"lose", "leave", "resume"}:
            return None
        if verb == "join":
            return self._join() if len(self.conductor.busy) < self.workers else None
        if verb == "wait":
            return ("wait 1", "wait 0.1", "wait 100", "wait alarm")[
                amount if self.conductor.alarm < inf else 0
            ]
        if verb == "evaluated":
            return f"evaluated loss={amount} accuracy=0.{amount}" if self.play.evaluating else None
        if verb == "fitted":
            return FITTED[amount] if self.conductor.strategy.traits(self.data.batch).measured_loads else None
        if verb == "resume":
            return verb if self.conductor.busy else None
        whom = self._candidates(verb)
        if not whom:
            return None
        name = whom[pick % len(whom)]
        return f"{verb} {name}" + (self._part(name, amount) if verb == "finish" else "")

    def _peer_line(self, verb: str, peer: str, amount: int) -> str | None:
        """Return the line of a move of a peer."""
        if verb == "request":
            return f"request {peer} {amount}"
        if verb == "push":
            return f"model {peer} loss={amount} weight=0.5" + (" reply=1" if amount > 1 else "")
        if verb in {"model", "bad_model"}:
            asked, tag = self.play.requests[-1] if self.play.requests else (peer, amount)
            return f"{verb} {asked} request_tag={tag}"
        return f"{verb} {peer}"

    def _candidates(self, verb: str) -> list[str]:
        """Return the workers or tasks that this event may happen to."""
        expects = self.conductor.expects
        match verb:
            case "leave":
                return list(self.conductor.slots)
            case "lose":
                return list(self.conductor.busy)
            case "reject" if not self.data.skip_bad:  # the third time, the run would end
                return []
            case "finish" | "reject":
                return [task for task in self.conductor.open if expects(task)]
            case "cancelled":
                return [task for held in self.conductor.busy.values() for task in held]
            case _:
                return [task for task in self.play.tasks if not expects(task)]

    def _join(self) -> str:
        self.joined += 1
        return f"join {chr(ord('a') + self.joined - 1) if self.joined <= 26 else f'w{self.joined}'}"

    def _part(self, task: str, amount: int) -> str:
        samples = samples_in(self.play.tasks[task].spans)
        if self.play.tasks[task].kind == "sum":
            part = samples_sent("sum", samples // 2, samples)
            return f" samples={part}" if amount == 1 and part else ""
        return ("", f" samples={max(1, samples // 2)}", " samples=1", " loss=0.5")[amount]

    def _next_answer(self) -> str | None:
        if self.play.measuring:
            return "change norm=1 inner=1 drift=0.01"
        if not self.conductor.slots and not self.conductor.done:
            return self._join()
        for task in self.play.tasks.values():
            if task.id in self.conductor.busy.get(task.node, ()):
                return f"{'finish' if self.conductor.expects(task.id) else 'late'} {task.id}"
        if self.play.evaluating:
            return "evaluated loss=1 accuracy=0.5"
        return "wait alarm" if self.conductor.alarm < inf and not self.conductor.done else None

    # --- promises --------------------------------------------------------------------------------

    def _do(self, line: str) -> None:
        self.history.append(line)
        try:
            before = self._state() if line.startswith("late") else None
            for record in self.play.do(line):
                self.history += decisions(record)
                self._check(record, before)
        except ProtocolError as error:
            self._break(6, str(error))
        except BrokenPromise:
            raise
        except Exception as error:
            error.add_note(f"History:\n{self._story()}")
            raise

    def _check(self, record: Record, before: Any) -> None:
        self.log.append(record)
        for promise, other in self.others:
            self._compare(promise, other, record)
        if isinstance(record.event, Arrived) and record.event.update.id not in self.conductor.open:
            self._check_late(record, record.event.update, before)
        self.checks.note(record, self.conductor)
        for fault in self.checks.faults(self.conductor):
            self._break(0, str(fault), fault.code)
        if self._stalled():
            self._break(4, "work is left, but no task is open and no alarm is set")

    def _compare(self, promise: int, other: Conductor, record: Record) -> None:
        again = _decide(other, record)
        if again != record.actions:
            sure = promise == 1 or all(self._repeats() for _ in range(10))
            self._break(
                promise if sure else 1, f"after the last event, the other decided {again or 'nothing'}"
            )

    def _repeats(self) -> bool:
        fresh = self.data.conductor(self.make())
        return all(_decide(fresh, record) == record.actions for record in self.log)

    def _check_late(self, record: Record, late: Facts, before: Any) -> None:
        if before is None:
            return
        gone = late.sender not in self.conductor.busy
        changed = gone and (record.actions or self._state() != before)
        if changed or record.remark != ECHO:
            self._break(3, f"the late update {late.id} was not ignored")

    def _state(self) -> Any:
        """Return the strategy's state as plain data, or raise BrokenPromise."""
        try:
            return to_plain(self.conductor.strategy)
        except TypeError as error:
            self._break(2, str(error))

    def _stalled(self) -> bool:
        waits = any(self.conductor.busy.values()) or self.play.evaluating or self.play.measuring
        can_work = self.conductor.slots and self.conductor.ledger.work_left
        return bool(can_work and not waits and self.conductor.alarm == inf)

    def _copy(self) -> None:
        try:
            plain = self.conductor.to_plain()
            read = read_conductor(json.loads(json.dumps(plain)), type(self.make()))
            copied = copy.deepcopy(self.conductor)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            self._break(2, f"it cannot be copied or saved: {error}")
        if read.to_plain() != plain:
            self._break(2, f"the saved state is\n{plain['strategy']}\nbut reading it gives\n{read.strategy}")
        self.others += [(2, copied), (2, read)]

    def _break(self, promise: int, why: str, code: str = "") -> NoReturn:
        raise BrokenPromise(promise, why, self._story(), code)

    def _story(self) -> str:
        history = self.history
        if len(history) > LINES_AT_MOST:
            history = [*history[: LINES_AT_MOST // 2], "# ...", *history[-LINES_AT_MOST // 2 :]]
        return "\n".join([*history, "show", state_line(self.conductor)])


def _decide(conductor: Conductor, record: Record) -> tuple[Action, ...] | str:
    """Return the conductor's actions for the event of a record, or the text of its ProtocolError."""
    try:
        return conductor.handle(record.event, record.now).actions
    except ProtocolError as error:
        return str(error)
