"""What tests of simulations share."""

import gc
import logging
from collections.abc import Iterator

import pytest

gc.set_threshold(50_000, 20, 20)  # looking for cycles was a tenth of a run, which drops all that it has made at its end


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: in bad weather brokers have much to say."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
