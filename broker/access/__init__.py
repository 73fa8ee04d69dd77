"""What each API asks for: one `Access` for each row of the table of APIs (`broker/requests.py`).

An access is given a request at the gate, asks for the rights that it needs, and has the handler answer what is allowed.
The rest is answered with Kafka's errors, and without a word about what is there. `rules.py` has the forms that many
APIs share (one right for the whole request, one for each row of it); the others are in a module for each family:
`records.py`, `topics.py`, `groups.py`, `transactions.py`, `tokens.py` and `admin.py`; `http.py` has the rights on paths
of the HTTP API. No handler is called, and no group, topic or transactional id is looked up, before its right is asked
for.

Requests that the broker sends to itself pass here, too; they may do everything.
"""
