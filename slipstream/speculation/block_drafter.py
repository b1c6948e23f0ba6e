"""DFlash and DSpark in front of a real target: a whole block of drafts from one pass over the target's hidden states.

The drafter's KV lies in tensors of its own under the target's block ids. Context KV of a token is a function of the
target's states at that token alone, and is written in the step in which the target runs the token. So a block that the
prefix cache hands on is complete for the drafter too, and a preempted request gets its KV back as it is recomputed.

Rows of a block write their KV at the anchor's position and after. No reader ever sees it but the block itself: the
next step of the target writes context KV over what was accepted, the next block over the rest, and what lies beyond a
block's end is not read. Rows of refused drafts are observed like any other, and lie there too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slipstream.attention.cache import PagedKVCache
from slipstream.attention.metadata import AttentionMetadata, AttentionRequest, build_metadata
from slipstream.scheduler.layouts import DraftLayout
from slipstream.scheduler.protocol import DraftBlock, DraftRequest
from slipstream.speculation.draft_sampling import DraftSampler
from slipstream.speculation.drafter_config import DrafterConfig
from slipstream.speculation.drafter_model import DrafterModel
from slipstream.speculation.network import build_network
from slipstream.speculation.serving import ServingTarget, TargetStates


class BlockDrafter:
    """A Drafter and TargetObserver around a DrafterModel. It remembers nothing of any request but its KV.

    Args:
        model: on the target's device and in its type; it is bound to the target and made ready here.
        sample_method: see DraftSampler.

    Attributes:
        sampler: chooses every draft; another may take its place between steps, to listen.
    """

    def __init__(self, model: DrafterModel, target: ServingTarget, *, sample_method: str = "coupled") -> None:
        self.model = model
        self.config: DrafterConfig = model.config
        self.layout: DraftLayout = model.config.draft_layout
        decoder = target.decoder
        self._network = build_network(model, decoder)
        self.cache = PagedKVCache(
            self.config.num_layers,
            target.num_kv_blocks,
            target.block_size,
            self.config.num_kv_heads,
            self.config.head_dim,
            dtype=self._network.cache_dtype,
            device=decoder.device,
        )
        self.sampler = DraftSampler(model.target_ids, self.config.vocab_size, sample_method)

    @property
    def tapped_layers(self) -> Sequence[int]:
        """See TargetObserver."""
        return self.config.target_layer_ids

    @torch.inference_mode()
    def observe(self, states: TargetStates) -> None:
        """See TargetObserver: writes the context KV of all rows."""
        self._network.write_context(states.layer_hidden, states.metadata, self.cache)

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter: one pass over the blocks of all requests, then K draws one after the other."""
        token_ids, metadata, draft_rows = self._block_rows(requests)
        hidden = self._network.block_hidden(token_ids, metadata, self.cache).index_select(0, draft_rows)
        chooser = self.sampler.chooser(requests)
        anchors = torch.tensor([request.token_ids[-1] for request in requests], device=hidden.device)
        drafted = self._network.draw(hidden.view(len(requests), -1, self.config.hidden_size), anchors, chooser)
        drafts = drafted.token_ids.tolist()
        confidences = self._confidences(drafted.confidence_logits, requests)
        return [
            DraftBlock(
                drafts[i][: request.num_draft_tokens],
                None if confidences is None else confidences[i][: request.num_draft_tokens],
                distributions=chooser.distributions(i)[: request.num_draft_tokens],
            )
            for i, request in enumerate(requests)
        ]

    def release(self, request_id: str) -> None:
        """See Drafter; nothing is kept."""

    def _block_rows(self, requests: Sequence[DraftRequest]) -> tuple[Tensor, AttentionMetadata, Tensor]:
        """Input ids and places of all rows, and the rows that predict drafts, [R * K]; K is the most anyone drafts.

        A request that drafts fewer has its last row repeated there; those draws are thrown away.
        """
        config = self.config
        most = max(request.num_draft_tokens for request in requests)
        token_ids: list[int] = []
        placed: list[AttentionRequest] = []
        draft_rows: list[int] = []
        for request in requests:
            count = config.num_block_rows(request.num_draft_tokens)
            start = len(token_ids)
            placed.append(AttentionRequest(start, count, len(request.token_ids) - 1, request.block_ids))
            token_ids += [request.token_ids[-1]] + [config.mask_token_id] * (count - 1)
            first = start + config.first_draft_row
            draft_rows += [first + min(k, request.num_draft_tokens - 1) for k in range(most)]
        device = self.cache.device
        return (
            torch.tensor(token_ids, device=device),
            build_metadata(placed, self.cache.block_size, self.cache.scratch_block, device),
            torch.tensor(draft_rows, device=device),
        )

    def _confidences(self, logits: Tensor | None, requests: Sequence[DraftRequest]) -> list[list[float]] | None:
        """Calibrated conditional chances [R][K]."""
        if logits is None:
            return None
        if self.config.calibrations:
            calibrations = [self.config.calibration_for(request.sampling.temperature) for request in requests]
            divisors = [c.divisors[: logits.shape[1]] for c in calibrations if c is not None]
            shifts = [c.shifts[: logits.shape[1]] for c in calibrations if c is not None]
            device = logits.device
            logits = logits / torch.tensor(divisors, device=device) + torch.tensor(shifts, device=device)
        chances: list[list[float]] = logits.sigmoid().tolist()
        return chances
