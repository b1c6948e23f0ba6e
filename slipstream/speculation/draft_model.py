"""A smaller model of the same vocabulary drafts token by token.

Its KV lies under the target's block ids and is written in every step of the target, for the same rows. So it is
complete wherever the target's is (prefix hits, chunks, preemption), and nothing has to be caught up. The price is one
pass more than a drafter needs that takes the anchor and the step's rows together.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from slipstream.attention.metadata import AttentionRequest, build_metadata
from slipstream.models.protocol import TransformerDecoder
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftBlock, DraftDistribution, DraftRequest
from slipstream.speculation.draft_sampling import DraftSampler
from slipstream.speculation.serving import ServingTarget, TargetStates


class DraftModelDrafter:
    """A Drafter and TargetObserver around a second decoder. It remembers nothing of any request but its KV.

    Args:
        decoder: with the target's kernels, attention, type and positions.
        sample_method: see DraftSampler.
    """

    def __init__(self, decoder: TransformerDecoder, target: ServingTarget, *, sample_method: str = "coupled") -> None:
        self.layout = LAYOUTS["draft_model"]
        self.tapped_layers: Sequence[int] = ()
        self.decoder = decoder
        self.cache = decoder.make_cache(target.num_kv_blocks, target.block_size)
        # Either model may have padding rows beyond the tokens they share.
        self._num_columns = min(decoder.config.vocab_size, target.decoder.config.vocab_size)
        ids = torch.arange(self._num_columns, device=decoder.device)
        self._sampler = DraftSampler(ids, self._num_columns, sample_method)

    def observe(self, states: TargetStates) -> None:
        """See TargetObserver: the target's rows through the drafter too, for their KV."""
        self.decoder.forward(states.token_ids, states.metadata, self.cache)

    @torch.inference_mode()
    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter: one row per request and pass, the anchor first, then each draft but the last."""
        drafts: list[list[int]] = [[] for _ in requests]
        distributions: list[list[DraftDistribution]] = [[] for _ in requests]
        for k in range(max(request.num_draft_tokens for request in requests)):
            drafting = [i for i, request in enumerate(requests) if request.num_draft_tokens > k]
            rows = [requests[i] for i in drafting]
            inputs = [drafts[i][-1] if k else requests[i].token_ids[-1] for i in drafting]
            placed = [
                AttentionRequest(row, 1, len(request.token_ids) - 1 + k, request.block_ids)
                for row, request in enumerate(rows)
            ]
            cache = self.cache
            metadata = build_metadata(placed, cache.block_size, cache.scratch_block, self.decoder.device)
            output = self.decoder.forward(torch.tensor(inputs, device=self.decoder.device), metadata, cache)
            logits = self.decoder.compute_logits(output.hidden)[:, : self._num_columns].float()
            chooser = self._sampler.chooser(rows)
            for row, (i, token) in enumerate(zip(drafting, chooser(k, logits).tolist(), strict=True)):
                drafts[i].append(token)
                distributions[i] += chooser.distributions(row)
        return [
            DraftBlock(block, distributions=drawn_from) for block, drawn_from in zip(drafts, distributions, strict=True)
        ]

    def release(self, request_id: str) -> None:
        """See Drafter; nothing is kept."""
