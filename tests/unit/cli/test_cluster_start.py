"""What `barnabas start --brokers N` tells each broker: decided without starting one."""

import itertools
import re
from collections.abc import Mapping

import pytest
from barnabas.cli.cluster_start import CLUSTER_FILE, Plan, plan
from barnabas.cli.shared.exits import Failure
from barnabas.runtime.ports import Env
from simulator.env import sim_env


def planned(
    brokers: int | None = 3,
    directories: tuple[str, ...] = ("/d",),
    by_user: Mapping[str, str] | None = None,
    given_up: tuple[str, ...] = (),
    env: Env | None = None,
) -> Plan:
    said = dict(by_user or {})
    values = {"listeners": "PLAINTEXT://127.0.0.1:9092", "default.replication.factor": "1", **said}
    return plan(env or sim_env(), brokers, directories, ["--config", "f"], values, said.keys(), given_up)


def settings_of(words: tuple[str, ...]) -> dict[str, str]:
    return dict(word.split("=", 1) for option, word in itertools.pairwise(words) if option == "--set")


def test_each_broker_has_its_number_its_folder_and_its_port() -> None:
    cluster = planned()
    assert cluster.data == "/d"
    told = [settings_of(words) for words in cluster.words]
    assert [each["node.id"] for each in told] == ["0", "1", "2"]
    assert [each["log.dirs"] for each in told] == ["/d/0", "/d/1", "/d/2"]
    assert [each["listeners"] for each in told] == [f"PLAINTEXT://127.0.0.1:909{port}" for port in (2, 3, 4)]
    assert {each["coordination.path"] for each in told} == {"/d/coordination.sqlite"}
    assert all(words[:2] == ("--config", "f") for words in cluster.words)


@pytest.mark.parametrize(("brokers", "factor", "in_sync"), [(1, "1", "1"), (2, "2", "2"), (3, "3", "2"), (5, "3", "2")])
def test_the_defaults_are_those_of_a_cluster(brokers: int, factor: str, in_sync: str) -> None:
    for words in planned(brokers).words:
        told = settings_of(words)
        assert told["default.replication.factor"] == told["offsets.topic.replication.factor"] == factor
        assert told["transaction.state.log.replication.factor"] == factor
        assert told["min.insync.replicas"] == told["transaction.state.log.min.isr"] == in_sync


def test_what_the_user_sets_wins() -> None:
    for words in planned(by_user={"min.insync.replicas": "1", "coordination.path": "/tree"}).words:
        told = settings_of(words)
        assert not {"min.insync.replicas", "coordination.path"} & told.keys()
        assert told["default.replication.factor"] == "3", "the shipped file says 1, which is no wish of the user"


def test_settings_that_are_less_than_a_clusters_are_named() -> None:
    of_kafkas_file = {
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    }
    (note,) = planned(by_user=of_kafkas_file).notes
    assert note.split(": ")[1].split(", ") == [f"{key}={text}" for key, text in of_kafkas_file.items()]
    assert planned(brokers=1, by_user=of_kafkas_file).notes == ()
    assert planned(by_user={"default.replication.factor": "3", "min.insync.replicas": "3"}).notes == ()


def test_every_listener_is_shifted_and_port_0_stays() -> None:
    listeners = "PLAINTEXT://:0,OTHER://[::1]:19092"
    told = [settings_of(words)["listeners"] for words in planned(by_user={"listeners": listeners}).words]
    assert told == [f"PLAINTEXT://:0,OTHER://[::1]:1909{port}" for port in (2, 3, 4)]


def test_a_tree_in_zookeeper_has_no_path() -> None:
    for words in planned(by_user={"zookeeper.connect": "h:2181"}).words:
        assert "coordination.path" not in settings_of(words)


def test_the_directory_that_is_given_up_is_one_brokers() -> None:
    assert planned(given_up=("/d/1",)).choices == ((), ("--give-up", "/d/1"), ())


@pytest.mark.parametrize(
    ("brokers", "directories", "by_user", "given_up", "message"),
    [
        (3, ("/a", "/b"), {}, (), "one data directory"),
        (0, ("/d",), {}, (), "a number from 1 to"),
        (101, ("/d",), {}, (), "a number from 1 to"),
        (3, ("/d",), {"node.id": "7"}, (), "leave out node.id"),
        (3, ("/d",), {"broker.id": "7"}, (), "leave out broker.id"),
        (3, ("/d",), {"listeners": "A://:9092,B://:9094"}, (), "9092 and 9094 are nearer"),
        (3, ("/d",), {"listeners": "A://:65534"}, (), "above 65535"),
        (3, ("/d",), {}, ("/elsewhere",), "the brokers of this cluster have /d/0, /d/1, /d/2"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence(
    brokers: int, directories: tuple[str, ...], by_user: dict[str, str], given_up: tuple[str, ...], message: str
) -> None:
    with pytest.raises(Failure, match=message):
        planned(brokers, directories, by_user, given_up)


@pytest.mark.parametrize(
    ("listeners", "last"), [("A://:9092,B://:9095", "A://:9094,B://:9097"), ("A://:65533", "A://:65535")]
)
def test_ports_that_are_just_far_enough_apart_are_taken(listeners: str, last: str) -> None:
    assert settings_of(planned(by_user={"listeners": listeners}).words[-1])["listeners"] == last


def made(env: Env, name: str, text: str) -> Env:
    env.disk.make_directory("/d")
    file = env.disk.open(f"/d/{name}", create=True)
    file.write(0, text.encode())
    file.close()
    return env


def test_the_directory_says_how_many_brokers_there_are() -> None:
    env = made(sim_env(), CLUSTER_FILE, "brokers=2\n")
    assert len(planned(None, env=env).words) == len(planned(2, env=env).words) == 2
    with pytest.raises(Failure, match="holds a cluster of 2 brokers, and --brokers says 3"):
        planned(3, env=env)


@pytest.mark.parametrize("text", ["", "brokers=\n", "brokers=0\n", "brokers=101\n", "brokers=two\n"])
def test_a_directory_that_does_not_say_it_is_refused(text: str) -> None:
    with pytest.raises(Failure, match="does not say how many brokers"):
        planned(None, env=made(sim_env(), CLUSTER_FILE, text))


def test_the_directory_of_a_single_broker_is_not_taken_for_a_cluster() -> None:
    with pytest.raises(Failure, match="is the data directory of a single broker"):
        planned(env=made(sim_env(), "meta.properties", "node.id=1\n"))


def test_a_cluster_whose_number_is_lost_is_not_started_with_fewer_brokers() -> None:
    env = sim_env()
    for number in range(3):
        env.disk.make_directory(f"/d/{number}")
        env.disk.open(f"/d/{number}/meta.properties", create=True).close()
    with pytest.raises(Failure, match="/d/2 is the directory of a broker too, and --brokers says 2"):
        planned(2, env=env)
    assert len(planned(3, env=env).words) == 3


CLUSTER_ID = "lHccgAMyQc2WZM_vDFN1yQ"


def with_folders(*folders: tuple[int, str], tree: bool = True, log: bool = True) -> Env:
    """A directory with the folders of brokers, of which each says whose it is, in this order."""
    env = sim_env()
    for number, (node_id, cluster_id) in enumerate(folders):
        env.disk.make_directory(f"/d/{number}/t-0" if log else f"/d/{number}")
        file = env.disk.open(f"/d/{number}/meta.properties", create=True)
        file.write(0, f"version=1\nnode.id={node_id}\ncluster.id={cluster_id}\n".encode())
        file.close()
    return made(env, "coordination.sqlite", "") if tree else env


def test_folders_that_were_copied_or_are_of_another_cluster_are_refused_before_any_broker_starts() -> None:
    assert planned(env=with_folders(*[(number, CLUSTER_ID) for number in range(3)]))
    assert planned(env=with_folders((0, CLUSTER_ID))), "those that are missing are their brokers' business"
    with pytest.raises(Failure, match="/d/2 is the directory of broker 0, copied or renamed"):
        planned(env=with_folders((0, CLUSTER_ID), (1, CLUSTER_ID), (0, CLUSTER_ID)))
    with pytest.raises(Failure, match=f"/d/0 is of cluster {CLUSTER_ID}, and /d/1 of cluster other"):
        planned(env=with_folders((0, CLUSTER_ID), (1, "other"), (2, CLUSTER_ID)))


def test_a_lost_tree_is_said_before_any_broker_starts() -> None:
    folders = [(number, CLUSTER_ID) for number in range(3)]
    lost = with_folders(*folders, tree=False)
    with pytest.raises(Failure, match=r"--set node\.id=N --set coordination\.path=/d/coordination\.sqlite\. Each says"):
        planned(env=lost)
    assert planned(env=lost, by_user={"coordination.path": "/tree"})
    assert planned(env=lost, by_user={"zookeeper.connect": "h:2181"})
    assert planned(env=with_folders(*folders, tree=False, log=False)), "nothing would be forgotten"


@pytest.mark.parametrize(
    ("said", "tree"),
    [({}, "coordination.path=/d/coordination.sqlite"), ({"zookeeper.connect": "h:1/k"}, "zookeeper.connect=h:1/k")],
)
def test_brokers_do_not_adopt_at_the_same_time(said: dict[str, str], tree: str) -> None:
    """Who comes first would have the topics."""
    values = {"listeners": "PLAINTEXT://127.0.0.1:9092", **said}
    with pytest.raises(Failure, match=re.escape(f"--data /d/N --set node.id=N --set {tree}. Each says")):
        plan(sim_env(), 3, ("/d",), ["--adopt"], values, said.keys(), (), adopts=True)
    assert plan(sim_env(), 1, ("/d",), ["--adopt"], values, said.keys(), (), adopts=True)


def test_a_number_of_brokers_that_was_made_smaller_is_refused() -> None:
    env = made(with_folders(*[(number, CLUSTER_ID) for number in range(3)]), CLUSTER_FILE, "brokers=2\n")
    with pytest.raises(Failure, match=r"/d/2 is the directory of a broker too, and /d/cluster\.properties says 2"):
        planned(None, env=env)
