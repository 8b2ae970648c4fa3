"""The processes that the tests of this folder share."""

from typing import Iterator

import pytest

from support import ranks


@pytest.fixture(scope="session", autouse=True)
def _ranks() -> Iterator[None]:
    yield
    ranks.close_all()
