"""`/v1/control/leftovers`: what a test should not have left when it ends, in one answer."""

from barnabas.broker.http.control import ACTIVE_RULE, gate_of, row_of
from barnabas.broker.http.routes import HttpAnswer, HttpRequest, route
from barnabas.broker.http.schemas import array, integer, record, text
from barnabas.broker.services import Services
from barnabas.coordinators.groups.views import group_ids, view
from barnabas.runtime.turns import Pieces

OPEN = "Ongoing"  # Kafka's name of the state
LEFTOVERS = record(
    "What is left on this broker.",
    rules=array(ACTIVE_RULE, "The faults that hold and have never fired."),
    groups=array(
        record("A group.", group=text("Its name."), members=integer("How many it has.")),
        "The groups that it coordinates and that have members.",
    ),
    transactional_ids=array(text("An id."), "Those that it coordinates and whose transaction is open."),
)


@route("GET", "/v1/control/leftovers", summary="What a test should not have left", answer=LEFTOVERS)
def list_leftovers(services: Services, request: HttpRequest) -> Pieces[HttpAnswer]:
    """Faults that never fired, groups with members, open transactions. Ask each broker of a cluster."""
    rules = [row_of(each) for each in gate_of(services).rules if not each.fired]
    groups = []
    for shard in services.group_coordinator.loaded_shards():
        for name in group_ids(shard):
            yield
            group = view(shard, name)
            if group is not None and group.member_count:
                groups.append({"group": name, "members": group.member_count})
    transactional_ids = []
    transactions = services.transactions.coordinator
    for transactions_shard in transactions.loaded_shards() if transactions.is_active else ():
        for name, entry in transactions_shard.entries.looks():
            yield
            if entry.transaction.state.kafka_name == OPEN:
                transactional_ids.append(name)
    return HttpAnswer.json({"rules": rules, "groups": groups, "transactional_ids": sorted(transactional_ids)})
