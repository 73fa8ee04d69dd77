"""Random conversations of members, committers and admins with a coordinator (`GroupWorld`)."""

import random
from typing import Any

from barnabas.protocol import messages
from barnabas.runtime.pending import Pending
from group_world import GroupWorld, pending_commit

GROUPS = ["g", "h", "a-third"]


class Client:
    """A member that does what clients do, now and then."""

    def __init__(self, world: GroupWorld, group: str, instance: str | None) -> None:
        self.world = world
        self.group = group
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.members: list[str] = []
        self.leads = False

    def join(self, chance: random.Random) -> None:
        protocol = messages.JoinGroupRequest.JoinGroupRequestProtocol
        names = chance.sample(["range", "roundrobin"], 2)
        request = messages.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=10000,
            rebalance_timeout_ms=5000,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            protocols=[protocol(name=name, metadata=b"\x00\x01\x00\x00\x00\x00") for name in names],
        )
        self.then(self.world.call("join_group", request, 9), self.joined)

    def joined(self, response: Any) -> None:
        if response.error_code in (25, 82):
            self.member_id = ""
        elif response.member_id:
            self.member_id = response.member_id
        if not response.error_code:
            self.generation = response.generation_id
            self.leads = response.leader == self.member_id
            self.members = [member.member_id for member in response.members]

    def sync(self) -> None:
        given = messages.SyncGroupRequest.SyncGroupRequestAssignment
        request = messages.SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
            protocol_type="consumer",
            assignments=[given(member_id=member, assignment=member.encode()[-4:]) for member in self.members],
        )
        self.world.call("sync_group", request, 3)

    def heartbeat(self) -> None:
        request = messages.HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation,
            member_id=self.member_id,
            group_instance_id=self.instance,
        )
        self.world.call("heartbeat", request, 4)

    def leave(self) -> None:
        identity = messages.LeaveGroupRequest.MemberIdentity(member_id=self.member_id, group_instance_id=self.instance)
        self.world.call("leave_group", messages.LeaveGroupRequest(group_id=self.group, members=[identity]), 5)
        self.member_id = ""

    def forget(self) -> None:
        """The process dies and another takes its place."""
        self.member_id = ""

    @staticmethod
    def then(reply: Any, callback: Any) -> None:
        if isinstance(reply, Pending):
            reply.then(callback)
        else:
            callback(reply)


def commit(world: GroupWorld, group: str, chance: random.Random, client: Client | None) -> None:
    make = messages.OffsetCommitRequest
    rows = [
        make.OffsetCommitRequestPartition(
            partition_index=index, committed_offset=chance.randrange(1000), committed_metadata="m" * chance.randrange(3)
        )
        for index in range(chance.randrange(1, 4))
    ]
    request = make(
        group_id=group,
        generation_id_or_member_epoch=-1 if client is None else client.generation,
        member_id="" if client is None else client.member_id,
        group_instance_id=None if client is None else client.instance,
        retention_time_ms=chance.choice([-1, 50_000]),
        topics=[make.OffsetCommitRequestTopic(name=chance.choice(["t", "events"]), partitions=rows)],
    )
    world.call("offset_commit", request, chance.randrange(2, 10))


def pend(world: GroupWorld, group: str, chance: random.Random, client: Client | None) -> None:
    topic = chance.choice(["t", "events"])
    request = pending_commit(
        group,
        chance.randrange(3),
        {(topic, index): chance.randrange(1000) for index in range(chance.randrange(1, 4))},
        metadata="m" * chance.randrange(3),
        generation=-1 if client is None else client.generation,
        member_id="" if client is None else client.member_id,
        instance=None if client is None else client.instance,
    )
    world.call("txn_offset_commit", request, chance.randrange(6))


def offset_delete(world: GroupWorld, group: str) -> None:
    make = messages.OffsetDeleteRequest
    rows = [make.OffsetDeleteRequestPartition(partition_index=index) for index in range(3)]
    world.call(
        "offset_delete", make(group_id=group, topics=[make.OffsetDeleteRequestTopic(name="t", partitions=rows)]), 0
    )


def converse(world: GroupWorld, chance: random.Random, steps: int) -> None:
    clients = [
        Client(world, group, instance)
        for group in GROUPS
        for instance in (None, None, None, f"{group}-1", f"{group}-2")
    ]
    for _ in range(steps):
        client = chance.choice(clients)
        match chance.randrange(18):
            case 0 | 1 | 2 | 3:
                client.join(chance)
            case 4 | 5 | 6:
                client.sync()
            case 7 | 8:
                client.heartbeat()
            case 9:
                chance.choice([client.leave, client.forget])()
            case 10:
                commit(world, client.group, chance, chance.choice([None, client]))
            case 11:
                world.call("delete_groups", messages.DeleteGroupsRequest(groups_names=[client.group]), 2)
            case 12:
                offset_delete(world, client.group)
            case 13:
                log = world.logs[0]
                log.held = not log.held
                if not log.held:
                    log.release()
            case 14:
                pend(world, client.group, chance, chance.choice([None, client]))
            case 15:
                world.send_marker(chance.randrange(3), chance.random() < 0.6)
            case _:
                world.clock.advance(chance.choice([0, 100, 1000, 4000, 12000]))
