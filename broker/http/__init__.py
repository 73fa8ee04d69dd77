"""The HTTP API of a broker: what Kafka's protocol has no word for.

`server.py` opens the listeners and imports the rest when the first connection comes. `connection.py` is one connection
(who may ask, limits, h11), `logins.py` says who has sent a request. `routes.py` is the table of routes, which the
decorator `route` fills. `schemas.py` says which fields a body has, `openapi.py` makes the document of it.
`coordinators.py` redirects to the coordinator of a group.

One module per family of routes answers:

- the broker: `status.py`, `readiness.py` (what a load balancer asks), `health.py` (the facts that `barnabas doctor`
  judges), `metrics.py` (what Prometheus scrapes; `metric_names.py` is the table of all metrics), `topics.py`;
- groups: `groups.py`, `events.py` (why one has rebalanced), `lag.py`, `journal.py`, `offsets.py` (offsets that are
  removed), `live_reset.py`;
- tests (`control.enable`): `control.py` (faults, time, the record of requests), `waits.py` (long polls), `lives.py`
  (snapshots, and restoring them), `leftovers.py` (what a test has not put away).
"""
