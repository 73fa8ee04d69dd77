"""Transactional clients of a cluster: they find coordinators and leaders, and look again when these have moved."""

from simulator.clients.committed_reader import CommittedReader
from simulator.clients.copier import Copier, CopierConsumer
from simulator.clients.routed import ClusterMember, Routed
from simulator.clients.transactional_feeder import Feeder


class ClusterFeeder(Routed, Feeder):
    """Its transactional coordinator, and the leaders of its partitions, may move."""


class ClusterCopierConsumer(ClusterMember, CopierConsumer):
    """Its coordinator may move."""


class ClusterCopier(Routed, Copier):
    """It needs two coordinators, and leaders."""

    consumer_class = ClusterCopierConsumer


class ClusterCommittedReader(Routed, CommittedReader):
    """Reads from leaders."""
