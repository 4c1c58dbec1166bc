"""A run of a small network for digits."""

from pathlib import Path

import pytest

from tests.demo.networks import train


@pytest.fixture(scope="session")
def digits_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run with a lost worker."""
    folder = tmp_path_factory.mktemp("digits")
    train(folder)
    return folder
