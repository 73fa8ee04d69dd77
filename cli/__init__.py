"""The commands of `barnabas`, one module each. Only the module of the command that runs is imported.

`main.py` runs one command: `start.py` runs a broker (with the options of `start_options.py` and the settings that
`start_settings.py` reads, until `ready.py` prints that it serves), `cluster_start.py` several, each in its process
(`cluster_directory.py` checks their directory first; `secured_start.py` is `--secured`). Only `start.py` and `ready.py`
know the broker; all other commands are ordinary clients. `barnabas/` has the modules of the import package itself, such
as `python -m barnabas`.

`commands.py` lists the commands; a module that is not named here has the name of its command. Of those with parts:

- `groups`: `lag.py` is `groups lag`, with the plot of `plot.py`; `explanation.py` is `groups explain`; `group_waits.py`
  says for `groups describe` which open transactions a group waits for.
- `offsets`: `offset_targets.py` is where `offsets set` moves a group, `live_reset.py` does it while members read on.
  `journal.py` is `offsets log`, `diff`, `restore` and `undo`, `journal_reading.py` what they read. `backup.py` writes
  and reads backups of offsets, with `backup_file.py` for the file and `log_headers.py` for the headers of batches in
  logs. `cleanup.py` is `offsets cleanup`, `migration.py` is `offsets migrate`.
- `produce` and `consume`: `json_records.py` is a record as a line of JSON, `record_printing.py` and `record_places.py`
  are the forms and places of `consume`.
- `transactions` (`transactions.py`, `abort_transaction.py`) shows and ends transactions by what `open_transactions.py`
  asks coordinators and partitions; `transaction_description.py` is one of them for a person.
- `cluster.py` shows brokers and replicas (`cluster_backup.py` writes a backup of the tree). `doctor.py` asks all
  brokers what they know, and `checks/` finds what is wrong in it. `trace.py` shows what clients ask.
- `completion.py` is for shells.

`shared/` is what the commands have in common: the client, the options, how they print and how they end.
"""
