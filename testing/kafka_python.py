"""kafka-python, imported when a test needs something. Most need nothing, and the import takes a tenth of a second.

It warns at its import (DeprecationWarning, before Python 3.13), which a suite may take for an error: `-W error`.
"""

import warnings
from importlib import import_module
from typing import Any


def kafka_python(module: str = "kafka") -> Any:
    """A module of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return import_module(module)


def kafka_errors() -> Any:
    """Its exceptions."""
    return kafka_python("kafka.errors")
