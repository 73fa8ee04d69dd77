"""Brokers with a believable day in them: `python -m examples --data ./day`.

A believable day for the pipeline: `day.py` says, as pure values, what happens in it, and keeps the truth; `fill.py`
writes it to brokers. `python -m examples --data DIR` does all of it with three brokers, one of which is killed.
"""
