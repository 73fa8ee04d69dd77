"""A client that commits offsets for a group without members."""

from typing import TYPE_CHECKING

from barnabas.protocol.api_keys import ApiKey
from barnabas.protocol.errors import ErrorCode
from barnabas.protocol.messages import DeleteGroupsRequest

from simulator.clients.client import Client, expect
from simulator.clients.connection import LostError
from simulator.clients.offsets import NOTHING_WRITTEN, commit, fetch_offsets
from simulator.ledger import TopicPartition
from simulator.observations import DELETE_GROUP, Administer, Outcome

if TYPE_CHECKING:
    from simulator.world import World


class Committer(Client):
    """Commits rising offsets for a group that has no members."""

    def __init__(self, world: "World", name: str, keys: list[TopicPartition]) -> None:
        super().__init__(world, name)
        self.group_id = f"group-of-{name}"
        self.keys = keys
        self.positions: dict[TopicPartition, int] = {}

    async def turn(self) -> None:
        luck = self.rng.random()
        if luck < 0.3:
            await self.look()
        elif luck < 0.36 and not self.world.settling:
            await self._delete()
        else:
            key = self.rng.choice(self.keys)
            self.positions[key] = self.positions.get(key, 0) + self.rng.randint(1, 9)
            error = await commit(self, self.group_id, -1, "", None, {key: self.positions[key]})
            expect(error, f"OffsetCommit of {self.name}")
        await self.sleep(100, 1_500)

    async def _delete(self) -> None:
        """Delete the group. The offsets that it had committed must not come back."""
        await delete_group(self, self.group_id)

    async def look(self) -> None:
        """Fetch the committed offsets."""
        await fetch_offsets(self, self.group_id, self.keys)


async def delete_group(client: Client, group_id: str) -> ErrorCode:
    """Delete a group, and note it in the ledger."""
    commits = client.world.ledger.commits
    asked_ms = commits.ask_deletion(group_id)
    operation = Administer(DELETE_GROUP, group_id)
    number = client.began(operation)
    answered = False
    try:
        response = await client.ask(ApiKey.DELETE_GROUPS, 1, DeleteGroupsRequest(groups_names=[group_id]))
        answered = True
    except LostError:
        client.ended(number, Outcome.INFO, operation)
        raise
    finally:
        commits.end_deletion(group_id, answered=answered)
    harmless = (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NON_EMPTY_GROUP)
    error = expect(response.results[0].error_code, f"DeleteGroups of {group_id}", *harmless)
    nothing_done = error in (*harmless, *NOTHING_WRITTEN)
    client.ended(number, Outcome.FAIL if nothing_done else Outcome.INFO if error else Outcome.OK, operation)
    if error is ErrorCode.NONE:
        commits.acknowledge_deletion(group_id, asked_ms)
    return error
