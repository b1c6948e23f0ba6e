"""The engine loop: takes messages, steps while there is work, sleeps while there is none."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from typing import Protocol

from slipstream.engine.engine import Engine, EngineDeadError
from slipstream.engine.messages import Abort, Accepted, EngineDied, Event, Message, Rejected, Shutdown, StepReport
from slipstream.request import RequestError

logger = logging.getLogger(__name__)

# The engine has requests but none could run and nothing is in flight: look again soon, without spinning.
STALLED_WAIT_S = 0.02


class Inbox(Protocol):
    """Where a loop gets its messages from: a queue, or a pipe."""

    def get(self, timeout: float | None) -> Message | None:
        """The next message; waits `timeout` seconds (None for ever, 0 not at all) and gives None when none came."""
        ...


class QueueInbox:
    """Messages from another thread of the same process."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()

    def put(self, message: Message) -> None:
        self._queue.put(message)

    def get(self, timeout: float | None) -> Message | None:
        """See Inbox."""
        try:
            return self._queue.get(block=timeout != 0, timeout=timeout)
        except queue.Empty:
            return None


class EngineLoop:
    """Runs an engine until told to stop; everything it has to say goes to `deliver`, in order.

    Attributes:
        step_started: when the step now running began, on the engine's clock; None between steps.
    """

    def __init__(self, engine: Engine, inbox: Inbox, deliver: Callable[[Event], None]) -> None:
        self.step_started: float | None = None
        self._engine = engine
        self._inbox = inbox
        self._deliver = deliver

    def run(self) -> None:
        """Returns after a Shutdown; a dead engine goes on refusing submissions until then."""
        engine = self._engine
        stalled = False
        while self._read_messages_safely(stalled):
            if engine.death is not None or not engine.has_work():
                stalled = False
                continue
            self.step_started = engine.clock()
            try:
                report = engine.step()
            except EngineDeadError:
                report = None
            self.step_started = None
            stalled = report is not None and report.idle
            if report is not None and not stalled:
                self._deliver(report)
            if engine.death is not None:
                self._die(engine.death)
        engine.close()

    def _read_messages_safely(self, stalled: bool) -> bool:
        try:
            return self._read_messages(stalled)
        except Exception as error:
            logger.exception("the engine failed while taking a message")
            self._engine.death = f"the engine failed: {type(error).__name__}: {error}"
            self._die(self._engine.death)
            return True

    def _read_messages(self, stalled: bool) -> bool:
        """Handle what waits; sleeps when there is nothing else to do. False after a Shutdown."""
        engine = self._engine
        idle = engine.death is not None or not engine.has_work()
        timeout: float | None = None if idle else STALLED_WAIT_S if stalled else 0
        while (message := self._inbox.get(timeout)) is not None:
            timeout = 0
            match message:
                case Shutdown():
                    return False
                case Abort(request_id):
                    engine.abort(request_id)
                case submission:
                    try:
                        engine.add_request(submission)
                    except RequestError as error:
                        self._deliver(Rejected(submission.request_id, error.message, error.parameter, error.code))
                    except EngineDeadError as error:
                        self._deliver(EngineDied(str(error)))
                    except Exception as error:
                        # Whatever is wrong with one submission is no reason to let the others down.
                        logger.exception("request %s could not be taken", submission.request_id)
                        self._deliver(Rejected(submission.request_id, f"the request could not be taken: {error}"))
                    else:
                        self._deliver(Accepted(submission.request_id))
        return True

    def _die(self, reason: str) -> None:
        logger.critical("the engine stops: %s", reason)
        self._deliver(StepReport(self._engine.fail_all(reason)))
        self._deliver(EngineDied(reason))
