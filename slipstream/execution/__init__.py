"""The executor in front of a real model."""
