"""Time that oddlot takes to start.

`import oddlot` and `oddlot --help` are timed as complete processes, minus the start of Python. The first update is
timed from the call of `fit` with two workers, in a new process that has already imported PyTorch.

python -m benchmarks.startup [--quick|--smoke] [--save]
"""

import subprocess
import sys
import time

from benchmarks.figures import STARTUP
from benchmarks.report import finish, median_and_range, parse, parser, show

FIRST_UPDATE = """
import time, torch, oddlot
from oddlot.core.commands import Step
data = torch.zeros(640, 8), torch.zeros(640, dtype=torch.long)
job = oddlot.Job(model=lambda: torch.nn.Linear(8, 2), train_data=data,
                 loss=torch.nn.functional.cross_entropy)
first = []
def watch(record):
    if not first and any(isinstance(action, Step) for action in record.actions):
        first.append(time.perf_counter())
began = time.perf_counter()
oddlot.fit(job, oddlot.Asynchronous(), oddlot.Local(workers=2), until="epochs>=1", callbacks=[watch])
print(first[0] - began)
"""


def seconds(*arguments: str) -> float:
    """Return the seconds of a Python process, from start to end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_update() -> float:
    """Return the seconds from `fit` to the first merge, in a new process."""
    output = subprocess.run(
        [sys.executable, "-c", FIRST_UPDATE], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(output.stdout)


def main() -> None:
    """Measure in turn, print the table and the figures."""
    options = parse(parser("startup", __doc__, "fewer rounds, within 150 s"))
    size = options.size
    found: dict[str, list[float]] = {"import_seconds": [], "help_seconds": [], "first_update_seconds": []}
    for _ in range(size.pick(1, 7, 21)):
        bare = seconds("-c", "pass")
        found["import_seconds"].append(seconds("-c", "import oddlot") - bare)
        bare = seconds("-c", "pass")
        found["help_seconds"].append(seconds("-m", "oddlot", "--help") - bare)
    for _ in range(size.pick(1, 3, 9)):
        found["first_update_seconds"].append(first_update())
    rows = [[name, median_and_range(values), STARTUP[name].goal] for name, values in found.items()]
    show("start-up, seconds", ["figure", "median (range)", "goal"], rows)
    finish(options, found)


if __name__ == "__main__":
    main()
