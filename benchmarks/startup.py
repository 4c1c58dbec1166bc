"""How long one waits before anything happens.

python -m benchmarks.startup [--quick|--smoke]

`import oddlot` and `oddlot --help` as whole processes, above a bare Python in turn; and from the call of `fit` to the
first merged update with two workers, in a fresh process that has PyTorch imported.
"""

import subprocess
import sys
import time
from statistics import median

from benchmarks.report import finish, parser, show, told

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
oddlot.fit(job, oddlot.Asynchronous(), oddlot.Local(workers=2), until="epochs>=1", observers=[watch])
print(first[0] - began)
"""


def seconds(*arguments: str) -> float:
    """A whole process, from start to end."""
    began = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def first_update() -> float:
    """Seconds from `fit` to the first merge."""
    output = subprocess.run(
        [sys.executable, "-c", FIRST_UPDATE], check=True, stdout=subprocess.PIPE, text=True
    )
    return float(output.stdout)


def main() -> None:
    """Measure in turn, print the table, print the line."""
    size = parser(__doc__, "fewer rounds, within 150 s").parse_args().size
    found: dict[str, list[float]] = {"import_seconds": [], "help_seconds": [], "first_update_seconds": []}
    for _ in range(size.pick(1, 7, 21)):
        bare = seconds("-c", "pass")
        found["import_seconds"].append(seconds("-c", "import oddlot") - bare)
        bare = seconds("-c", "pass")
        found["help_seconds"].append(seconds("-m", "oddlot", "--help") - bare)
    for _ in range(size.pick(1, 3, 9)):
        found["first_update_seconds"].append(first_update())
    goals = {"import_seconds": 0.15, "help_seconds": 0.5, "first_update_seconds": 4.0}
    rows = [[name, told(found[name]), str(goal)] for name, goal in goals.items()]
    show("start-up, seconds", ["figure", "median (range)", "at most"], rows)
    finish({name: median(values) for name, values in found.items()})


if __name__ == "__main__":
    main()
