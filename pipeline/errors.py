"""Errors of the sources that end a query."""


class LostRecordsError(Exception):
    """Records that should have been read are not there any more."""
