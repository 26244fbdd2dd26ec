"""Admission: the only way to an engine."""

from agentflow.scheduler.keeper import PrefixKeeper
from agentflow.scheduler.scheduler import Scheduler, Seat, Ticket
from agentflow.scheduler.upkeep import Upkeep

__all__ = ["PrefixKeeper", "Scheduler", "Seat", "Ticket", "Upkeep"]
