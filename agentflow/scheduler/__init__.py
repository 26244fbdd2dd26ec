"""Admission: the only way to an engine."""

from agentflow.scheduler.scheduler import Scheduler, Seat, Ticket

__all__ = ["Scheduler", "Seat", "Ticket"]
