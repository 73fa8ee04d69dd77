"""The settings of a start: the file, the profile, the environment, and the command line, in this order."""

import errno
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from barnabas.cli.shared.exits import ExitCode, Failure, fail, say
from barnabas.protocol.named_tuple import NamedTuple
from barnabas.runtime import temporary
from barnabas.runtime.ports import read_file
from barnabas.runtime.utf8 import is_utf8

if TYPE_CHECKING:
    from barnabas.config.broker import BrokerConfig
    from barnabas.config.profiles import Profile
    from barnabas.runtime.ports import Env

CLUSTER_FILE = "cluster.properties"  # in the data directory of a cluster that `--brokers` made


def profile_of(
    name: str | None, given: dict[str, str], port: int | None, environment: Mapping[str, str]
) -> tuple["Profile", dict[str, str], dict[str, str]]:
    """The profile, without what gives way to what is said; and what is said, with the environment if it counts.

    Also the variables of what the environment says, by setting.
    """
    from barnabas.config import profiles
    from barnabas.config.settings import ConfigError

    try:
        profile = profiles.NO_PROFILE if name is None else profiles.profile(name)
    except ConfigError as error:
        fail(str(error), ExitCode.NOT_VALID)
    of_environment = _known(profiles.of_environment(environment)) if profile.takes_environment else {}
    variables = {name: f"the variable {profiles.variable_of(name)}" for name in of_environment if name not in given}
    said = {**of_environment, **given}
    return profiles.beside(profile, said, port), said, variables


class Settings(NamedTuple):
    """The settings of this start from all sources, checked."""

    config: "BrokerConfig"
    values: dict[str, str]  # as texts, also those of the shipped file
    by_user: frozenset[str]  # names of those that the user's file or the command line sets
    temporary_directory: str | None


def configure(
    env: "Env",
    path: str | None,
    profile: "Profile",
    given: dict[str, str],
    port: int | None,
    places: Mapping[str, str] | None = None,
) -> Settings:
    """The broker's settings from all sources, checked; and the temporary data directory, if it uses one.

    `places`: which of `given` come from elsewhere than the command line, and from where.

    Settings that are not valid end the command; all of them are printed together.
    """
    from barnabas.config import __file__ as config_package
    from barnabas.config import profiles, properties
    from barnabas.config.broker import BrokerConfig
    from barnabas.config.settings import ConfigError

    source = path or os.path.join(os.path.dirname(config_package), "server.properties")
    try:
        file = properties.read(_text_of(env, source))
    except properties.PropertiesError as error:
        fail(f"{source}: {error}", ExitCode.NOT_VALID)
    values = dict(file.values)
    changes = [f"{key}={text}" for key, text in profiles.changes(profile, values).items()]
    if changes:
        say(f"profile {profile.name}: {', '.join(changes)}")
    values |= profile.settings
    values |= given
    if path is None and "log.dir" in given and "log.dirs" not in given:
        del values["log.dirs"]  # that of the shipped file is nobody's choice, and would be preferred
    temporary_directory = None
    if profile.temporary_data and not {"log.dirs", "log.dir"} & (given.keys() | (file.values.keys() if path else ())):
        values["log.dirs"] = temporary_directory = temporary.path_for(env.random_uuid().hex())
    if port is not None:
        values["listeners"] = _with_port(values.get("listeners") or "PLAINTEXT://:9092", port)
    if values.get("coordination.path") not in (None, "", ":memory:"):
        values["coordination.path"] = _absolute(values["coordination.path"])
    lines = {key: line for key, line in file.lines.items() if values.get(key) == file.values[key]}
    for key, value in values.items():
        if not is_utf8(key + value):
            fail(f"{key}: its value is no text in UTF-8, so no client could be told of it.", ExitCode.NOT_VALID)
    said = properties.Properties(values, lines, file.repeated)
    try:
        config = BrokerConfig.of(values)
    except ConfigError:
        complaints = "\n".join(properties.complaints(path or "command line", said, places))
        raise Failure(complaints, ExitCode.NOT_VALID) from None
    for note in properties.notes(source, said) if path is not None else ():
        say(f"barnabas: {note}")
    directories = set(map(_absolute, config.data_directories))
    if len(directories) < len(config.data_directories):
        fail("log.dirs names a directory twice: name each once.", ExitCode.NOT_VALID)
    for directory in directories:
        if not is_utf8(directory):
            why = "the path is no text in UTF-8, so no client could be told of it"
            fail(f"{directory}: {why}. Choose another with --data.", ExitCode.NOT_VALID)
    by_user = frozenset(given.keys() | (file.values.keys() if path is not None else ()))
    unsaid = {key: text for key, text in _defaults_of_its_cluster(env, config).items() if key not in by_user}
    if unsaid:
        values |= unsaid
        config = BrokerConfig.of(values)
    return Settings(config, values, by_user, temporary_directory)


def _known(of_environment: dict[str, str]) -> dict[str, str]:
    """What Barnabas or Kafka knows. Kafka leaves out other variables, too."""
    from barnabas.config.broker import is_known
    from barnabas.config.profiles import variable_of

    for name in of_environment:
        if not is_known(name):
            say(f"barnabas: the variable {variable_of(name)} is left out: there is no setting {name}")
    return {name: text for name, text in of_environment.items() if is_known(name)}


def _defaults_of_its_cluster(env: "Env", config: "BrokerConfig") -> dict[str, str]:
    """The cluster's defaults, if the data directory is that of a broker in a directory that `--brokers` made.

    So a broker that is started alone acknowledges nothing, and makes no topic, with fewer replicas than the others do.
    """
    data, _, name = os.path.abspath(config.data_directories[0]).rpartition("/")
    if not name.isdecimal() or not env.disk.exists(f"{data}/{CLUSTER_FILE}"):
        return {}
    from barnabas.cli import cluster_directory  # late: most starts do not need it
    from barnabas.config import profiles

    return profiles.of_cluster(cluster_directory.number_of_brokers(env, data, None))


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError:
        fail(f"the folder in which this was started is gone, and {path} would be in it. Change into another one.")


def words_for_each(env: "Env", path: str | None) -> Sequence[str]:
    """The words of the command line that tell each broker of a cluster the file, which a pipe is not."""
    if path is None:
        return ()
    try:
        read_file(env.disk, os.path.abspath(path))
    except OSError as error:
        fail(f"{path} cannot be read by each broker: {error.strerror}. Name a file.", ExitCode.NOT_VALID)
    return "--config", path


def _text_of(env: "Env", path: str) -> str:
    try:
        content = read_file(env.disk, os.path.abspath(path))
    except FileNotFoundError:
        fail(f"there is no file {path}: --config names a server.properties.", ExitCode.NOT_VALID)
    except OSError as error:
        if error.errno != errno.ESPIPE:
            fail(
                f"{path} cannot be read: {error.strerror}. Let this user read it, or name another.", ExitCode.NOT_VALID
            )
        from barnabas.runtime.disk import read_pipe  # late: hardly ever needed

        content = read_pipe(path)
    try:
        return content.decode()
    except UnicodeDecodeError:  # Java writes properties files in latin-1
        return content.decode("latin-1")


def _with_port(listeners: str, port: int) -> str:
    """The list of listeners with another port in the first one."""
    first, comma, rest = listeners.partition(",")
    return f"{first.rpartition(':')[0]}:{port}{comma}{rest}"
