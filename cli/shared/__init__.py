"""What the commands share: the way to a broker, the options, how a command prints and how it ends.

`client.py` is the client on kafka-python, imported when it runs; only `kafka_python.py` touches kafka-python's private
parts. `http_client.py` is the way to the HTTP API. `target.py` is the broker that is asked (`probe.py` finds one that
answers), and the time limit that ends a command; `login.py` is how it logs in, `rights.py` which right it lacks.
`options.py` lets commands share options as dataclasses, `moments.py` reads times. `terminal.py` has the common options,
tables, questions and progress, `words.py` says how times, sizes, names and commands are shown, and `exits.py` has the
exit codes.
"""
