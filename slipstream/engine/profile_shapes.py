"""Which passes are timed to measure a cost table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slipstream.config import SchedulerConfig

SHORT_CONTEXT = 64
LONG_CONTEXT = 1024
MAX_KV_TOKENS = 8192  # of one pass: KV memory is taken where it is written, and stays taken
MAX_EXACT_TILES = 8  # row tiles whose both edges are measured; past them the stair is a slope


@dataclass(frozen=True, slots=True)
class PassShape:
    """A pass to time: for each request some rows behind `context` tokens of KV. rows: per request, shape [R]."""

    rows: tuple[int, ...]
    context: int

    @property
    def num_requests(self) -> int:
        return len(self.rows)

    @property
    def num_rows(self) -> int:
        return sum(self.rows)

    @property
    def num_kv_tokens(self) -> int:
        """As in StepShape."""
        return self.num_rows + self.num_requests * self.context

    @property
    def num_pairs(self) -> int:
        """As in StepShape."""
        return sum(rows * (self.context + rows) for rows in self.rows)

    @property
    def size(self) -> float:
        """Rises with the time it is likely to take."""
        return 8.0 + self.num_rows + 2.0 * self.num_requests + self.num_kv_tokens / 64

    def num_blocks(self, block_size: int) -> int:
        """KV blocks that hold it."""
        return sum(-(-(self.context + rows) // block_size) for rows in self.rows)

    def __str__(self) -> str:
        each = f"{self.rows[0]}" if len(set(self.rows)) == 1 else f"{min(self.rows)}-{max(self.rows)}"
        return f"{self.num_requests} x {each} rows, context {self.context}"


def row_axis(most: int, tile_rows: int | None = None) -> tuple[int, ...]:
    """Row counts to measure, 1 … `most`. Where rows run in tiles the cost is a stair, so both edges of each step are
    there."""
    points = {1, most}
    if tile_rows is None:
        size = 2
        while size < most:
            points |= {size, size + size // 2} if size >= 16 else {size}
            size *= 2
    else:
        for tile in range(1, MAX_EXACT_TILES + 1):
            points |= {tile * tile_rows, tile * tile_rows + 1}
        size = 2 * MAX_EXACT_TILES * tile_rows
        while size < most:
            points.add(size)
            size *= 2
    return tuple(sorted(point for point in points if point <= most))


def pass_shapes(config: SchedulerConfig, axis: Sequence[int]) -> list[PassShape]:
    """Passes that tell apart what rows, requests, KV and attended pairs cost; only those that fit this KV pool."""
    seats, budget = config.max_num_seqs, config.max_num_batched_tokens
    each = 1 + config.num_speculative_tokens
    decodes = {(min(seats, budget), 1), (max(min(seats, budget // each), 1), each)}
    decodes |= {(max(count // 2, 1), rows) for count, rows in decodes}
    requests = {(count, rows) for count, rows in decodes if count * rows <= budget}
    shapes = [PassShape((rows,), 0) for rows in axis]
    for count, rows in sorted({*requests, (1, min(budget, max(budget // 4, 32)))}):
        most_tokens = min(
            config.num_kv_blocks // count * config.block_size, config.max_model_len - 1, MAX_KV_TOKENS // count
        )
        longest = min(LONG_CONTEXT, most_tokens - rows)
        shapes += [
            PassShape((rows,) * count, min(context, longest)) for context in (SHORT_CONTEXT, longest // 4, longest)
        ]
    limit = min(config.max_model_len - 1, config.num_kv_blocks * config.block_size)
    fitting = {
        shape
        for shape in shapes
        if shape.context >= 0
        and max(shape.rows) + shape.context <= limit
        and shape.num_blocks(config.block_size) <= config.num_kv_blocks
    }
    # The small ones first: they are there if time runs out.
    return sorted(fitting, key=lambda shape: (shape.size, shape.context, shape.rows))


def sampled_rows(config: SchedulerConfig) -> tuple[int, ...]:
    """Counts of sampled rows to measure, up to what a step of decodes holds."""
    most = min(config.max_num_batched_tokens, config.max_num_seqs * (1 + config.num_speculative_tokens))
    return tuple(sorted({1, *(4**power for power in range(1, 8) if 4**power < most), most}))
