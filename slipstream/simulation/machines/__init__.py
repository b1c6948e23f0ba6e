"""Machine models: what steps cost on machines that are not here, each figure with its source."""

from slipstream.simulation.machines.registry import machine_named, machine_names

__all__ = ["machine_named", "machine_names"]
