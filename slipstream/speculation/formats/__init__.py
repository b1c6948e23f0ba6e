"""Checkpoint formats of block drafters: several are read, one is written. Each reader gives a DrafterConfig."""
