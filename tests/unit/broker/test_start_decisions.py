"""What a start does with logs that the tree does not know: a pure decision."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from barnabas.broker.adoption import Plan, TreeView, adopt, check_place_of_tree, decide, look_at_tree, tree_outside
from barnabas.cluster.registration import BrokerIdInUseError, make_persistent_paths
from barnabas.cluster.tree.embedded import EmbeddedCoordination
from barnabas.cluster.tree.paths import broker, partitions
from barnabas.cluster.tree.payloads import TopicAssignment, TreeMark
from barnabas.cluster.tree.port import CoordinationError
from barnabas.cluster.tree.tree_file import TreeFile
from barnabas.config.broker import BrokerConfig
from barnabas.storage.checkpoints import TreeKnowledge
from barnabas.storage.directory_contents import DataDirectoryError, DirectoryContents, LogFolder, Meta
from barnabas.storage.directory_plan import StartChoice, Stray
from simulator.env import sim_env

NOTHING_ELSE: set[str] = set()  # of files
OTHER_ID = bytes(15) + b"\x02"
ASK, ADOPT, SET_ASIDE = StartChoice(), StartChoice(adopt=True), StartChoice(set_aside=True)


def strays(*logs: tuple[str, int], path: str = "/d") -> list[Stray]:
    return [Stray(path, topic, partition) for topic, partition in logs]


def id_of(topic: str) -> bytes:
    return topic.encode().ljust(16, b"\x01")[:16]


def directory(
    *topics: str, cluster_id: str | None = "c", topic_id: Callable[[str], bytes | None] = id_of
) -> DirectoryContents:
    return holding({(topic, 0): topic_id(topic) for topic in topics}, cluster_id)


def holding(
    logs: dict[tuple[str, int], bytes | None], cluster_id: str | None = "c", path: str = "/d"
) -> DirectoryContents:
    folders = {key: LogFolder(f"{key[0]}-{key[1]}", [], topic_id, []) for key, topic_id in logs.items()}
    return DirectoryContents(path, meta=Meta(1, cluster_id, "A", properties={"version": "1"}), folders=folders)


def tree(*known: str, of: DirectoryContents, cluster_id: str | None = "c", node_id: int = 1) -> TreeView:
    assignments = {
        topic: TopicAssignment({0: (node_id,)}, id_of(topic)) if topic in known else None for topic, _ in of.folders
    }
    return TreeView(cluster_id, False, assignments, 0)


def test_a_new_tree_adopts_everything_with_a_name_that_a_topic_can_have() -> None:
    found = directory("a", "b", "no topic")
    view = tree(of=found, cluster_id=None)
    assert decide(view, [found], {}, ASK, 1) == Plan(["a", "b"], strays(("no topic", 0)))
    assert decide(view, [found], {}, SET_ASIDE, 1) == Plan([], strays(("a", 0), ("b", 0), ("no topic", 0)))
    with pytest.raises(DataDirectoryError, match=r"The coordination is new, and .* /e cannot be read \(EIO"):
        decide(view, [found], {"/e": "EIO"}, ASK, 1)


def test_adopting_that_was_cut_off_goes_on() -> None:
    found = directory("a", "b")
    view = tree("a", of=found, cluster_id=None)
    assert decide(view, [found], {}, ASK, 1) == Plan(["b"], [])


@pytest.mark.parametrize(
    ("here", "known", "asks"),
    [
        (("a",), (), False),
        (("a", "b"), (), True),
        (("a", "b"), ("a",), False),
        (("a", "b", "c"), ("a",), True),
        (("a", "b", "c", "d"), ("a", "b"), False),
        (("a", "b", "c", "d", "e"), ("a", "b"), True),
        (("a", "b", "__consumer_offsets"), ("__consumer_offsets",), True),
        (("a", "__consumer_offsets"), (), True),
        (("a", "b"), ("a", "b"), False),
    ],
)
def test_when_a_tree_that_is_in_use_is_a_reason_to_ask(
    here: tuple[str, ...], known: tuple[str, ...], asks: bool
) -> None:
    found = directory(*here)
    view = tree(*known, of=found)
    unknown = [topic for topic in here if topic not in known]
    if asks:
        with pytest.raises(DataDirectoryError, match=f"knows {len(known)} of the {len(here)} topics"):
            decide(view, [found], {}, ASK, 1)
    else:
        assert decide(view, [found], {}, ASK, 1) == Plan([], strays(*((topic, 0) for topic in unknown)))
    assert decide(view, [found], {}, SET_ASIDE, 1) == Plan([], strays(*sorted((topic, 0) for topic in unknown)))
    assert decide(view, [found], {}, ADOPT, 1) == Plan(sorted(unknown), [])


def with_mark(found: DirectoryContents, mark: int) -> DirectoryContents:
    found.tree_knowledge = TreeKnowledge(mark, -1, -1)
    return found


@pytest.mark.parametrize(
    ("on_disk", "view_of"),
    [
        (8, lambda view: view._replace(mark=TreeMark(7))),
        (7, lambda view: view._replace(mark=TreeMark(7), copied_ms=5)),
        (7, lambda view: view._replace(mark=TreeMark(7, restored_ms=4), copied_ms=5)),
    ],
)
def test_one_log_with_records_that_an_older_tree_does_not_know_is_a_reason_to_ask(
    on_disk: int, view_of: Callable[[TreeView], TreeView]
) -> None:
    """Its topic or its partition was made since, or the topic made again: the records were acknowledged."""
    newer: dict[tuple[str, int], bytes | None]
    for newer in ({("b", 0): id_of("b")}, {("a", 1): id_of("a")}, {("a", 0): OTHER_ID}):
        found = with_mark(holding({("a", 0): id_of("a"), **newer}), on_disk)
        ((topic, partition),) = newer
        view = view_of(tree("a", of=found))
        with pytest.raises(
            DataDirectoryError, match=rf"older copy, .* 1 log with records in /d: {topic}-{partition}\."
        ):
            decide(view, [found], {}, ASK, 1, end_of=lambda _path, _folder: (3, 70))
        plan = Plan([], strays((topic, partition)))
        assert decide(view, [found], {}, ASK, 1) == plan, "an empty log"
        assert decide(view, [found], {}, SET_ASIDE, 1, end_of=lambda _path, _folder: (3, 70)) == plan


@pytest.mark.parametrize(
    "view_of",
    [
        lambda view: view._replace(mark=TreeMark(7)),
        lambda view: view._replace(mark=TreeMark(7, restored_ms=5), copied_ms=5),  # it has started on this copy before
    ],
)
def test_a_topic_that_a_tree_of_now_does_not_know_was_deleted(view_of: Callable[[TreeView], TreeView]) -> None:
    found = with_mark(directory("a", "b"), 7)
    plan = decide(view_of(tree("a", of=found)), [found], {}, ASK, 1, end_of=lambda _path, _folder: (3, 70))
    assert plan == Plan([], strays(("b", 0)))


def test_an_older_tree_in_zookeeper_is_not_looked_for_in_a_file() -> None:
    found = directory("a", "b")
    with pytest.raises(DataDirectoryError, match="look for the right data of ZooKeeper at zk:2181 first"):
        decide(tree(of=found), [found], {}, ASK, 1, "zk:2181")


def test_a_log_of_an_older_topic_of_that_name_is_never_adopted() -> None:
    found = directory("a", topic_id=lambda _: OTHER_ID)
    assert decide(tree("a", of=found), [found], {}, ADOPT, 1) == Plan([], strays(("a", 0)))
    elsewhere = directory("a")
    assert decide(tree("a", of=elsewhere, node_id=2), [elsewhere], {}, ADOPT, 1) == Plan([], strays(("a", 0)))
    unsaid = directory("a", topic_id=lambda _: None)
    assert decide(tree("a", of=unsaid), [unsaid], {}, ASK, 1) == Plan([], [])


@pytest.mark.parametrize("choice", [ASK, ADOPT, SET_ASIDE])
def test_the_log_of_a_topic_that_was_made_again_elsewhere_while_its_directory_was_away(choice: StartChoice) -> None:
    old = holding({("a", 0): OTHER_ID, ("a", 1): OTHER_ID}, path="/old")
    new = holding({("a", 0): id_of("a")}, path="/new")
    for found in ([old, new], [new, old]):
        plan = decide(tree("a", of=new), found, {}, choice, 1)
        assert plan == Plan([], strays(("a", 0), ("a", 1), path="/old"))
        assert decide(tree(of=new), found, {}, SET_ASIDE, 1).strays == [
            *strays(("a", 0), path="/new"),
            *strays(("a", 0), ("a", 1), path="/old"),
        ]


def test_two_logs_of_a_partition_between_which_the_tree_cannot_tell() -> None:
    one, other = holding({("a", 0): OTHER_ID}, path="/one"), holding({("a", 0): id_of("a")}, path="/other")
    without_ids = TreeView("c", False, {"a": TopicAssignment({0: (1,)}, None)}, 0)
    for view, choice in ((tree(of=one, cluster_id=None), ASK), (tree(of=one), ADOPT), (without_ids, ASK)):
        with pytest.raises(DataDirectoryError, match=r"a-0 is in two data directories, /one/a-0 and /other/a-0\."):
            decide(view, [one, other], {}, choice, 1)


def test_another_cluster_and_a_broker_that_lives() -> None:
    found = directory("a", cluster_id="d")
    with pytest.raises(DataDirectoryError, match="belongs to cluster d, this broker to cluster c"):
        decide(tree("a", of=found), [found], {}, ADOPT, 1)
    mine = directory("a")
    with pytest.raises(BrokerIdInUseError, match="A broker with id 1 is running already"):
        decide(tree("a", of=mine)._replace(is_node_alive=True), [mine], {}, ADOPT, 1)


def test_new_directories_and_partitions_in_the_tree() -> None:
    new = DirectoryContents("/d", exists=False)
    view = TreeView("c", False, {}, 5)
    with pytest.raises(DataDirectoryError, match="node 1 has 5 partitions, and its data directories are new"):
        decide(view, [new], {}, ASK, 1)
    assert decide(view, [new], {}, StartChoice(given_up=["/d"]), 1) == Plan([], [])
    assert decide(view._replace(hosted_count=0), [new], {}, ASK, 1) == Plan([], [])


def test_a_tree_in_which_brokers_of_kafka_run_is_left_alone() -> None:
    view = TreeView("c", True, {}, 0, "the brokers 0, 1 of Apache Kafka")
    with pytest.raises(DataDirectoryError, match="at h:2181/k is that of the brokers 0, 1 of Apache Kafka, which runs"):
        decide(view, [directory("a")], {}, ADOPT, 1, "h:2181/k")


def test_there_is_one_tree() -> None:
    mine, other = DirectoryContents("/d", names=["coordination.sqlite"]), DirectoryContents("/e")
    check_place_of_tree([mine, other], "/d/coordination.sqlite", NOTHING_ELSE.__contains__)
    check_place_of_tree([other], "/elsewhere/tree", NOTHING_ELSE.__contains__)
    with pytest.raises(DataDirectoryError, match=r"is /d/coordination\.sqlite, but coordination.path names /x"):
        check_place_of_tree([mine, other], "/x", NOTHING_ELSE.__contains__)
    second = DirectoryContents("/e", names=["coordination.sqlite"])
    with pytest.raises(DataDirectoryError, match="two coordination trees"):
        check_place_of_tree([mine, second], "/d/coordination.sqlite", NOTHING_ELSE.__contains__)


def test_a_directory_knows_its_tree_outside_of_it() -> None:
    found = DirectoryContents("/d", meta=Meta(0, "c", "id", tree_path="/elsewhere/tree"))
    check_place_of_tree([found], "/elsewhere/tree", {"/elsewhere/tree"}.__contains__)
    with pytest.raises(DataDirectoryError, match="The coordination tree of /d is /elsewhere/tree"):
        check_place_of_tree([found], "/mistyped/tree", {"/elsewhere/tree"}.__contains__)
    check_place_of_tree([found], "/moved/tree", {"/moved/tree"}.__contains__)
    both = {"/elsewhere/tree", "/link/tree"}.__contains__
    check_place_of_tree([found], "/link/tree", both, lambda path: "one file")
    with pytest.raises(DataDirectoryError, match="The coordination tree of /d is /elsewhere/tree"):
        check_place_of_tree([found], "/link/tree", both)
    assert tree_outside([found], "/elsewhere/tree") == "/elsewhere/tree"
    assert tree_outside([found], "/d/coordination.sqlite") is None
    assert tree_outside([found], ":memory:") is None
    assert tree_outside([found], None) is None


def test_a_copy_of_a_whole_cluster_has_its_own_tree() -> None:
    copied = DirectoryContents("/copy/0", meta=Meta(0, "c", "id", tree_path="/cluster/tree"))
    both = {"/cluster/tree", "/copy/tree"}
    check_place_of_tree([copied], "/copy/tree", both.__contains__)
    for place, there in (("/copy/tree", {"/cluster/tree"}), ("/copy/new", {*both, "/copy/new"})):
        with pytest.raises(DataDirectoryError, match="The coordination tree of /copy/0 is /cluster/tree"):
            check_place_of_tree([copied], place, there.__contains__)


@pytest.mark.parametrize("choice", [ASK, ADOPT])
@pytest.mark.parametrize(
    ("logs", "sentence"),
    [
        ({("a", 0): id_of("a"), ("a", 20231122): id_of("a")}, "The folder /d/a-20231122 would give topic a 20231123"),
        ({("a", 0): id_of("a"), ("a-0", 2): id_of("a")}, "The folders /d/a-0 and /d/a-0-2 say the same topic id"),
        ({("a", 0): id_of("a"), ("a", 1): OTHER_ID}, "The folders /d/a-0 and /d/a-1 say different topic ids"),
        ({("a", 1001): None}, "The folder /d/a-1001 would give topic a 1002 partitions, of which 1 have a folder"),
    ],
)
def test_folders_that_cannot_be_of_one_topic_are_not_adopted(
    logs: dict[tuple[str, int], bytes | None], sentence: str, choice: StartChoice
) -> None:
    found = holding(logs)
    with pytest.raises(DataDirectoryError, match=sentence):
        decide(tree(of=found, cluster_id=None), [found], {}, choice, 1)
    assert decide(tree(of=found, cluster_id=None), [found], {}, SET_ASIDE, 1) == Plan([], strays(*sorted(logs)))
    if choice is ADOPT:
        with pytest.raises(DataDirectoryError, match=sentence):
            decide(tree(of=found), [found], {}, choice, 1)


def test_a_copy_of_a_log_that_the_tree_knows_is_set_aside_and_not_adopted() -> None:
    found = holding({("a", 0): id_of("a"), ("a-0", 2): id_of("a"), ("b", 0): id_of("b")})
    assert decide(tree("a", "b", of=found), [found], {}, ASK, 1) == Plan([], strays(("a-0", 2)))
    with pytest.raises(DataDirectoryError, match="The folders /d/a-0 and /d/a-0-2 say the same topic id"):
        decide(tree("a", "b", of=found), [found], {}, ADOPT, 1)


def test_what_one_broker_of_many_has_of_a_topic_is_adopted() -> None:
    several = {("a", index): id_of("a") for index in range(0, 3000, 3)}
    for logs in (several, {("a", 1000): None}):
        found = holding(logs)
        assert decide(tree(of=found, cluster_id=None), [found], {}, ASK, 1) == Plan(["a"], [])


@pytest.mark.parametrize("reads_before", range(6))
def test_a_broker_that_registers_while_the_tree_is_read_is_of_barnabas(reads_before: int) -> None:
    """Two brokers start at once, and the second once took the first for one of Apache Kafka."""
    env = sim_env()

    class Interrupted(EmbeddedCoordination):
        """Another broker registers after the first few reads."""

        reads_left = reads_before

        async def _read(self, read: Callable[[TreeFile], Any]) -> Any:
            self.reads_left -= 1
            if self.reads_left == -1:
                await make_persistent_paths(self, 0)
                await self.create(broker(0), b"{}", ephemeral=True)
            return await super()._read(read)

    async def looked() -> TreeView:
        tree = Interrupted(env, ":memory:")
        await tree.start()
        return await look_at_tree(tree, [directory()], 1)

    assert env.run(looked()).others == ""


@pytest.mark.parametrize("path", ["/cluster/id", "/brokers/topics/a"])
def test_a_node_that_cannot_be_read_is_named(path: str) -> None:
    env = sim_env()

    async def looked() -> TreeView:
        tree = EmbeddedCoordination(env, ":memory:")
        await tree.start()
        await tree.create(path, b'{"ver', make_parents=True)
        return await look_at_tree(tree, [directory("a")], 1)

    said = f"the node {path} of the tree cannot be read: .* Restore the tree from a backup"
    with pytest.raises(CoordinationError, match=said):
        env.run(looked())


def a_log_of(topic: str) -> Any:
    """A log manager with one log."""
    log = SimpleNamespace(
        topic=topic, partition=1, topic_id=id_of(topic), directory=f"/d/{topic}-1",
        log_start_offset=0, log_end_offset=5,
        leader_epochs=SimpleNamespace(latest=0), producers=SimpleNamespace(has_open_transactions=False),
    )  # fmt: skip
    return SimpleNamespace(all=lambda: [log], failed_directories=[], contents=[])


def test_a_topic_that_another_broker_adopts_meanwhile_is_not_adopted_twice() -> None:
    """It was in no tree when both looked, and would get partitions that its assignment does not have."""
    env = sim_env()
    logs = a_log_of("t")
    (log,) = logs.all()
    config = BrokerConfig({})

    async def both() -> None:
        tree = EmbeddedCoordination(env, ":memory:")
        await tree.start()
        for node_id in (1, 2):
            await make_persistent_paths(tree, node_id)
        await adopt(env, config, tree, logs, 1, ["t"])
        await adopt(env, config, tree, logs, 1, ["t"])  # one that was interrupted goes on
        before = await tree.children(partitions("t"))
        log.partition = 2
        with pytest.raises(DataDirectoryError, match="Another broker has adopted topic t"):
            await adopt(env, config, tree, logs, 2, ["t"])
        assert await tree.children(partitions("t")) == before

    env.run(both())


def test_a_topic_that_another_broker_adopts_just_now_is_not_adopted_twice() -> None:
    """Neither of them was in the tree when this one looked."""
    env = sim_env()
    tree = EmbeddedCoordination(env, ":memory:")
    look = tree.get_many

    async def found_before_the_other_writes(names: Any, watch: Any = None) -> Any:
        found = await look(names)
        tree.get_many = look  # type: ignore[method-assign]
        await adopt(env, BrokerConfig({}), tree, a_log_of("t"), 2, ["t"])
        return found

    async def both() -> None:
        await tree.start()
        await make_persistent_paths(tree, 1)
        tree.get_many = found_before_the_other_writes  # type: ignore[method-assign]
        with pytest.raises(DataDirectoryError, match="Another broker has adopted topic t"):
            await adopt(env, BrokerConfig({}), tree, a_log_of("t"), 1, ["t"])

    env.run(both())


def test_topics_that_another_broker_has_adopted_are_named() -> None:
    found = directory("a", "b", "c")
    view = tree("a", "b", of=found, node_id=2)
    with pytest.raises(
        DataDirectoryError, match=r"and not a, b, c \(a, b: not as they are here, or on other brokers\)"
    ):
        decide(view, [found], {}, ASK, 1)
