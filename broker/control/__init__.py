"""What tests command of a running broker (`control.enable`, `--profile ci`): faults, and wall time that passes.

`gate.py` is the request gate of a broker that can be commanded; other brokers have the plain one, and pay nothing.
`facts.py` says what a request is about, `rules.py` which requests get a fault, and which, `parts.py` splits a request
of which only a part gets it, `errors.py` says which errors an API can have, `stale_metadata.py` what clients hear of a
cluster as it was; `recorder.py` keeps the last requests with their answers (without what `secrets.py` takes out),
`lint.py` says by them what clients could do better, `clock.py` lets wall time pass, `numbers.py` lets numbers go on
that clients remember beyond a restore, `snapshots.py` makes and restores snapshots. `broker/http/control.py` has the
paths under `/v1/control`.
"""
