"""Drafters for real models, and the table that builds them by name."""
