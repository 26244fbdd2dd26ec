"""The appliance: process, machine and face of one Agent Compute Unit."""

__version__ = "0.1.0"
