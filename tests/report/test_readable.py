"""Settings of a strategy on a report page, with the names of job files and without None."""

import pytest

from oddlot.report.run_tables import readable


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("Synchronous(samples=None)", "synchronous"),
        ("FastestK(k=2, samples=None)", "fastest_k: k = 2"),
        (
            "Quorum(inner=LocalSGD(steps=8, server=SGD(lr=0.7, nesterov=True)), k=0.5)",
            "quorum: inner = local_sgd (steps = 8, server = sgd (lr = 0.7, nesterov = true)), k = 0.5",
        ),
        (
            "AdaptiveK(times=((0.2, 3),), switch=ByGradients())",
            "adaptive_k: times = [[0.2, 3]], switch = gradients",
        ),
        ("Mine(x='y', z=-1)", "Mine: x = y, z = -1"),
        ("no call", "no call"),
        ("(" * 10_000, "(" * 10_000),
        ("f(" + "-" * 100_000 + "1)", None),
    ],
    ids=range(8),
)
def test_settings_use_job_file_names(settings: str, message: str | None) -> None:
    assert readable(settings) == (settings if message is None else message)
