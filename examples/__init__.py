"""Brokers with a believable day in them: `python -m examples --data ./day`."""
