"""Writing datasets in the text format of the Extreme Classification Repository."""

import gzip
from pathlib import Path

from oddlot.sparse.csr import Csr


def write_xmc(path: str | Path, x: Csr, y: Csr) -> None:
    """Write features and labels, with values to 5 digits; gzipped if the name ends in .gz. Writing is atomic."""
    path = Path(path).expanduser()
    new = path.with_name(f"{path.name}.new")
    try:
        _write(new, path.suffix == ".gz", x, y)
        new.replace(path)
    except BaseException:  # Ctrl-C too
        new.unlink(missing_ok=True)
        raise


def _write(path: Path, zipped: bool, x: Csr, y: Csr) -> None:
    with gzip.open(path, "wt", compresslevel=1) if zipped else path.open("w") as file:
        file.write(f"{len(x)} {x.shape[1]} {y.shape[1]}\n")
        for point in range(len(x)):
            labels = y.indices[y.indptr[point] : y.indptr[point + 1]]
            own = slice(x.indptr[point], x.indptr[point + 1])
            features = zip(x.indices[own].tolist(), x.data[own].tolist(), strict=True)
            told = " ".join(f"{column}:{value:.5g}" for column, value in features)
            file.write(f"{','.join(map(str, labels.tolist()))} {told}\n")
