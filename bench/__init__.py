"""Loads against one or two brokers, in turn, with ratios: `python -m bench` in the repository's root.

This folder is not part of the package, and not installed.
"""
