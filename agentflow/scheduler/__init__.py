"""Admission: the only way to an engine."""

from agentflow.scheduler.keeper import PrefixKeeper
from agentflow.scheduler.promptlimit import PromptLimit
from agentflow.scheduler.scheduler import Scheduler, Seat, Ticket
from agentflow.scheduler.upkeep import Upkeep

__all__ = ["PrefixKeeper", "PromptLimit", "Scheduler", "Seat", "Ticket", "Upkeep"]
