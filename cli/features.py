"""`barnabas features`: describe, upgrade, downgrade, disable. The words are those of `kafka-features.sh`."""

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from barnabas.cli.shared.client import admin, answered, await_controller, reason
from barnabas.cli.shared.exits import ExitCode, fail, key_values, say
from barnabas.cli.shared.kafka_python import consumer_groups, send_to_controller
from barnabas.cli.shared.target import Target
from barnabas.cli.shared.terminal import INT16_MAX, INT32_MAX, AsJson, new_app, print_json, print_outcomes, print_table
from barnabas.cluster.features import ALL_FAILED, GROUP_VERSION, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE, UPGRADE
from barnabas.runtime.counted import counted, names_in_a_line

app = new_app("""Protocols of the whole cluster that have levels: describe, upgrade, downgrade, disable.

    \b
    barnabas features describe
    barnabas features upgrade --all --dry-run
    barnabas features upgrade --feature transaction.version=2
    barnabas features downgrade --feature transaction.version=1
    barnabas features disable --feature transaction.version
    """)

FIRST_VERSION_WITH_VALIDATE_ONLY = 1

Levels = Annotated[
    list[str] | None,
    typer.Option("--feature", metavar="NAME=LEVEL", help="Which level of which feature. Repeat it for several."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Let the cluster check it, change nothing.")]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Do it even if that loses what only a higher level knows.")]


@app.command()
def describe(target: Target, as_json: AsJson = False) -> None:
    """The features of the cluster: the levels that the broker supports, and the level that holds.

    \b
    barnabas features describe
    barnabas features describe --json
    """
    with admin(target) as client:
        rows = _described(client)
    if as_json:
        print_json(rows)
        return
    print_table(
        ["feature", "#supported from", "#to", "#level that holds", "#epoch"],
        [(row["feature"], row["min_supported"], row["max_supported"], row["level"], row["epoch"]) for row in rows],
    )


@app.command()
def upgrade(
    target: Target,
    feature: Levels = None,
    every: Annotated[bool, typer.Option("--all", help="Each feature to the newest level that is supported.")] = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Raise levels. Every broker of the cluster has to support them.

    Clients see the new level when they connect again, or at their next look at it. Nothing has to be stopped.

    \b
    barnabas features upgrade --feature transaction.version=2
    barnabas features upgrade --all --dry-run
    """
    if every == bool(feature):
        fail("say which levels: --feature NAME=LEVEL, or --all.", ExitCode.NOT_VALID)
    levels = None if every else _levels(feature or [])
    _update(target, levels, UPGRADE, "upgraded to", dry_run=dry_run, as_json=as_json)


@app.command()
def downgrade(
    target: Target, feature: Levels = None, unsafe: Unsafe = False, dry_run: DryRun = False, as_json: AsJson = False
) -> None:
    """Lower levels, for example before an older release is started.

    \b
    barnabas features downgrade --feature transaction.version=1
    barnabas features downgrade --feature transaction.version=1 --dry-run
    """
    if not feature:
        fail("say which levels: --feature NAME=LEVEL.", ExitCode.NOT_VALID)
    kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
    _update(target, _levels(feature), kind, "downgraded to", dry_run=dry_run, as_json=as_json)


@app.command()
def disable(
    target: Target,
    feature: Annotated[
        list[str] | None, typer.Option("--feature", metavar="NAME", help="A feature. Repeat it for several.")
    ] = None,
    unsafe: Unsafe = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Lower features to level 0.

    \b
    barnabas features disable --feature transaction.version
    """
    if not feature:
        fail("say which features: --feature NAME.", ExitCode.NOT_VALID)
    kind = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
    _update(target, dict.fromkeys(feature, 0), kind, "disabled", dry_run=dry_run, as_json=as_json)


def _levels(pairs: list[str]) -> dict[str, int]:
    names = [pair.partition("=")[0].strip() for pair in pairs]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        fail(f"feature {', '.join(twice)} is named more than once.", ExitCode.NOT_VALID)
    levels = {}
    for name, text in key_values(pairs, "--feature").items():
        if not (text.isascii() and text.isdecimal()) or len(text) > 5 or int(text) > INT16_MAX:
            fail(f"the level of {name} is a whole number from 0 on, not {text!r}.", ExitCode.NOT_VALID)
        levels[name] = int(text)
    return levels


def _described(client: Any) -> list[dict[str, Any]]:
    found = answered(client, client.describe_features)
    epoch = next((row["finalized_epoch"] for row in found.values() if row.get("finalized_epoch") is not None), None)
    rows = []
    for name, row in sorted(found.items()):
        low, high = row.get("supported", (None, None))
        _, level = row.get("finalized", (0, 0))
        rows.append({"feature": name, "min_supported": low, "max_supported": high, "level": level, "epoch": epoch})
    return rows


def _tell_of_members(client: Any, *, dry_run: bool) -> None:
    """Say which groups lose their members. Nobody is asked: Kafka lowers the level, too."""
    names = [row["group_id"] for row in consumer_groups(client.list_groups()) if row.get("group_state") != "Empty"]
    if names:
        say(
            f"{counted(len(names), 'group')} of group.protocol=consumer {'would lose' if dry_run else 'will lose'} "
            f"all members, whose heartbeats are refused at level 0: {names_in_a_line(sorted(names))}."
        )


def _update(
    target: Target, levels: Mapping[str, int] | None, kind: int, done: str, *, dry_run: bool, as_json: bool
) -> None:
    """Ask the controller for these levels (None: the newest of all), and print the outcome."""
    from kafka.protocol.admin import UpdateFeaturesRequest

    with admin(target) as client:
        before = {row["feature"]: row for row in _described(client)}
        if levels is None:
            newest = {name: row["max_supported"] or 0 for name, row in before.items()}
            levels = {name: level for name, level in newest.items() if level >= before[name]["level"]}
        await_controller(client)
        updates = [
            UpdateFeaturesRequest.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=kind)
            for name, level in levels.items()
        ]
        request = UpdateFeaturesRequest(
            timeout_ms=min(int(target.timeout_s * 1000), INT32_MAX),
            feature_updates=updates,
            validate_only=dry_run,
            min_version=FIRST_VERSION_WITH_VALIDATE_ONLY,
        )
        response = send_to_controller(client, request)
        if not response.error_code and levels.get(GROUP_VERSION) == 0:
            _tell_of_members(client, dry_run=dry_run)
    if response.error_code:
        why = reason(
            response.error_code, (response.error_message or "").removeprefix(ALL_FAILED) or None, "alter cluster"
        )
        lower = [f"{name}={level}" for name, level in levels.items() if level < before.get(name, {}).get("level", 0)]
        hint = "to see the levels that are possible: barnabas features describe"
        if kind == UPGRADE and lower:
            hint = f"to lower a level: barnabas features downgrade --feature {lower[0]}"
        fail(f"nothing was changed: {why}\n{hint}")
    rows = []
    for name, level in levels.items():
        was = before.get(name, {}).get("level", 0)
        result = f"can be {done}" if dry_run else done
        if done.endswith(" to"):
            result += f" {level}"
        if was == level:
            result = f"at level {level} already"
        rows.append({"feature": name, "result": result, "level": level, "level_before": was})
    print_outcomes("feature", rows, as_json)
