"""`check_policy`: a test of a policy with random jobs, machines, losses and reports that arrive twice."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from oddlot.queue.core.commands import CancelJob, Command, PreemptJob, StartJob
from oddlot.queue.core.events import (
    ClockTicked,
    Event,
    JobCancelled,
    JobEstimated,
    JobFailed,
    JobFinished,
    JobStarted,
    JobStopped,
    JobSubmitted,
    MachineJoined,
    MachineLost,
)
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.core.machines import Machine
from oddlot.queue.core.policy import Policy
from oddlot.queue.core.scheduler import Scheduler

LARGEST = Machine("m0", 4, 8)
"""The machine that is never lost. Every job of a check fits on it."""
WAITS = 1_000
"""Intervals of `TICK_SECONDS` in which an idle machine must start a job that fits."""
TICK_SECONDS = 3_600.0
STREAM_JOBS = 3_000
"""Jobs that are submitted while an older job waits, until it counts as starved."""


class BrokenPolicy(AssertionError):
    """A promise of the scheduler is broken under a policy. `promise` is its number, see `check_policy`."""

    def __init__(self, promise: int, why: str) -> None:
        super().__init__(f"promise {promise} is broken: {why}")
        self.promise = promise


@dataclass(slots=True)
class _History:
    """One random history, and what must be true of the commands in it."""

    scheduler: Scheduler
    random: Random
    now: float = 0.0
    machines: dict[str, Machine] = field(default_factory=lambda: {LARGEST.id: LARGEST})
    open: dict[str, JobRequest] = field(default_factory=dict)
    """Jobs that have not ended."""
    running: dict[str, StartJob] = field(default_factory=dict)
    attempts: set[tuple[str, int]] = field(default_factory=set)
    reported: list[Event] = field(default_factory=list)
    """Events of the past, to be repeated."""
    commands: list[Command] = field(default_factory=list)
    submitted: int = 0

    def tell(self, event: Event) -> None:
        """Give an event to the scheduler, and check its commands."""
        self.reported.append(event)
        for command in self.scheduler.handle(event):
            self._check(command)
            self.commands.append(command)
        self.scheduler.check_policy_works()

    def submit(self) -> str:
        """Submit a job of random size, with a prediction that may be far off."""
        random, name = self.random, f"j{self.submitted}"
        self.submitted += 1
        gpus = random.choice((0, 1, 1, 2, 4))
        cpus = random.randint(1, 8) if gpus == 0 else random.randint(0, 2)
        user, cluster = random.choice("ab"), random.choice(("x", "y"))
        request = JobRequest(name, self.now, gpus, cpus, user, f"n{random.randint(0, 3)}", cluster)
        self.open[name] = request
        self.tell(JobSubmitted(self.now, request, 10 ** random.uniform(0, 5)))
        return name

    def end(self, name: str) -> None:
        """End a running job in one of the possible ways."""
        start = self.running.pop(name)
        kind = self.random.choice((JobFinished, JobFinished, JobFailed, JobStopped))
        if kind is not JobStopped:
            del self.open[name]
        self.tell(kind(self.now, name, start.attempt))

    def move(self) -> None:
        """Let something happen."""
        random = self.random
        self.now += random.expovariate(1 / 300)
        match random.randrange(12):
            case 0 | 1 | 2 | 3:
                self.submit()
            case 4 | 5 | 6 if self.running:
                self.end(random.choice(sorted(self.running)))
            case 7 if self.open:
                self._cancel(random.choice(sorted(self.open)))
            case 8:
                self._change_machine()
            case 9 if self.reported:
                self._repeat(random.choice(self.reported))
            case 10 if self.open:
                self.tell(
                    JobEstimated(self.now, random.choice(sorted(self.open)), 10 ** random.uniform(0, 5))
                )
            case _:
                self.tell(ClockTicked(self.now))

    def drain(self) -> None:
        """Let all jobs end. Raise BrokenPolicy if some are never started."""
        waits = 0
        while self.open:
            self.now += TICK_SECONDS
            if self.running:
                name = min(self.running)
                start = self.running.pop(name)
                self.open.pop(name, None)
                self.tell(JobFinished(self.now, name, start.attempt))
                waits = 0
                continue
            self.tell(ClockTicked(self.now))
            waits += 1
            if waits > WAITS:
                raise BrokenPolicy(
                    2, f"machines are idle, but these jobs are never started: {sorted(self.open)}"
                )

    def _check(self, command: Command) -> None:
        match command:
            case StartJob(name, attempt, placement):
                if name in self.running or (name, attempt) in self.attempts:
                    raise BrokenPolicy(0, f"job {name} is started twice (attempt {attempt})")
                if name not in self.open:
                    raise BrokenPolicy(0, f"job {name} is started, but it has ended or was never submitted")
                asked = self.open[name]
                given = sum(part.gpus for part in placement), sum(part.cpus for part in placement)
                if given[0] != asked.gpus or given[1] < asked.cpus:
                    raise BrokenPolicy(
                        1, f"job {name} gets other GPUs or cores than it asked for: {placement}"
                    )
                self.attempts.add((name, attempt))
                self.running[name] = command
                self._check_room()
            case PreemptJob(name, attempt) | CancelJob(name, attempt):
                if name not in self.running or self.running[name].attempt != attempt:
                    raise BrokenPolicy(0, f"attempt {attempt} of job {name} is stopped, but does not run")
            case _:
                raise BrokenPolicy(0, f"the scheduler must not send {command}")

    def _check_room(self) -> None:
        for name, machine in self.machines.items():
            parts = [
                part for start in self.running.values() for part in start.placement if part.machine == name
            ]
            gpus, cpus = sum(part.gpus for part in parts), sum(part.cpus for part in parts)
            if gpus > machine.gpus or cpus > machine.cpus:
                raise BrokenPolicy(
                    1, f"machine {name} runs jobs with {gpus} GPUs and {cpus} cores: {machine}"
                )

    def _cancel(self, name: str) -> None:
        runs = name in self.running
        self.tell(JobCancelled(self.now, name))
        if runs:
            start = self.running.pop(name)
            self.open.pop(name)
            self.tell(JobStopped(self.now, name, start.attempt))
        else:
            self.open.pop(name)

    def _change_machine(self) -> None:
        """Lose a machine with the attempts on it, or let one join."""
        others = sorted(self.machines.keys() - {LARGEST.id})
        if others and self.random.random() < 0.5:
            lost = self.random.choice(others)
            del self.machines[lost]
            for name, start in list(self.running.items()):
                if any(part.machine == lost for part in start.placement):
                    del self.running[name]
            self.tell(MachineLost(self.now, lost))
        else:
            name = f"m{self.random.randint(1, 3)}"
            if name not in self.machines:
                machine = Machine(name, self.random.choice((0, 1, 2, 4)), self.random.randint(1, 8))
                self.machines[name] = machine
                self.tell(MachineJoined(self.now, machine))

    def _repeat(self, event: Event) -> None:
        """Report again what was reported before, if that can happen by a lost answer."""
        match event:
            case JobFinished() | JobFailed() | JobStopped() | JobStarted():
                self.tell(event)
            case JobSubmitted(_, job) if job.id in self.open:
                self.tell(event)
            case _:
                self.tell(ClockTicked(self.now))


def check_policy(make: Callable[[], Policy], *, histories: int = 100, moves: int = 200) -> None:
    """Raise BrokenPolicy unless the scheduler keeps its promises under a policy.

    Random histories submit, end, cancel and estimate jobs again, lose and add machines, and repeat reports.

    - Promise 0: no attempt is started twice, and no job runs twice at once.
    - Promise 1: no machine runs more than it has.
    - Promise 2: no job is lost: when the others have ended, each job is started.
    - Promise 3: no job starves: while a stream of other jobs uses half of the machines, each job is started.
    - Promise 4: the same history gives the same commands.

    Raise PolicyFailed if the policy raises or gives a priority that is no number. Promise 3 is about half load: if more
    work comes than the machines can do, some jobs wait for long under every order. `longest_wait` of the scheduler
    bounds that.

    Args:
        make: Function that returns a new policy.
        histories: Number of random histories. Their seeds are 0, 1, 2, ...
        moves: Number of events of a history.
    """
    for seed in range(histories):
        first, second = (_played(make, seed, moves) for _ in range(2))
        if first != second:
            raise BrokenPolicy(4, f"the same history (seed {seed}) gave different commands")
    for seed in range(max(1, histories // 20)):
        _check_starvation(make, seed)


def _played(make: Callable[[], Policy], seed: int, moves: int) -> list[Command]:
    history = _History(Scheduler(make(), [LARGEST]), Random(seed))
    try:
        for _ in range(moves):
            history.move()
        history.drain()
    except BrokenPolicy as error:
        error.add_note(
            f"seed {seed}, after {len(history.reported)} events, the last of them: {history.reported[-3:]}"
        )
        raise
    return history.commands


def _check_starvation(make: Callable[[], Policy], seed: int) -> None:
    """Submit a stream of jobs of one GPU that use half of the machine, and larger jobs among them."""
    stream = _Stream(Scheduler(make(), [LARGEST]), Random(seed))
    for number in range(2 * STREAM_JOBS):
        stream.submit(number)
        oldest = min(stream.waiting.values(), default=number)
        if number - oldest > STREAM_JOBS:
            why = f"job j{oldest} starves: {number - oldest} later jobs were submitted, which need half of the machine"
            raise BrokenPolicy(3, why)


@dataclass(slots=True)
class _Stream:
    """A stream of jobs that run as long as drawn."""

    scheduler: Scheduler
    random: Random
    now: float = 0.0
    waiting: dict[str, int] = field(default_factory=dict)
    """Numbers of the jobs that wait."""
    ends: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Time of the end and attempt of the jobs that run."""

    def submit(self, number: int) -> None:
        """Submit the next job, after the jobs that end before."""
        random = self.random
        self.now += random.expovariate(1 / 50)
        while self.ends and (first := min((end, name) for name, end in self.ends.items()))[0][0] <= self.now:
            (at, attempt), name = first
            del self.ends[name]
            self._tell(JobFinished(at, name, attempt))
        gpus = random.choice((2, 4)) if number % 20 == 0 and number < STREAM_JOBS else 1
        request = JobRequest(f"j{number}", self.now, gpus, 0, random.choice("ab"), "", random.choice("xy"))
        self.waiting[request.id] = number
        self._tell(JobSubmitted(self.now, request, 5_000.0 if gpus > 1 else 100.0))

    def _tell(self, event: Event) -> None:
        for command in self.scheduler.handle(event):
            match command:
                case StartJob(name, attempt):
                    self.waiting.pop(name)
                    self.ends[name] = (event.at + self.random.expovariate(1 / 90), attempt)
                case PreemptJob(name, attempt):
                    del self.ends[name]
                    self.waiting[name] = int(name[1:])
                    self._tell(JobStopped(event.at, name, attempt))
