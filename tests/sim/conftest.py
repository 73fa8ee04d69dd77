"""What tests of simulations share."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: in bad weather brokers have much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
