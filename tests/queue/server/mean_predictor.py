"""A simple predictor: the mean duration of the jobs with the same name, as in a history without learning."""

from oddlot.queue.core.jobs import JobRequest


class Prediction:
    def __init__(self, seconds: float) -> None:
        self.seconds, self.low, self.high = seconds, seconds / 2, seconds * 2


class MeanByName:
    """Predicts the mean of earlier jobs of the user with this name."""

    def __init__(self) -> None:
        self.durations: dict[tuple[str, str], list[float]] = {}

    def predict(self, job: JobRequest, now: float, estimate: float | None = None) -> Prediction:
        known = self.durations.get((job.user, job.name))
        return Prediction(sum(known) / len(known) if known else estimate or 60.0)

    def observe(self, job: JobRequest, duration: float, now: float) -> None:
        self.durations.setdefault((job.user, job.name), []).append(duration)
