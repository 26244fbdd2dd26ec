"""The appliance: process, machine and face of one Agent Compute Unit."""
