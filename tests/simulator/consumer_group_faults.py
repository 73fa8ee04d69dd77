"""Planted faults of consumer groups (KIP-848), as in faults.py: what `consumer_groups.py` must find."""

from simulator.faults import Change, Fault

CAMPAIGN = "consumer groups"
CONSUMER = "coordinators.groups.consumer."
ONE_OWNER = "a partition has one owner"
EPOCHS = "epochs only grow"
FENCED = "who is fenced commits nothing"
CONVERGE = "assignments converge"
RESETS = "live resets"


def _fault(name: str, where: str, right: str, wrong: str, invariant: str, seed: int, *also: Change) -> Fault:
    return Fault(name, CAMPAIGN, CONSUMER + where, right, wrong, invariant, seed, also=also)


CONSUMER_GROUP_FAULTS = (
    # From partition to partition
    _fault(
        "a partition is given away while it is owned",
        "reconciliation:_next",
        "if partition not in own and is_owned(topic_id, partition):",
        "if False:",
        ONE_OWNER,
        1,
    ),
    _fault(
        "a member is not asked to give up",
        "reconciliation:_next",
        "if revoked and _still_owns(owned, revoked):",
        "if False:",
        ONE_OWNER,
        4,
    ),
    _fault(
        "who says nothing has given up",
        "reconciliation:_still_owns",
        "return True",
        "return False",
        ONE_OWNER,
        4,
    ),
    _fault(
        "a member that gives up slowly is not waited for",
        "reconciliation:reconcile",
        "current.state is MemberState.UNREVOKED_PARTITIONS and _still_owns(owned, current.revoking)",
        "False",
        ONE_OWNER,
        6,
    ),
    _fault(
        "what is given up counts as free",
        "group:ConsumerGroup._set_current",
        "(new.assigned, new.revoking)",
        "(new.assigned,)",
        ONE_OWNER,
        3,
    ),
    _fault(
        "a static member that is back leaves itself behind",
        "heartbeats:replace",
        "remove(change, old.member_id)",
        "pass",
        ONE_OWNER,
        6,
    ),
    _fault(
        "a member is told what it should have",
        "heartbeats:heartbeat",
        "in sorted(member.current.assigned.items())",
        "in sorted(group.target_of(member_id).items())",
        ONE_OWNER,
        1,
    ),
    _fault(
        "a classic member is told what it should have",
        "classic_members:sync",
        "assignment_bytes(member.current.assigned,",
        "assignment_bytes(group.target_of(member.member_id),",
        ONE_OWNER,
        3,
    ),
    # Commits
    _fault(
        "who is not in the group may commit",
        "commits:check_commit",
        "return ErrorCode.UNKNOWN_MEMBER_ID",
        "return ErrorCode.NONE",
        FENCED,
        3,
    ),
    _fault(
        "an older epoch may commit everything",
        "commits:_check_epoch",
        "if since is None or epoch < since:",
        "if False:",
        FENCED,
        4,
    ),
    # Epochs, and what is told
    _fault(
        "an answer is given before it is committed",
        "runtime:ConsumerGroups.carry_out",
        "return pending",
        "return answer",
        EPOCHS,
        34,
    ),
    _fault(
        "an upgrade begins with epoch 0",
        "conversion:upgrade",
        "epoch = classic.generation",
        "epoch = 0",
        EPOCHS,
        4,
    ),
    _fault(
        "a downgrade begins with generation 0",
        "conversion:downgrade",
        "generation=group.epoch",
        "generation=0",
        EPOCHS,
        1,
    ),
    _fault(
        "what the log refuses is not taken back",
        "runtime:ConsumerGroups._take_back",
        "each.take_back()",
        "pass",
        ONE_OWNER,
        25,
    ),
    # Up and down
    _fault(
        "an upgrade forgets who has what",
        "conversion:upgrade",
        "_assigned(member.assignment, epoch, topics)",
        "{}",
        ONE_OWNER,
        6,
    ),
    _fault(
        "an upgrade forgets who reads on",
        "conversion:upgrade",
        "_add_claims(assigned, saying, epoch, topics)",
        "pass",
        ONE_OWNER,
        17,
    ),
    _fault(
        "a classic member does not hear of a new assignment",
        "classic_members:_has_a_step",
        "if member.epoch < group.assignment_epoch or",
        "if",
        CONVERGE,
        4,
    ),
    # What must be noticed
    _fault(
        "a member that is gone changes no epoch",
        "heartbeats:_next_epoch",
        "GroupEpoch(group.epoch + 1,",
        "GroupEpoch(group.epoch,",
        CONVERGE,
        3,
    ),
    _fault(
        "new partitions are not noticed",
        "heartbeats:advance",
        "group.seen_topics != topics.changes",
        "False",
        CONVERGE,
        20,
    ),
    _fault(
        "nothing is assigned after the first time",
        "heartbeats:may_assign",
        "return not 0 <= age_ms < situation.settings.assignment_interval_ms",
        "return not group.of_targets.timestamp",
        CONVERGE,
        1,
    ),
    _fault(
        "targets are stored of members that keep theirs",
        "target:update",
        "!= target:",
        "== target:",
        CONVERGE,
        1,
    ),
    _fault(
        "an old answer counts for the newest epoch",
        "target:update_encoded",
        "TargetEpoch(question.epoch, now_ms)",
        "TargetEpoch(change.group.epoch, now_ms)",
        CONVERGE,
        38,
    ),
    _fault(
        "an answer that is thrown away is waited for",
        "runtime:ConsumerGroups._assign",
        "group.question = None",
        "pass",
        CONVERGE,
        9,
    ),
    _fault(
        "what the log refuses is answered",
        "runtime:ConsumerGroups._take_back",
        "group.question = None",
        "pass",
        EPOCHS,
        108,
    ),
    _fault(
        "silent members stay",
        "runtime:ConsumerGroups._on_time",
        "in timers.due(timers.sessions, now_ms):",
        "in ():",
        "nobody does the same for ever",
        1,
    ),
    _fault(
        "after a load nobody can be silent for too long",
        "runtime:ConsumerGroups.start_sessions",
        "self._start_missing_sessions(group)",
        "pass",
        CONVERGE,
        1,
    ),
    _fault(
        "a heartbeat does not count as a sign of life",
        "heartbeats:stay",
        "timers.set(timers.sessions, member_id, monotonic_ms, timeout_ms)",
        "pass",
        CONVERGE,
        1,
    ),
    # Live resets
    _fault(
        "a live reset leaves its members in the group",
        "heartbeats:fence",
        "for member_id in member_ids:\n        remove(",
        "for member_id in () if is_reset else member_ids:\n        remove(",
        FENCED,
        1,
    )._replace(focus=RESETS),
)
