"""Tells systemd that the server is ready, alive, or ends (`Type=notify`; see sd_notify(3))."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

READY, STOPPING, ALIVE = "READY=1", "STOPPING=1", "WATCHDOG=1"


class SystemdNotifier:
    """Does nothing where systemd did not start the process."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._address = environment.get("NOTIFY_SOCKET", "")
        microseconds = environment.get("WATCHDOG_USEC", "")
        self._interval_s = int(microseconds) / 2e6 if microseconds.isdigit() else 0.0

    def say(self, state: str) -> None:
        """Send one state."""
        if not self._address:
            return
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
                channel.sendto(state.encode(), address)
        except OSError as error:
            logger.warning("systemd could not be told %s: %s", state, error)

    async def watch(self, is_healthy: Callable[[], bool]) -> None:
        """Say that the server is alive as often as systemd asks for it, and only while it is; until cancelled."""
        while self._address and self._interval_s > 0.0:
            if is_healthy():
                self.say(ALIVE)
            await asyncio.sleep(self._interval_s)
