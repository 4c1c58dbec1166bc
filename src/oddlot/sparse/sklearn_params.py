"""The settings of a classifier, with scikit-learn's interface."""

from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Self

from oddlot.sparse.errors import coded
from oddlot.sparse.optimizers import Adam, Moments
from oddlot.sparse.sampler import Sampler, check_sampler
from oddlot.sparse.validation import MAX_SEED, check_flag, check_number, check_whole


class NotFittedError(ValueError, AttributeError):
    """The classifier is not trained. Like scikit-learn's exception of this name, a ValueError and an AttributeError."""


@dataclass(eq=False)
class SklearnParams:
    """Settings of a classifier."""

    sampler: Sampler | None = None
    """Sampler of the output layer. Default: `Clusters()`."""
    hidden: int = 128
    """Width of the hidden layer."""
    epochs: int = 5
    """Number of epochs of `fit`."""
    batch: int = 256
    """Examples per minibatch."""
    labels: int | None = None
    """Number of labels. Default: the number of columns of `y` or, with one label each, the largest label plus 1."""
    lr: float = 3e-3
    """Learning rate of the output layer (Adam). In `fit`, both rates decay linearly to 0."""
    input_lr: float = 5e-2
    """Learning rate of the input layer (Adam). Its features occur more rarely than rows of the output layer."""
    input_std: float = 0.03
    """Standard deviation of the initial weights of the input layer."""
    moments: Moments = "bf16"
    """Format of Adam's moments: `bf16`, or `fp32` with a third more memory."""
    validation: float = 0.0
    """Share of the examples that are held out. Training stops early when their P@1 stops rising. 0: none."""
    patience: int = 2
    """Epochs without a better P@1 until training stops."""
    seed: int = 0
    """Random seed."""
    verbose: bool = False
    """Whether to print progress."""
    normalize: bool = True
    """Whether features of each example are scaled to an L2 norm of 1, in training and in prediction."""

    def __post_init__(self) -> None:
        check_sampler(self.sampler)
        check_whole(hidden=self.hidden, epochs=self.epochs, batch=self.batch, patience=self.patience)
        check_whole(0, MAX_SEED, seed=self.seed)
        if self.labels is not None:
            check_whole(labels=self.labels)
        check_number(0, inf, lr=self.lr, input_lr=self.input_lr, input_std=self.input_std)
        check_number(0, 1, validation=self.validation)
        check_flag(verbose=self.verbose, normalize=self.normalize)
        Adam(moments=self.moments)  # checks them

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all settings by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    def set_params(self, **params: Any) -> Self:
        """Change settings. Learning rates and batch size take effect immediately, the others with the next `fit`.

        Raise ValueError for an unknown setting or an invalid value.
        """
        if unknown := set(params) - set(self.get_params()):
            error = ValueError(f"{type(self).__name__} has no setting {min(unknown)!r}")
            raise coded(error, "unknown_name", kind="setting", given=min(unknown))
        replace(self, **params)  # checks them
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """Return scikit-learn's tags: a multi-label classifier for sparse features."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True, multi_output=True),
            classifier_tags=ClassifierTags(multi_label=True),
            input_tags=InputTags(sparse=True),
        )
