"""Which broker a command asks, how long it waits for one, and the time limit that ends every command."""

import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn

import typer
from barnabas.cli.shared.exits import ExitCode, Failure, fail
from barnabas.config.addresses import is_ipv6

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_PORT = 9092
DEFAULT_TIMEOUT_S = 30.0
DEFAULT_WAIT_S = 0.5
KNOWS_NOBODY = (
    "the broker {} knows of no broker, not even of itself: it has not heard from the controller. Its log says why, or "
    "that of the controller. Others may know more (--bootstrap)."
)
LOGIN_LOOKED_FOR_AFTER_S = 1.0  # few commands take so long
SECONDS_MAX = 10_000_000  # four months; the operating system's timer takes no infinity


@dataclass(frozen=True, slots=True)
class Target:
    """The broker and the time limits that --bootstrap, --timeout and --wait name.

    If a command has a --timeout of its own with another meaning, the broker has the default time for an answer.
    """

    bootstrap: Annotated[
        str,
        typer.Option(
            *("--bootstrap", "-b"),
            envvar="BARNABAS_BOOTSTRAP",
            metavar="HOST:PORT",
            help="A broker of the cluster; or several, with commas.",
        ),
    ] = DEFAULT_BOOTSTRAP
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout", metavar="SECONDS", min=0.001, max=SECONDS_MAX, help="Fail when it is not done after so long."
        ),
    ] = DEFAULT_TIMEOUT_S
    wait_s: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, max=SECONDS_MAX, help="How long to try while no broker listens there."
        ),
    ] = DEFAULT_WAIT_S
    command_config: Annotated[
        str | None,
        typer.Option(
            "--command-config",
            envvar="BARNABAS_CONFIG",
            metavar="FILE",
            help="How to log in, and TLS: a client.properties as Kafka's tools take it.",
        ),
    ] = None
    as_json: bool = field(kw_only=True)  # of the command: an error is JSON, too

    @property
    def bootstrap_option(self) -> str | None:
        """What a command that is shown to a person needs in --bootstrap; None: nothing."""
        return None if self.bootstrap == DEFAULT_BOOTSTRAP else self.bootstrap

    def reach(self) -> str:
        """The address of the first broker that answers; begins the time limit. If nothing listens, end the command.

        A broker that stands still accepts connections. kafka-python would wait for it until the time limit.
        """
        addresses = addresses_of(self.bootstrap)
        signal.signal(signal.SIGINT, end_at_once)
        self.say_when_late(self._is_silent)
        signal.setitimer(signal.ITIMER_REAL, self.wait_s + self.timeout_s)  # also bounds a silent name server
        from barnabas.cli.shared.login import read  # late: --help needs neither a loop nor sockets
        from barnabas.cli.shared.probe import Outcome, first_to_answer, speaks_tls

        tls = read(self.command_config).tls
        found = first_to_answer(addresses, self.wait_s, tls)
        if found.outcome in (Outcome.NOT_RESOLVED, Outcome.FOREIGN):
            fail(f"{found.words}. Name a broker with --bootstrap HOST:PORT.")
        if found.outcome is Outcome.NO_TLS:
            fail(f"{found.words}. What the command says of TLS stands in {self.command_config}.")
        if found.outcome is Outcome.CLOSED and tls is None and speaks_tls(found.address):
            fail(
                f"{self.bootstrap} speaks TLS. Say how with --command-config FILE, a client.properties as Kafka's "
                "tools take it (security.protocol=SSL or SASL_SSL, ssl.truststore.location=…), or BARNABAS_CONFIG."
            )
        if found.outcome is Outcome.NOTHING_LISTENS:
            self.nobody_answers()
        self.renew()
        closes = found.outcome is Outcome.CLOSED
        self.say_when_late(self._closes if closes else functools.partial(self._wants_login, found.address))
        return found.place

    def answers(self) -> bool:
        """Whether something listens there now."""
        from barnabas.cli.shared.probe import Outcome, look

        return look(addresses_of(self.bootstrap)).outcome > Outcome.NOTHING_LISTENS

    def renew(self) -> None:
        """Begin the time limit again: a command that makes progress may take as long as it needs."""
        signal.setitimer(signal.ITIMER_REAL, self.timeout_s)

    def nobody_answers(self) -> NoReturn:
        assumed = (
            "" if all(map(_has_port, self.bootstrap.split(","))) else f" (without a port, {DEFAULT_PORT} is meant)"
        )
        fail(
            f"no broker answers at {self.bootstrap}{assumed}. Start one with `barnabas start`, or name another with "
            "--bootstrap."
        )

    def say_when_late(self, reason: Callable[[], str]) -> None:
        """When the time limit ends the command, say this reason if it is known, without a question to a broker."""
        signal.signal(signal.SIGALRM, functools.partial(self._end, reason=reason))

    def _is_silent(self) -> str:
        return (
            f"no answer in {self.timeout_s:g} s from {self.bootstrap}. A broker that stands still takes connections "
            "and answers nothing; so may one that wants TLS (--command-config)."
        )

    def _closes(self) -> str:
        return (
            f"{self.bootstrap} takes connections and closes them, for {self.timeout_s:g} s. A broker does so that has "
            "no file descriptor or no place for another one (ulimit -n, max.connections): its log says which."
        )

    def _wants_login(self, address: tuple[str, int]) -> str:
        """If the broker wants a login, and there is none: what to do."""
        from barnabas.cli.shared.login import read, wanted_by

        access = read(self.command_config)
        mechanisms = wanted_by(address, access.tls)
        if access.login is not None or not mechanisms:
            return self._knows_nobody(address)
        return (
            f"the broker at {self.bootstrap} wants its clients to log in (SASL: {', '.join(mechanisms)}). Say how with "
            "--command-config FILE, a client.properties as Kafka's tools take it, or BARNABAS_CONFIG."
        )

    def _knows_nobody(self, address: tuple[str, int]) -> str:
        """If the broker answers, and knows of no broker: what to do."""
        from barnabas.cli.shared.login import ask, read
        from barnabas.protocol.messages import MetadataRequest

        answer, _ = ask(address, read(self.command_config), MetadataRequest(topics=[]), 1)
        if answer is None or answer.brokers:
            return ""
        return KNOWS_NOBODY.format(f"at {self.bootstrap}")

    def look_whether_login_is_wanted(self, address: tuple[str, int]) -> None:
        """For a command without a login: end it soon if the broker wants one, and not only when its time is over.

        Clients take a broker that closes their connections for one that is about to answer.
        """

        def look() -> None:
            with suppress(Exception):
                from barnabas.cli.shared.login import ask, read
                from barnabas.protocol.messages import MetadataRequest

                if ask(address, read(self.command_config), MetadataRequest(topics=[]), 1)[0] is not None:
                    return
                if message := self._wants_login(address):
                    Failure(message, ExitCode.FAILED).tell(self.as_json)
                    os._exit(ExitCode.FAILED)

        looking = threading.Timer(LOGIN_LOOKED_FOR_AFTER_S, look)
        looking.daemon = True
        looking.start()

    def _end(self, _number: int, _frame: Any, reason: Callable[[], str] = str) -> None:
        # No connection is closed in order: a broker that does not answer would not answer that either.
        message = ""
        with suppress(Exception):
            message = reason()
        with suppress(Exception):
            message = message or f"no answer in {self.timeout_s:g} s from {self.bootstrap}."
            Failure(message, ExitCode.FAILED).tell(self.as_json)
        os._exit(ExitCode.FAILED)


def end_at_once(_number: int, _frame: Any) -> None:
    """The handler of Ctrl-C. It raises no exception, because a client may catch every exception."""
    os._exit(ExitCode.INTERRUPTED)


@contextmanager
def no_time_limit() -> Iterator[None]:
    """Stop the time limit while the command waits for a person or another program, not for a broker."""
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left_s)


def _has_port(text: str) -> bool:
    """Whether an address names its port. An IPv6 address without one ends with a bracket or has colons alone."""
    host, colon, _ = text.strip().rpartition(":")
    return bool(colon) and not host.endswith(":")


def _may_be_host(host: str) -> bool:
    """Whether it is a name or an address, and not half of something else, such as http://127.0.0.1."""
    return is_ipv6(host) if ":" in host else bool(host) and "/" not in host


def addresses_of(bootstrap: str) -> list[tuple[str, int]]:
    """The hosts and ports of `HOST:PORT,…`."""
    found = []
    for text in bootstrap.split(","):
        host, _, port = text.strip().rpartition(":")
        if not _has_port(text):
            host, port = text.strip(), str(DEFAULT_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not _may_be_host(host) or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
            fail(
                f"--bootstrap wants HOST:PORT with a port from 1 to 65535, such as {DEFAULT_BOOTSTRAP}, not {text!r}.",
                ExitCode.NOT_VALID,
            )
        found.append((host, int(port)))
    return found
