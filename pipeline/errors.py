"""Errors of the sources and sinks that end a query."""


class LostRecordsError(Exception):
    """Records that should have been read are not there any more."""


class RefusedRecordsError(Exception):
    """Records that cannot be written: brokers do not take them, or a row says too little or too much."""


class WrittenDifferentlyError(Exception):
    """An earlier attempt has written other records than this one would, so nothing can be written once."""
