"""Settings that a Job takes over from PyTorch DataLoaders, and checks of samplers."""

from collections.abc import Callable, Mapping
from typing import Any

from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    default_collate,
)
from torch.utils.data.distributed import DistributedSampler

from oddlot.core.support.errors import UsageError, short
from oddlot.core.support.user_warnings import warn
from oddlot.data.batches import not_a_dataset
from oddlot.data.shards import Shards

INNER = "sampler"
"""Attribute of a `BatchSampler` with the sampler of its samples."""


def take_over_loaders(job: Any, given: frozenset[str]) -> None:
    """Replace the job's DataLoaders by their datasets and settings. `given`: the settings that were passed to the job.

    Raise UsageError if a setting of a loader differs from a given one, or cannot be taken over.
    """
    train, evaluation = job.train_data, job.eval_data
    if isinstance(train, DataLoader):
        _check_class("train_data", train)
        _set(job, given, "train_data", _of_train(train))
        job.train_data = train.dataset
    if isinstance(evaluation, DataLoader):
        _check_class("eval_data", evaluation)
        _set(job, given, "eval_data", _of_evaluation(evaluation))
        job.eval_data = _eval_dataset(evaluation)


def check_samplers(job: Any) -> None:
    """Raise UsageError if the job's samplers are no samplers, or do not fit its data."""
    if job.drop_last and isinstance(job.train_data, Shards):
        message = "drop_last=True cannot be used with Shards: leave the samples out of the parts"
        raise UsageError(message, "drop_last_with_shards", "drop_last")
    if job.sampler is not None and job.batch_sampler is not None:
        message = (
            "sampler and batch_sampler exclude each other: a batch_sampler has the samples of each batch"
        )
        raise UsageError(message, "settings_exclude", "batch_sampler", names=["sampler", "batch_sampler"])
    for name in ("sampler", "batch_sampler"):
        if (sampler := getattr(job, name)) is not None:
            _check_sampler(name, sampler)
            _check_beside(job, name)


def _check_sampler(name: str, sampler: Any) -> None:
    if not (hasattr(sampler, "__iter__") and hasattr(sampler, "__len__")):
        must = "a PyTorch sampler: an object with len() that yields indices of samples"
        message = f"{name} = {short(sampler)} must be {must}"
        raise UsageError(message, "not_a_sampler", name, name=name, type=type(sampler).__name__)
    if isinstance(sampler, DistributedSampler) or isinstance(
        getattr(sampler, INNER, None), DistributedSampler
    ):
        raise UsageError(
            f"{name} is a DistributedSampler. Leave it out: oddlot divides the samples of an epoch among the workers "
            "itself",
            "distributed_sampler",
            name,
            name=name,
        )


def _check_beside(job: Any, name: str) -> None:
    """Raise UsageError if another setting of the job does not fit the sampler `name`."""
    if isinstance(job.train_data, Shards):
        message = f"{name} cannot be used with Shards: a worker would open all parts for each minibatch"
        raise UsageError(message, "sampler_with_shards", name, name=name)
    if job.drop_last:
        kind, what = type(getattr(job, name)), name
        advice = "let the sampler leave out the samples, in its len() too"
        if kind is SequentialSampler:
            what = "a DataLoader with shuffle=False (a SequentialSampler)"
            advice = "leave the last samples out of the dataset, as with torch.utils.data.Subset, or use shuffle=True"
        message = f"drop_last=True cannot be used with {what}: {advice}"
        raise UsageError(message, "drop_last_with_sampler", "drop_last", name=name, type=kind.__name__)
    if name == "batch_sampler" and job.batch_size != 1:
        message = (
            f"batch_size = {job.batch_size} with a batch_sampler: a batch of the sampler counts as one sample, and one "
            "minibatch is one batch. Leave batch_size out, or set it to 1"
        )
        raise UsageError(message, "batch_size_with_batch_sampler", "batch_size", given=job.batch_size)


def _of_train(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the job's settings for a loader of training data."""
    found: dict[str, Any] = {"load_workers": loader.num_workers} if loader.num_workers else {}
    if loader.worker_init_fn is not None:
        found["load_worker_init"] = loader.worker_init_fn
    batches = loader.batch_sampler
    if loader.batch_size is None and batches is not None and type(batches) is not BatchSampler:
        return found | _collate(loader, "collate") | {"batch_sampler": batches, "batch_size": 1}
    batch, drop_last, sampler = _batching(loader)
    if not _shuffles_all(sampler):
        found["sampler"] = sampler
    if drop_last:
        found["drop_last"] = True
    return found | _collate(loader, "collate") | {"batch_size": batch}


def _batching(loader: "DataLoader[Any]") -> tuple[int, bool, Any]:
    """Return the batch size of a loader, whether it drops the last batch, and its sampler of single samples."""
    batches = loader.batch_sampler
    if batches is None:  # an item of the dataset is a batch
        return 1, False, loader.sampler
    assert isinstance(batches, BatchSampler)
    sampler: Any = batches.sampler
    return batches.batch_size, batches.drop_last and len(sampler) % batches.batch_size > 0, sampler


def _of_evaluation(loader: "DataLoader[Any]") -> dict[str, Any]:
    """Return the job's settings for a loader of evaluation data."""
    batches = loader.batch_sampler
    if batches is not None and type(batches) is not BatchSampler:
        raise UsageError(
            f"eval_data has the batch_sampler {type(batches).__name__}, but an evaluation makes its own batches. Use "
            "DataLoader(dataset, batch_size=..., collate_fn=...)",
            "loader_not_taken_over",
            "eval_data",
            name="eval_data",
            setting="batch_sampler",
        )
    return _collate(loader, "eval_collate") | {"eval_batch_size": _batching(loader)[0]}


def _eval_dataset(loader: "DataLoader[Any]") -> Any:
    """Return the samples that the loader yields, in its order if that is not random."""
    _, drops, sampler = _batching(loader)
    _check_sampler("eval_data.sampler", sampler)
    if drops:
        warn(
            "drop_last=True of eval_data is not taken over: an evaluation uses all samples",
            "loader_setting_ignored",
            name="eval_data",
            settings=["drop_last"],
        )
    if _shuffles_all(sampler) or isinstance(sampler, SequentialSampler):
        return loader.dataset
    return Subset(loader.dataset, [int(index) for index in sampler])


def _collate(loader: "DataLoader[Any]", name: str) -> dict[str, Any]:
    if loader.batch_sampler is None:
        return {name: FirstItem(loader.collate_fn)}
    if name == "collate" and loader.collate_fn is default_collate:
        return {}
    return {name: loader.collate_fn}


class FirstItem:
    """A collate function for a dataset of batches: it converts the only item of a list."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        self.convert = convert

    def __call__(self, items: list[Any]) -> Any:
        return self.convert(items[0])


def _shuffles_all(sampler: Any) -> bool:
    """Return whether a sampler yields a random permutation of all samples."""
    if type(sampler) is not RandomSampler or sampler.replacement:
        return False
    return sampler.num_samples == len(sampler.data_source)


def _check_class(name: str, loader: "DataLoader[Any]") -> None:
    """Raise UsageError for iterable datasets and for subclasses that change the batches. Warn of ignored settings."""
    if isinstance(loader.dataset, IterableDataset):
        raise not_a_dataset(name, name, loader.dataset)
    kind = type(loader)
    if kind.__iter__ is not DataLoader.__iter__:
        raise UsageError(
            f"{name} is a {kind.__name__}, a DataLoader with its own iteration, which oddlot does not use. Pass "
            f"Job({name}=loader.dataset, collate=..., ...)",
            "loader_not_taken_over",
            name,
            name=name,
            setting="__iter__",
            type=kind.__name__,
        )
    ignored = [
        *(["timeout"] if loader.timeout else []),
        *(["multiprocessing_context"] if loader.multiprocessing_context is not None else []),
    ]
    if ignored:
        warn(
            f"{' and '.join(ignored)} of {name} has no effect: oddlot starts the loading processes itself",
            "loader_setting_ignored",
            name=name,
            settings=ignored,
        )


def _set(job: Any, given: frozenset[str], name: str, found: Mapping[str, Any]) -> None:
    """Set the job's fields to the settings `found` in a loader."""
    for setting, value in found.items():
        own = getattr(job, setting)
        if setting in given and own != value:
            raise UsageError(
                f"Job({setting}={short(own)}) differs from the DataLoader in {name}, which has {short(value)}: leave "
                f"{setting} out",
                "setting_given_twice",
                setting,
                name=setting,
                given=own,
                loader=value,
            )
        setattr(job, setting, value)
