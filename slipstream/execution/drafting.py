"""The draft half of a step. Whatever goes wrong in a drafter costs drafts, never an answer."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from slipstream.sampling.rejection import DistributionCheck
from slipstream.scheduler.executor_state import ExecutorState, RequestRows
from slipstream.scheduler.protocol import DraftBlock, Drafter, DraftRequest, RequestResult
from slipstream.speculation.serving import TargetObserver, TargetStates

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class DraftPass:
    """What the draft half did.

    Attributes:
        num_query_rows: rows of the drafter's largest pass.
        num_skipped: requests that were to draft but had just ended.
    """

    num_query_rows: int = 0
    num_skipped: int = 0


class SafeDrafter:
    """Runs a drafter and checks what it gives.

    A failed call is tried again request by request, so that one request's fault does not take the others' drafts; the
    next step asks for all of them again.

    Args:
        observer: the drafter's side that sees every pass of the target, where it has one.
        distribution_check: for the textbook rule, by which a block must say what its drafts were drawn from. None
            where all drafts are judged by equality: whatever a block says of them is then left out, so that no text
            depends on its drafter.

    Attributes:
        failures: count per reason: an exception's class name, `wrong_block_count`, `invalid_token`,
            `missing_distribution` or `invalid_distribution`.
    """

    def __init__(
        self,
        drafter: Drafter,
        vocab_size: int,
        observer: TargetObserver | None = None,
        distribution_check: DistributionCheck | None = None,
    ) -> None:
        self.drafter = drafter
        self.failures: Counter[str] = Counter()
        self._vocab_size = vocab_size
        self._observer = observer
        self._distribution_check = distribution_check

    @property
    def tapped_layers(self) -> Sequence[int]:
        """Layers whose outputs `observe` must be given; none where nothing is observed."""
        return () if self._observer is None else self._observer.tapped_layers

    def observe(self, states: TargetStates) -> None:
        if self._observer is None:
            return
        try:
            self._observer.observe(states)
        except Exception as error:
            self._note(type(error).__name__, error)

    def release(self, request_id: str) -> None:
        try:
            self.drafter.release(request_id)
        except Exception as error:
            self._note(type(error).__name__, error)

    def run(
        self, state: ExecutorState, batch: Sequence[RequestRows], results: Sequence[RequestResult], step: int
    ) -> DraftPass:
        """Draft for every request that the plan lets draft, and store the drafts under the step's handle."""
        layout = self.drafter.layout
        done = DraftPass()
        chosen: list[tuple[RequestRows, RequestResult, DraftRequest]] = []
        for rows, result in zip(batch, results, strict=True):
            request = state.draft_request(rows) if result.error is None else None
            done.num_query_rows += layout.draft_query_rows(len(rows.token_ids), 0)
            if request is None:
                done.num_skipped += bool(rows.scheduled.num_draft_tokens)
                continue
            chosen.append((rows, result, request))
        if chosen:
            blocks = self._propose([request for _, _, request in chosen])
            for (rows, result, request), block in zip(chosen, blocks, strict=True):
                took = None if block is None else block.num_query_rows
                done.num_query_rows += layout.draft_query_rows(0, request.num_draft_tokens) if took is None else took
                if block is not None:
                    state.keep_drafts(rows, result, self._checked(self._judgeable(block, request)), step)
        return done

    def _propose(self, requests: list[DraftRequest]) -> list[DraftBlock | None]:
        try:
            blocks = self.drafter.propose(requests)
        except Exception as error:
            self._note(type(error).__name__, error)
            if len(requests) == 1:
                return [None]
            return [block for request in requests for block in self._propose([request])]
        if len(blocks) != len(requests):
            self._note("wrong_block_count", f"{len(blocks)} blocks for {len(requests)} requests")
            return [None] * len(requests)
        return list(blocks)

    def _checked(self, block: DraftBlock) -> DraftBlock:
        """The drafts up to the first id that is no token: it must not reach the embedding."""
        token_ids = block.token_ids
        for i, token_id in enumerate(token_ids):
            if not 0 <= token_id < self._vocab_size:
                self._note("invalid_token", f"token id {token_id} with a vocabulary of {self._vocab_size}")
                confidences = block.confidences
                kept = None if confidences is None else confidences[:i]
                drawn_from = None if block.distributions is None else block.distributions[:i]
                return DraftBlock(token_ids[:i], kept, block.num_query_rows, drawn_from)
        return block

    def _judgeable(self, block: DraftBlock, request: DraftRequest) -> DraftBlock:
        """The block with distributions that its drafts can be judged by, one per draft; else without any: its drafts
        are then judged by equality, which costs acceptance, never the text's law."""
        found, wanted, check = block.distributions, len(block.token_ids), self._distribution_check
        if check is None:
            return replace(block, distributions=()) if found else block
        if found is None and (not wanted or request.sampling.is_greedy):
            return block
        if found is None or len(found) not in (0, wanted):
            self._note("missing_distribution", f"{len(found or ())} distributions for {wanted} drafts")
            return replace(block, distributions=())
        fault = next((fault for fault in map(check.fault, found) if fault is not None), None)
        if fault is not None:
            self._note("invalid_distribution", fault)
            return replace(block, distributions=())
        return block

    def _note(self, reason: str, detail: object) -> None:
        self.failures[reason] += 1
        if self.failures[reason] == 1:
            error = detail if isinstance(detail, BaseException) else None
            logger.warning(
                "drafter failed (%s: %s); answers go on without its drafts. Further ones are counted, not logged",
                reason,
                detail,
                exc_info=error,
            )
