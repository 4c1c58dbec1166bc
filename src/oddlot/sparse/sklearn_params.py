"""What scikit-learn asks of an estimator beside learning: its settings, looked at, told and changed."""

from dataclasses import dataclass, fields, replace
from math import inf
from typing import Any, Self

from oddlot.sparse.errors import coded
from oddlot.sparse.optimizers import Adam, Moments
from oddlot.sparse.sampler import Sampler, check_sampler
from oddlot.sparse.validation import MAX_SEED, check_flag, check_number, check_whole


class NotFittedError(ValueError, AttributeError):
    """It is asked for what it will know after training. As scikit-learn's of this name, a fault of either kind."""


@dataclass(eq=False)
class Settings:
    """What a classifier is made with."""

    sampler: Sampler | None = None
    """None: `Clusters()`"""
    hidden: int = 128
    epochs: int = 5
    batch: int = 256
    labels: int | None = None
    """how many there are; None: as many as `y` has columns or, of one label each, one more than the largest"""
    lr: float = 3e-3
    """of Adam on the output layer, at first: in `fit` all rates fall linearly to zero over its epochs"""
    input_lr: float = 5e-2
    """of Adam on the features, which occur more seldom"""
    input_std: float = 0.03
    moments: Moments = "bf16"
    """of Adam, in 16 bits; or fp32, which take a third more memory"""
    validation: float = 0.0
    """the share of the examples that is held back, and by whose P@1 training ends early"""
    patience: int = 2
    """epochs without a better P@1, after which it ends"""
    seed: int = 0
    verbose: bool = False
    """print progress: each epoch, and what a sampler chooses"""
    normalize: bool = True
    """scale each example's features to an L2 norm of 1, in training and in prediction"""

    def __post_init__(self) -> None:
        check_sampler(self.sampler)
        check_whole(hidden=self.hidden, epochs=self.epochs, batch=self.batch, patience=self.patience)
        check_whole(0, MAX_SEED, seed=self.seed)
        if self.labels is not None:
            check_whole(labels=self.labels)
        check_number(0, inf, lr=self.lr, input_lr=self.input_lr, input_std=self.input_std)
        check_number(0, 1, validation=self.validation)
        check_flag(verbose=self.verbose, normalize=self.normalize)
        Adam(moments=self.moments)  # which looks at them

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """All settings by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.init}

    def set_params(self, **params: Any) -> Self:
        """Change some: rates and batches for what is learnt from now on, the others from the next `fit` on. ValueError:
        one is not known, or makes no sense."""
        if unknown := set(params) - set(self.get_params()):
            error = ValueError(f"{type(self).__name__} has no setting {min(unknown)!r}")
            raise coded(error, "unknown_name", kind="setting", given=min(unknown))
        replace(self, **params)  # which looks at them
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        """What scikit-learn asks before it cross-validates: a classifier of sparse features and several labels."""
        from sklearn.utils import ClassifierTags, InputTags, Tags, TargetTags

        return Tags(
            estimator_type="classifier",
            target_tags=TargetTags(required=True, multi_output=True),
            classifier_tags=ClassifierTags(multi_label=True),
            input_tags=InputTags(sparse=True),
        )
