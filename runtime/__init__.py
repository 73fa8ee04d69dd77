"""The operating system, and the loop: the only package that asks for time, files, sockets and randomness.

`ports.py` is what a broker may ask of the world, and `clock.py`, `disk.py` and `network.py` do it. `pending.py` is an
answer that is not there yet. `turns.py` does long tasks a few pieces at a time, `tasks.py` holds what requests asked
for, and `upkeep.py` what a broker does again and again by itself (rules 4, 1 and 6). For the process: `output.py`
prints and logs in threads, which may block, because the loop must not; `counted.py` puts numbers and nouns together,
`parent.py` notices that the process which started the broker is gone, and `watchdog.py` that the loop stands still;
`processes.py` tells one process from another that gets its number, `lock_holders.py` finds the process that keeps
others from the tree; `temporary.py` makes and removes temporary data.
"""
