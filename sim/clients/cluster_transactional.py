"""Transactional clients of a cluster: they find coordinators and leaders, and look again when these have moved."""

from barnabas.sim.clients.committed_reader import CommittedReader
from barnabas.sim.clients.copier import Copier, CopierConsumer
from barnabas.sim.clients.routed import ClusterMember, Routed
from barnabas.sim.clients.transactional_feeder import Feeder


class ClusterFeeder(Routed, Feeder):
    """Its transactional coordinator, and the leaders of its partitions, may move."""


class ClusterCopierConsumer(ClusterMember, CopierConsumer):
    """Its coordinator may move."""


class ClusterCopier(Routed, Copier):
    """It needs two coordinators, and leaders."""

    consumer_class = ClusterCopierConsumer


class ClusterCommittedReader(Routed, CommittedReader):
    """Reads from leaders."""
