"""`oddlot xmc-generate`: a synthetic dataset for extreme multi-label classification."""

from pathlib import Path

from oddlot.core.support.errors import UsageError
from oddlot.sparse.datasets.generating import Shape, generate
from oddlot.sparse.datasets.text_files import write_xmc
from oddlot.workloads.data_folders import check_average, check_place


def write_datasets(place: str, train_points: int, test_points: int, shape: Shape, force: bool) -> None:
    """Write `train.txt.gz` and `test.txt.gz` to a folder, and print their sizes.

    Raise UsageError if the folder has a dataset and `force` is False, if it cannot be written, or if the dataset does
    not fit into memory.
    """
    check_average("--nonzeros", shape.nonzeros, "--features", shape.features)
    check_average("--labels-each", shape.labels_each, "--labels", shape.labels)
    place = str(Path(place).expanduser()) if place else ""
    check_place(place, force)
    try:  # generate both before overwriting anything
        made = {
            name: generate(points, shape, stream)
            for stream, (name, points) in enumerate({"train": train_points, "test": test_points}.items(), 1)
        }
    except (MemoryError, ValueError) as error:
        own = {"code": "set_too_large", "fields": {}} | vars(error)
        raise UsageError(str(error), own["code"], **own["fields"]) from None
    for name, (x, y) in made.items():
        points, path = len(x), Path(place) / f"{name}.txt.gz"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for old in ("test.txt", "test.txt.gz"):  # never leave a file of another dataset
                (path.parent / old).unlink(missing_ok=True)
            write_xmc(path, x, y)
            (path.parent / f"{name}.txt").unlink(missing_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            message = f"{path} cannot be written: {reason}"
            raise UsageError(message, "unwritable_file", path=str(path), reason=reason) from None
        print(
            f"{path}: {points:,} points, {len(x.indices) / points:.1f} of {shape.features:,} features and "
            f"{len(y.indices) / points:.2f} of {shape.labels:,} labels each"
        )
