"""Admission: the only way to an engine."""

from agentflow.scheduler.keeper import PrefixKeeper
from agentflow.scheduler.scheduler import Scheduler, Seat, Ticket

__all__ = ["PrefixKeeper", "Scheduler", "Seat", "Ticket"]
