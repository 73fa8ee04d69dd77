"""Every path of Kafka's tree in ZooKeeper mode. Prefixes of sequential nodes end where the ten digits begin."""

from urllib.parse import quote, unquote

BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE_ID = "/brokers/seqid"
TOPICS = "/brokers/topics"
CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
DELETE_TOPICS = "/admin/delete_topics"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGES = "/isr_change_notification"
ISR_CHANGE_PREFIX = f"{ISR_CHANGES}/isr_change_"
LOG_DIR_EVENTS = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = f"{LOG_DIR_EVENTS}/log_dir_event_"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = f"{CONFIG_CHANGES}/config_change_"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE = "/feature"
CONSUMERS = "/consumers"
OFFSETS, OTHERS_OF_A_GROUP = "offsets", ("ids", "owners")  # the nodes in the folder of an old consumer group
ACLS = "/kafka-acl"
ACL_CHANGES = "/kafka-acl-changes"
ACL_CHANGE_PREFIX = f"{ACL_CHANGES}/acl_changes_"
EXTENDED_ACLS = "/kafka-acl-extended"
EXTENDED_ACL_CHANGES = "/kafka-acl-extended-changes"
EXTENDED_ACL_CHANGE_PREFIX = f"{EXTENDED_ACL_CHANGES}/acl_changes_"
DELEGATION_TOKENS = "/delegation_token/tokens"
DELEGATION_TOKEN_CHANGES = "/delegation_token/token_changes"
DELEGATION_TOKEN_CHANGE_PREFIX = f"{DELEGATION_TOKEN_CHANGES}/token_change_"

BROKER_EPOCHS = "/barnabas/broker_epochs"  # not Kafka's; see `broker_epoch`
RESTORED = "/barnabas/restored"  # not Kafka's: there while the tree is a copy that may be older than the logs
OLD_SETTINGS = "/barnabas/old_settings"  # not Kafka's: changed when a tree is found to be older than the logs
ODD_ACLS = "/barnabas/acls"  # not Kafka's; see `acls`
TREE_MARKS = "/barnabas/tree_marks"  # not Kafka's; see `tree_mark`

DEFAULT_ENTITY = "<default>"

# Made by every broker at its start where they are missing.
PERSISTENT = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    *(f"{CONFIG}/{entity_type}" for entity_type in ("topics", "clients", "users", "brokers", "ips")),
    DELETE_TOPICS,
    BROKER_SEQUENCE_ID,
    ISR_CHANGES,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENTS,
)


def broker(broker_id: int) -> str:
    """Registration of a broker: ephemeral, its czxid is the broker epoch."""
    return f"{BROKER_IDS}/{broker_id}"


def broker_epoch(broker_id: int) -> str:
    """Its mzxid is the epoch in which the broker registered last: this node stays when the broker goes."""
    return f"{BROKER_EPOCHS}/{broker_id}"


def tree_mark(broker_id: int) -> str:
    """What a broker counts up while it runs, here and on its disks, so that it knows an older copy of the tree."""
    return f"{TREE_MARKS}/{broker_id}"


def topic(name: str) -> str:
    """A topic's assignment."""
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    """Parent of a topic's partitions."""
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    """Parent of a partition's state."""
    return f"{TOPICS}/{name}/partitions/{index}"


def partition_state(name: str, index: int) -> str:
    """Leader and ISR of a partition."""
    return f"{TOPICS}/{name}/partitions/{index}/state"


def delete_topic(name: str) -> str:
    """The wish that a topic be deleted."""
    return f"{DELETE_TOPICS}/{name}"


def config(entity_path: str) -> str:
    """Settings of an entity by its path as a change notice has it: `topics/t`, `users/u/clients/c`."""
    return f"{CONFIG}/{entity_path}"


def topic_config(name: str) -> str:
    return f"{CONFIG}/topics/{name}"


def encode_name(name: str | None) -> str:
    """A user or client id as a node's name; None is the default entity."""
    if name is None:
        return DEFAULT_ENTITY
    if name in (".", ".."):  # no tree makes nodes of these names
        return name.replace(".", "%2E")
    return quote(name, safe="-_.").replace("~", "%7E")


def decode_name(name: str) -> str | None:
    """The user or client id of a node's name."""
    return None if name == DEFAULT_ENTITY else unquote(name)


def acls(resource_type: str, name: str, *, prefixed: bool = False) -> str:
    """Access rules of a resource. The type is spelled as in the tree: Topic, Group, Cluster, TransactionalId, …

    Kafka 3.9 has no rules for names that no node can have, as that of the group "team/app". They have another folder.
    """
    if "/" in name or "\0" in name or name in (".", ".."):
        return f"{ODD_ACLS}/{'prefixed' if prefixed else 'literal'}/{resource_type}/{encode_name(name)}"
    return f"{EXTENDED_ACLS}/prefixed/{resource_type}/{name}" if prefixed else f"{ACLS}/{resource_type}/{name}"


def delegation_token(token_id: str) -> str:
    """A delegation token, without its secret."""
    return f"{DELEGATION_TOKENS}/{token_id}"


def consumer_ids(group: str) -> str:
    """Parent of the members of an old consumer group."""
    return f"{CONSUMERS}/{group}/ids"


def consumer(group: str) -> str:
    """The folder of an old consumer group."""
    return f"{CONSUMERS}/{group}"


def consumer_offsets(group: str) -> str:
    """Parent of the topics whose offsets a group committed."""
    return f"{CONSUMERS}/{group}/{OFFSETS}"


def consumer_offset(group: str, topic_name: str, index: int) -> str:
    """A group's committed offset of a partition."""
    return f"{CONSUMERS}/{group}/{OFFSETS}/{topic_name}/{index}"


def sequence_number(name: str) -> int:
    """The number at the end of a sequential node's name."""
    return int(name[-10:])
