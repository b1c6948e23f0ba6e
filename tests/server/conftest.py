"""Lets tests here use the engine tests' helpers, and gives them servers."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "engine"))

from server_helpers import start_server

__all__ = ["start_server"]
