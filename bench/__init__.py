"""Loads against one or two brokers, interleaved, with ratios: `python -m bench` from the repository's root.

Not part of the package: nothing here is installed.
"""
