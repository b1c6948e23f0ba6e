"""From a step's rows to the tensors that the model takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slipstream.attention.metadata import AttentionMetadata, AttentionRequest, build_metadata
from slipstream.scheduler.executor_state import RequestRows
from slipstream.scheduler.protocol import SampleRow


@dataclass(frozen=True, slots=True)
class InputBatch:
    """One step's input, N rows of which M are sampled.

    Attributes:
        token_ids: int64 [N].
        sampled_rows: indices of the sampled rows, int64 [M].
        sample_rows: what to sample there, [M].
    """

    token_ids: Tensor
    metadata: AttentionMetadata
    sampled_rows: Tensor
    sample_rows: list[SampleRow]


def build_input_batch(
    batch: Sequence[RequestRows], block_size: int, scratch_block: int, device: torch.device
) -> InputBatch:
    """Flatten the rows of all requests, in plan order."""
    token_ids: list[int] = []
    sampled: list[int] = []
    sample_rows: list[SampleRow] = []
    requests: list[AttentionRequest] = []
    for rows in batch:
        requests.append(
            AttentionRequest(len(token_ids), len(rows.token_ids), rows.first_position, rows.state.block_ids)
        )
        token_ids.extend(rows.token_ids)
        sampled.extend(range(len(token_ids) - rows.num_sampled, len(token_ids)))
        sample_rows.extend(rows.sample_rows())
    return InputBatch(
        torch.tensor(token_ids, dtype=torch.int64, device=device),
        build_metadata(requests, block_size, scratch_block, device),
        torch.tensor(sampled, dtype=torch.int64, device=device),
        sample_rows,
    )
