"""A generated trace of recurrent jobs: users submit the same kinds of jobs again and again."""

from dataclasses import dataclass
from math import exp, log
from random import Random

from oddlot.core.support.random_streams import stream
from oddlot.core.support.validation import check_settings
from oddlot.queue.core.jobs import JobRequest
from oddlot.queue.traces.trace import Trace, TraceJob

GPUS = (1, 1, 1, 1, 2, 2, 4, 4, 8, 8, 16)
"""GPUs of templates. Most jobs of Helios use one (Hu et al. 2021, section 3.2.1)."""
MODELS = (
    "resnet50",
    "resnet101",
    "vgg16",
    "bert_base",
    "bert_large",
    "yolo",
    "unet",
    "gpt2",
    "dcgan",
    "lstm",
)
DATA = ("imagenet", "cifar", "coco", "wiki", "squad", "faces", "speech", "ads")
STEPS = ("train", "eval", "finetune", "debug", "pretrain")
DAY = 86_400.0
GPUS_PER_NODE = 8


@dataclass(frozen=True)
class RecurrentJobs:
    """Settings of a trace of recurrent jobs.

    A job has a template: its median duration, its number of GPUs and the words of its name. Templates are drawn by
    Zipf's law. Each has a few users, and a user has a factor of the duration, working hours, and a way to number names.
    A duration is log-normal: `median of the template * factor of the user * exp(sigma * N(0, 1))`.
    """

    jobs: int = 10_000
    templates: int = 200
    zipf: float = 1.6
    """Exponent: the n-th template is drawn with a probability proportional to n ** -zipf."""
    users: int = 40
    sigma: float = 1.0
    """Standard deviation of the logarithm of the durations of a user's jobs of one template. Nothing predicts it."""
    spread: float = 1.5
    """Standard deviation of the logarithm of the templates' medians. A history tells them."""
    median: float = 1_800.0
    """Median of the templates' medians, in seconds."""
    nodes: int = 16
    """Machines with 8 GPUs. Their number and `load` decide how fast jobs are submitted."""
    load: float = 0.75
    """GPU time of all jobs over the GPU time of the machines until the last submission."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self)

    def trace(self) -> Trace:
        """Return the trace. The same settings give the same trace."""
        random = stream(self.seed, "recurrent jobs")
        templates = [self._template(random, rank) for rank in range(self.templates)]
        users = [_User(random, number) for number in range(self.users)]
        weights = [(rank + 1) ** -self.zipf for rank in range(self.templates)]
        chosen = random.choices(templates, weights, k=self.jobs)
        drawn = [(template, users[random.choice(template.users) % self.users]) for template in chosen]
        durations = [
            min(max(1.0, template.median * user.factor * exp(random.gauss(0.0, self.sigma))), 30 * DAY)
            for template, user in drawn
        ]
        work = sum(seconds * template.gpus for seconds, (template, _) in zip(durations, drawn, strict=True))
        span = work / (self.nodes * GPUS_PER_NODE * self.load)
        days = max(1, round(span / DAY))
        moments = sorted(
            (user.moment(random, days) * span / (days * DAY), number)
            for number, (_, user) in enumerate(drawn)
        )
        return Trace(
            tuple(
                _job(at, place, *drawn[number], durations[number])
                for place, (at, number) in enumerate(moments)
            ),
            nodes={"": self.nodes},
            gpus_per_node=GPUS_PER_NODE,
        )

    def _template(self, random: Random, rank: int) -> "_Template":
        words = (random.choice(STEPS), random.choice(MODELS), random.choice(DATA))
        median = exp(random.gauss(log(self.median), self.spread))
        gpus = min(random.choice(GPUS), self.nodes * GPUS_PER_NODE)
        users = [random.randrange(self.users) for _ in range(random.randint(1, 4))]
        return _Template("_".join((*words, f"{chr(97 + rank % 26)}{rank // 26}")), median, gpus, users)


@dataclass(frozen=True)
class _Template:
    name: str
    median: float
    gpus: int
    users: list[int]


class _User:
    """The habits of a user."""

    def __init__(self, random: Random, number: int) -> None:
        self.name = f"user{number}"
        self.factor = exp(random.gauss(0.0, 0.4))
        self.morning = random.uniform(7.0, 12.0)
        self.numbering = random.choice(
            ("{name}", "{name}_run{n}", "{name}-lr0.{n}", "{n}_{name}", "{name}_v{n}")
        )

    def moment(self, random: Random, days: int) -> float:
        """Return a time of submission in seconds: mostly in the working hours of a weekday."""
        while True:
            day = random.randrange(days)
            if day % 7 < 5 or random.random() < 0.3:
                break
        hour = self.morning + random.uniform(0.0, 9.0) if random.random() < 0.8 else random.uniform(0.0, 24.0)
        return (day + min(hour, 23.99) / 24) * DAY


def _job(at: float, number: int, template: _Template, user: _User, seconds: float) -> TraceJob:
    name = user.numbering.format(name=template.name, n=number % 997)
    request = JobRequest(str(number), at, gpus=template.gpus, user=user.name, name=name)
    return TraceJob(request, seconds, "completed")
