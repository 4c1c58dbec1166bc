"""The settings of a job that job files and flags change. Importing it loads neither numpy nor PyTorch."""

from dataclasses import dataclass, field

from oddlot.core.optimizers import SGD, Optimizer
from oddlot.core.support.validation import AboveZero, AtLeastOne, AtLeastZero
from oddlot.train.lr_schedules import Schedule


@dataclass(kw_only=True)
class JobSettings:
    """Base class of `Job`: its settings that are not code or data."""

    batch_size: AtLeastOne = 32
    """Samples per minibatch of one worker. A synchronous step of 4 workers uses 4 times this number."""
    eval_batch_size: AtLeastOne | None = None
    """Samples per evaluation batch. Default: 256, or `batch_size` if that is larger."""
    drop_last: bool = False
    """Whether each epoch leaves out the samples of an incomplete last minibatch. They are other samples in each epoch.
    """
    load_workers: AtLeastZero = 0
    """Processes of each worker that load the next minibatches while it computes, as `num_workers` of a DataLoader. 0:
    the worker loads each minibatch when it needs it, as it does for arrays, in the simulator and in `profile`."""
    device: str = "auto"
    """Device of the workers: auto (cuda, else mps, else cpu), or a torch device such as cuda:1."""
    keep_optimizer: bool = False
    """Whether each worker keeps its optimizer state between tasks. False: each task's local steps start with a new
    optimizer."""
    optimizer: Optimizer = field(default_factory=lambda: SGD(lr=0.05, momentum=0.9))
    """Optimizer at the hub, and of local steps unless `local_optimizer` is given."""
    lr_schedule: Schedule | None = None
    """Factor on every learning rate, as a function of the merged epochs. `oddlot.lr_schedules` has ready-made
    functions. It applies where a gradient becomes a step: at the hub, or in local steps, but not to a strategy's
    `server` optimizer.
    """
    max_grad_norm: AboveZero | None = None
    """Maximum Euclidean norm of the mean gradient of each minibatch. Larger gradients are clipped. Default: no
    clipping."""
