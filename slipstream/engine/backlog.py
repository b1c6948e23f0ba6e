"""Backlog: what was submitted and has not begun to run."""

from __future__ import annotations

from slipstream.engine.messages import Submission


class Backlog:
    """Kept by a front from what it sends and hears.

    Attributes:
        num_choices: that never ran yet. num_prompt_tokens: of the submissions none of whose choices ever ran.
    """

    def __init__(self) -> None:
        self.num_choices = 0
        self.num_prompt_tokens = 0
        self._waiting: dict[str, set[int]] = {}
        self._prompt_tokens: dict[str, int] = {}

    def add(self, submission: Submission) -> None:
        """It goes to the engine now."""
        choices = set(range(submission.sampling.n))
        self._waiting[submission.request_id] = choices
        self._prompt_tokens[submission.request_id] = len(submission.prompt_token_ids)
        self.num_choices += len(choices)
        self.num_prompt_tokens += len(submission.prompt_token_ids)

    def started(self, request_id: str, choice_index: int) -> None:
        """One of its choices ran for the first time."""
        waiting = self._waiting.get(request_id)
        if waiting is None or choice_index not in waiting:
            return
        waiting.remove(choice_index)
        self.num_choices -= 1
        self.num_prompt_tokens -= self._prompt_tokens.pop(request_id, 0)
        if not waiting:
            del self._waiting[request_id]

    def gone(self, request_id: str) -> None:
        """It ended, was aborted or was refused; no-op when all of it had begun."""
        self.num_choices -= len(self._waiting.pop(request_id, ()))
        self.num_prompt_tokens -= self._prompt_tokens.pop(request_id, 0)
