"""The tables of these pages, made from the tables in the code: a hook of MkDocs (mkdocs.yml).

A line `<!-- table: NAME -->` in a page becomes the table of this name.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import typer.main
from barnabas.broker.http import routes
from barnabas.broker.http.metric_names import METRICS
from barnabas.broker.http.openapi import document
from barnabas.broker.refusals import NOT_BUILT
from barnabas.cli.checks.findings import Needs
from barnabas.cli.checks.outcomes import TABLE as CHECKS
from barnabas.cli.commands import app
from barnabas.cli.completion import start_command
from barnabas.config.broker_settings import BROKER_SETTINGS
from barnabas.config.entities import CLIENT_METRICS_SETTINGS, GROUP_SETTINGS
from barnabas.config.settings import Dynamic, Setting
from barnabas.config.topic import TOPIC_SETTINGS
from barnabas.protocol.api_keys import ApiKey

MARKER = re.compile(r"^<!-- table: (\w+) -->$", re.M)
CHANGES = {Dynamic.NEVER: "at a start", Dynamic.BROKER: "of one broker", Dynamic.CLUSTER: "of one or all brokers"}


def on_page_markdown(markdown: str, **_: object) -> str:
    """Called by MkDocs with the text of each page."""
    return MARKER.sub(lambda marker: TABLES[marker[1]](), markdown)


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def commands() -> str:
    """Every command and its options."""
    return table(["command", "", "options"], _commands(typer.main.get_command(app), ["barnabas"]))


def _commands(command: Any, words: list[str]) -> Iterator[list[str]]:
    if not hasattr(command, "list_commands"):
        options = sorted({max(each.opts, key=len) for each in command.params if each.param_type_name == "option"})
        yield [f"`{' '.join(words)}`", command.get_short_help_str(200), " ".join(f"`{name}`" for name in options)]
        return
    for name in command.list_commands(None):
        inner = start_command() if [*words, name] == ["barnabas", "start"] else command.get_command(None, name)
        if not inner.hidden:
            yield from _commands(inner, [*words, name])


def paths() -> str:
    """Every path of the HTTP API."""
    routes.load()
    rows = [
        [f"`{method.upper()} {path}`", operation["summary"]]
        for path, operations in document()["paths"].items()
        for method, operation in operations.items()
    ]
    return table(["request", "what it does"], rows)


def metrics() -> str:
    """Every metric."""
    rows = [
        [f"`{metric.name}`", metric.kind, ", ".join(f"`{each}`" for each in metric.labels) or "-", metric.meaning]
        for metric in METRICS.values()
    ]
    return table(["metric", "kind", "labels", "meaning"], rows)


def checks() -> str:
    """Every check of doctor."""
    rows = [[each.name, each.looks_at, "yes" if each.needs is Needs.HTTP else ""] for each in CHECKS]
    return table(["check", "looks at", "needs the HTTP API"], rows)


def not_built() -> str:
    """The APIs of Kafka that are not built."""
    rows = [
        [feature, ", ".join(f"{ApiKey(key).kafka_name} ({key})" for key in keys)] for feature, keys in NOT_BUILT.items()
    ]
    return table(["not built", "APIs"], rows)


def broker_settings() -> str:
    """The settings of a broker that have an effect."""
    return _settings(BROKER_SETTINGS.values())


def topic_settings() -> str:
    """The settings of a topic that have an effect."""
    return _settings(TOPIC_SETTINGS.values(), can_change=False)


def other_settings() -> str:
    """The settings of groups and of clients' metrics that have an effect."""
    return _settings([*GROUP_SETTINGS.values(), *CLIENT_METRICS_SETTINGS.values()], can_change=False)


def settings_without_effect() -> str:
    """Those of Kafka's settings that are taken and ignored, as words."""
    settings = {**BROKER_SETTINGS, **TOPIC_SETTINGS}
    return ", ".join(f"`{name}`" for name, each in settings.items() if not each.has_effect) + "."


def _settings(settings: Iterable[Setting], *, can_change: bool = True) -> str:
    rows = []
    for each in settings:
        if each.has_effect:
            default = "not set" if each.default is None else f"`{each.default}`" if each.default else "empty"
            changed = [CHANGES[each.dynamic]] if can_change else []
            rows.append([f"`{each.name}`", each.type.name.lower(), default, *changed, each.meaning])
    return table(["setting", "type", "default", *(["can change"] if can_change else []), "meaning"], rows)


TABLES = {
    function.__name__: function
    for function in (
        *(broker_settings, checks, commands, metrics, not_built),
        *(other_settings, paths, settings_without_effect, topic_settings),
    )
}
