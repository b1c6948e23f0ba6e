"""Paged attention over flat batches of prompt, decode and verify rows."""
