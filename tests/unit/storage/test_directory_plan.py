"""Which data directories a start uses: a pure decision over what was found in them."""

import errno
from typing import Any

import pytest
from barnabas.storage.directory_contents import (
    DataDirectoryError,
    DirectoryContents,
    LogFolder,
    Meta,
    place_of_tree,
    read_contents,
)
from barnabas.storage.directory_plan import StartChoice, check_formatted, old_copies, plan_directories
from simulator.env import sim_env


def formatted(path: str, directory_id: str, others: dict[str, str] | None = None, **fields: Any) -> DirectoryContents:
    names = ["meta.properties", *fields.pop("names", ())]
    return DirectoryContents(
        path, names=names, meta=Meta(1, "c", directory_id, others or {}, {"version": "1"}), **fields
    )


def unused(path: str, *names: str, exists: bool = True) -> DirectoryContents:
    return DirectoryContents(path, names=list(names), exists=exists)


def unreadable(path: str) -> DirectoryContents:
    return DirectoryContents(path, error=OSError(errno.EIO, "broken"))


def test_all_that_are_remembered_are_there_in_any_order_and_at_any_path() -> None:
    found = [formatted("/moved", "B", {"A": "/a"}), formatted("/a", "A", {"B": "/b"})]
    plan = plan_directories(found, 1)
    assert (plan.offline, plan.missing) == ({}, {})
    assert plan.remembered == {"A": "/a", "B": "/moved"}


def test_one_that_log_dirs_does_not_name_is_missing() -> None:
    plan = plan_directories([formatted("/a", "A", {"B": "/b"})], 1)
    assert (plan.offline, plan.missing, plan.remembered) == ({}, {"B": "/b"}, {"A": "/a", "B": "/b"})


@pytest.mark.parametrize("replacement", [unused("/b"), unused("/b", exists=False), unused("/b", ".lock", "lost+found")])
def test_an_empty_one_where_another_was_is_offline_and_not_formatted(replacement: DirectoryContents) -> None:
    found = [formatted("/a", "A", {"B": "/b"}), replacement]
    plan = plan_directories(found, 1)
    assert list(plan.offline) == ["/b"]
    assert "start once with --give-up /b" in plan.offline["/b"]
    assert plan.missing == {}
    given_up = plan_directories(found, 1, StartChoice(given_up=["/b/"]))
    assert (given_up.offline, given_up.missing, given_up.given_up) == ({}, {}, {"B": "/b"})
    assert given_up.remembered == {"A": "/a"}
    assert given_up.not_missed == []


def test_one_that_cannot_be_read_is_not_missing_beside() -> None:
    plan = plan_directories([formatted("/a", "A", {"B": "/b"}), unreadable("/b")], 1)
    assert (plan.offline, plan.missing) == ({}, {}), "it is known to have failed"
    assert plan.remembered == {"A": "/a", "B": "/b"}


def test_another_directory_where_one_was() -> None:
    plan = plan_directories([formatted("/a", "A", {"B": "/b"}), formatted("/b", "C")], 1)
    assert plan.missing == {"B": "/b"}
    given_up = plan_directories(
        [formatted("/a", "A", {"B": "/b"}), formatted("/b", "C")], 1, StartChoice(given_up=["B"])
    )
    assert (given_up.missing, given_up.remembered) == ({}, {"A": "/a", "C": "/b"})


def test_a_new_directory_beside_those_that_are_known() -> None:
    plan = plan_directories([unused("/new"), formatted("/a", "A", {"B": "/b"}), formatted("/b", "B", {"A": "/a"})], 1)
    assert (plan.offline, plan.missing) == ({}, {})


@pytest.mark.parametrize("name", ["A", "/b"])
def test_what_is_named_or_there_is_not_given_up(name: str) -> None:
    found = [formatted("/a", "A", {"B": "/b"}), unreadable("/b")]
    with pytest.raises(DataDirectoryError, match=f"{name} is to be given up, but log.dirs names it"):
        plan_directories(found, 1, StartChoice(given_up=[name]))


def test_to_give_up_what_nobody_misses_changes_nothing() -> None:
    plan = plan_directories([formatted("/a", "A")], 1, StartChoice(given_up=["B", "/b"]))
    assert (plan.offline, plan.missing, plan.given_up) == ({}, {}, {})
    assert plan.not_missed == ["B", "/b"]


def test_the_others_are_remembered_under_any_path() -> None:
    path = "/disk 2/ä=\\u0041\n#"
    meta = Meta(3, "c", "A", {"B": path}, {"version": "0", "broker.id": "3", "written.by": "kafka"})
    text = meta.text_of({"B": path})
    assert text["written.by"] == "kafka"
    assert (text["version"], text["broker.id"]) == ("0", "3")
    env = sim_env()
    env.disk.make_directory("/d")
    content = "".join(f"{key}={value}\n" for key, value in text.items())
    assert "\\" not in content, "Java would take it for an escape"
    env.disk.open("/d/meta.properties", create=True).write(0, content.encode())
    assert read_contents(env.disk, "/d").meta.others == {"B": path}
    assert meta.text_of({}) == {key: value for key, value in text.items() if not key.startswith("barnabas.")}


@pytest.mark.parametrize(
    ("contents", "words"),
    [
        (unused("/d"), None),
        (unused("/d", ".gitkeep", ".lock", "lost+found", "coordination.sqlite", "coordination.sqlite-wal"), None),
        (unused("/d", "meta.properties.tmp"), None),
        (unused("/d", "letter.txt"), "not empty (letter.txt)"),
        (unused("/d", "replication-offset-checkpoint"), "not empty (replication-offset-checkpoint)"),
        (
            DirectoryContents("/d", names=["t-0"], folders={("t", 0): LogFolder("t-0", [], None, [])}),
            "logs of 1 topic (t)",
        ),
        (formatted("/d", "A", names=["letter.txt"]), None),
        (unreadable("/d"), None),
    ],
)
def test_which_directories_without_meta_properties_are_refused(contents: DirectoryContents, words: str | None) -> None:
    check_formatted(contents, StartChoice(adopt=True))
    if words is None:
        check_formatted(contents, StartChoice())
    else:
        with pytest.raises(DataDirectoryError) as refused:
            check_formatted(contents, StartChoice())
        assert words in str(refused.value)


def test_what_is_a_log_and_what_is_foreign() -> None:
    disk = sim_env().disk
    files = {
        "t-0/00000000000000000000.log",
        "u-0/partition.metadata",
        "photos-2023/letter.tmp",
        "a-1/notes.log",
        "b-01/00000000000000000000.log",
        "plain/00000000000000000000.log",
        "__cluster_metadata-0/00000000000000000000.log",
        "x.0123456789abcdef0123456789abcdef-stray/00000000000000000000.log",
        "y-0.0123456789abcdef0123456789abcdef-future/00000000000000000000.log",
        "z-0.0123456789abcdef0123456789abcdef-delete/00000000000000000000.log",
        "recovery-point-offset-checkpoint.tmp",
        "restore-plan.json",
        "coordination.sqlite.session-7",
        "letter.txt",
        ".DS_Store",
    }
    for name in files:
        disk.make_directory(f"/d/{name}".rpartition("/")[0])
        text = b"version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw" if name.endswith("metadata") else b""
        disk.open(f"/d/{name}", create=True).write(0, text)
    for empty in ("known-3", "unknown-3"):
        disk.make_directory(f"/d/{empty}")
    disk.open("/d/log-start-offset-checkpoint", create=True).write(0, b"0\n1\nknown 3 100\n")
    before = disk.operations
    contents = read_contents(disk, "/d")
    assert sorted(contents.folders) == [("known", 3), ("t", 0), ("u", 0)]
    assert contents.folders["u", 0].topic_id == bytes(range(16))
    assert contents.foreign == ["a-1", "b-01", "letter.txt", "photos-2023", "plain", "unknown-3"]
    assert disk.operations == before, "a look changes nothing"


def test_the_tree_is_found_wherever_it_is() -> None:
    disk = sim_env().disk
    assert place_of_tree(disk, ["/a/", "/b"]) == "/a/coordination.sqlite"
    disk.make_directory("/b")
    disk.open("/b/coordination.sqlite", create=True)
    assert place_of_tree(disk, ["/a/", "/b"]) == "/b/coordination.sqlite"


@pytest.mark.parametrize(
    ("epochs", "copies"),
    [
        ((7, 7), []),
        ((7, 5), ["/1"]),
        ((None, None), []),  # a kill
        ((7, None), ["/1"]),  # a copy of while it ran
        ((5, None), ["/0"]),  # a copy of a clean stop, and a kill since
        ((-1, None), []),  # a marker of an earlier release says no epoch
    ],
)
def test_which_directories_are_old_copies(epochs: tuple[int | None, ...], copies: list[str]) -> None:
    folders = {("t", 0): LogFolder("t-0", [], None, [])}
    found = [
        formatted(f"/{number}", str(number), names=[] if epoch is None else [".kafka_cleanshutdown"], folders=folders)
        for number, epoch in enumerate(epochs)
    ]
    for contents, epoch in zip(found, epochs):
        contents.clean_epoch = -1 if epoch is None else epoch
    assert old_copies(found, 7) == copies
    assert old_copies([formatted("/new", "new"), found[0]], 7) == copies[:1] * (copies[:1] == ["/0"])
