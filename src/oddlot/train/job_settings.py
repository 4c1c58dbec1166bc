"""The settings of a job that job files and flags change. Importing it loads neither numpy nor PyTorch."""

from dataclasses import dataclass, field
from typing import Literal

from oddlot.core.optimizers import SGD, Optimizer
from oddlot.core.support.validation import AboveZero, AtLeastOne, AtLeastZero, BelowOne
from oddlot.train.lr_schedules import Schedule


@dataclass(kw_only=True)
class JobSettings:
    """Base class of `Job`: its settings that are not code or data."""

    batch_size: AtLeastOne = 32
    """Samples per minibatch of one worker. A synchronous step of 4 workers uses 4 times this number."""
    micro_batch_size: AtLeastOne | None = None
    """Samples per forward and backward pass. Smaller parts of a minibatch need less memory; their gradients are
    accumulated. Default: the minibatch."""
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
    ema_decay: BelowOne | None = None
    """Decay of an exponential moving average of the weights, such as 0.999. The average is evaluated and saved as the
    model. Default: no average."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast of forward passes. With fp16, losses are scaled, and a step that overflows is computed again."""
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
    lr_scheduler_every: Literal["epoch", "version"] = "epoch"
    """Step of `lr_scheduler`: each merged epoch, or each version of the hub, as after each step of a script."""
    lr_scheduler_metric: str = "loss"
    """Metric of a `ReduceLROnPlateau`. It steps once per `evaluate_every`, at the hub only."""
    max_grad_norm: AboveZero | None = None
    """Maximum Euclidean norm of the gradient of each step, as of `torch.nn.utils.clip_grad_norm_`: of the merged
    gradient at the hub, or of local steps. Default: no clipping."""
