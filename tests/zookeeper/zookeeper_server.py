"""A real ZooKeeper for tests: one process on a free port of this machine, in about a second.

Its jars are those of an installed PySpark, of the folder that BARNABAS_ZOOKEEPER_JARS names, or Maven's (they are
fetched once into the user's cache). Without Java or without jars, tests are skipped and say so.
"""

import functools
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kazoo.client import KazooClient
from ports import free_port

VERSION = os.environ.get("BARNABAS_ZOOKEEPER_VERSION", "3.9.3")  # which one Maven fetches
OLDEST = (3, 8)
OLDEST_AT_ALL = (3, 5)  # PySpark 3 brings 3.6, which does if there is nothing else
TICK_MS = 100  # sessions last 2 to 200 ticks
CONFIG = """\
tickTime={tick_ms}
minSessionTimeout={session_ms}
maxSessionTimeout=60000
dataDir={data}
clientPort={port}
clientPortAddress=127.0.0.1
maxClientCnxns=0
admin.enableServer=false
4lw.commands.whitelist=*
"""
POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>barnabas</groupId><artifactId>zookeeper-for-tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.zookeeper</groupId><artifactId>zookeeper</artifactId><version>{version}</version>
      <exclusions>
        <exclusion><groupId>ch.qos.logback</groupId><artifactId>logback-classic</artifactId></exclusion>
      </exclusions>
    </dependency>
    <dependency>
      <groupId>io.dropwizard.metrics</groupId><artifactId>metrics-core</artifactId><version>4.1.12.1</version>
    </dependency>
    <dependency>
      <groupId>org.xerial.snappy</groupId><artifactId>snappy-java</artifactId><version>1.1.10.5</version>
    </dependency>
  </dependencies>
</project>
"""


@functools.cache
def class_path() -> str | None:
    """What Java needs to run ZooKeeper. None: it cannot be had here, and `why_not` says why."""
    return _class_path() if shutil.which("java") else None


def why_not() -> str:
    """Why there is no ZooKeeper for tests."""
    if not shutil.which("java"):
        return "there is no java on the PATH"
    return "no jars of ZooKeeper: install pyspark or Maven, or set BARNABAS_ZOOKEEPER_JARS to a folder that has them"


def _class_path() -> str | None:
    named = os.environ.get("BARNABAS_ZOOKEEPER_JARS")
    if named:
        return f"{named}/*" if _holds_zookeeper(Path(named)) else None
    spark = _from_pyspark() if "BARNABAS_ZOOKEEPER_VERSION" not in os.environ else None
    if spark is not None and _holds_zookeeper(spark):
        return _chosen(spark)
    maven = _from_maven()
    if maven is None and spark is not None and _holds_zookeeper(spark, OLDEST_AT_ALL):
        return _chosen(spark)
    return maven


def _from_pyspark() -> Path | None:
    """The folder of PySpark's jars: PySpark 4 brings ZooKeeper 3.9."""
    spark = find_spec("pyspark")
    if spark is None or not spark.submodule_search_locations:
        return None
    return Path(spark.submodule_search_locations[0]) / "jars"


def _chosen(jars: Path) -> str:
    """Those of Spark's jars that ZooKeeper needs: it would take Java seconds to open all."""
    wanted = re.compile(r"(zookeeper|slf4j-api|metrics-core|snappy-java|netty-|commons-io|audience)")
    return os.pathsep.join(str(jar) for jar in sorted(jars.iterdir()) if wanted.match(jar.name))


def _holds_zookeeper(folder: Path, oldest: tuple[int, int] = OLDEST) -> bool:
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
    versions = [match for name in names if (match := re.fullmatch(r"zookeeper-(\d+)\.(\d+)\..*\.jar", name))]
    return any((int(found[1]), int(found[2])) >= oldest for found in versions)


def _from_maven() -> str | None:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "barnabas-tests" / f"zookeeper-{VERSION}"
    if not _holds_zookeeper(cache):
        if not shutil.which("mvn"):
            return None
        cache.mkdir(parents=True, exist_ok=True)
        (cache / "pom.xml").write_text(POM.format(version=VERSION))
        fetch = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=."]
        try:
            subprocess.run(fetch, cwd=cache, check=True, capture_output=True, timeout=200)
        except (subprocess.SubprocessError, OSError):
            return None
    return f"{cache}/*" if _holds_zookeeper(cache) else None


class ZooKeeperServer:
    """One ZooKeeper process. Its data stay when it is stopped and started again."""

    def __init__(self, folder: Path, session_ms: int = 2 * TICK_MS) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.data = folder / "data"
        self._options: list[str] = []  # more of Java's
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        config = CONFIG.format(tick_ms=TICK_MS, data=folder / "data", port=self.port, session_ms=session_ms)
        (folder / "zoo.cfg").write_text(config)

    def take_logins(self, more: str = "", **passwords: str) -> None:
        """Have users log in (SASL), from the next start on. A second call changes their passwords."""
        users = " ".join(f'user_{user}="{password}"' for user, password in passwords.items())
        module = "org.apache.zookeeper.server.auth.DigestLoginModule"
        jaas = self._folder / "jaas.conf"
        jaas.write_text(f"Server {{\n  {module} required {users};\n}};\n")
        self._options = [f"-Djava.security.auth.login.config={jaas}"]
        provider = "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider\n"
        config = self._folder / "zoo.cfg"
        config.write_text(config.read_text().partition(provider)[0] + provider + more)

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        jars = class_path()
        assert jars is not None
        options = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dzookeeper.forceSync=no"]
        main = "org.apache.zookeeper.server.ZooKeeperServerMain"
        with (self._folder / "output.txt").open("ab") as output:
            self._process = subprocess.Popen(
                ["java", *options, *self._options, "-cp", jars, main, str(self._folder / "zoo.cfg")],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        deadline = time.monotonic() + 200
        while "Mode:" not in self.command("srvr"):
            assert self._process.poll() is None, (self._folder / "output.txt").read_text()
            assert time.monotonic() < deadline, "ZooKeeper does not serve"
            time.sleep(0.05)

    def command(self, word: str) -> str:
        """The answer to one of the commands of four letters; empty if there is none."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as one:
                one.sendall(word.encode())
                parts = []
                while part := one.recv(65536):
                    parts.append(part)
                return b"".join(parts).decode()
        except OSError:
            return ""

    def has_session(self, session_id: int) -> bool:
        """Whether the server knows a session that has not expired."""
        return f"0x{session_id:x}" in self.command("dump")

    def pause(self) -> None:
        """SIGSTOP."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """SIGKILL. What was answered is in its log."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@contextmanager
def plain(
    server: ZooKeeperServer, chroot: str = "/barnabas", login: dict[str, str] | None = None
) -> Iterator[KazooClient]:
    """A client of ZooKeeper that knows nothing of Barnabas, as zookeeper-shell is."""
    client = KazooClient(f"{server.address}{chroot}", sasl_options=login)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
