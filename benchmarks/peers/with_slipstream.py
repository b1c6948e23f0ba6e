"""Slipstream: its engine in this process, set up as `slipstream serve` does, with the prefix cache emptied before each
job.

    python -m peers.with_slipstream [--set NAME=VALUE …]     (a setting by name; values in JSON, or else text)
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from peers.jobs import Job, Setup
from peers.measuring import closed_loop, serve, versions_of
from slipstream.bench.acceptance import acceptance_between
from slipstream.config import PROFILE_COSTS
from slipstream.engine.build import build_engine
from slipstream.engine.flat_settings import settings_from_flat
from slipstream.engine.messages import Submission
from slipstream.execution.build import model_kv_bytes_per_token
from slipstream.execution.device import resolve_device, resolve_dtype
from slipstream.request import FinishReason, SamplingParams

BLOCK_SIZE = 16
SPARE_TOKENS = 2 * BLOCK_SIZE  # of a request beyond its text: blocks that are not full, and rows of drafts


class SlipstreamEngine:
    """See Engine and SteppedEngine."""

    def __init__(self, setup: Setup, given: Mapping[str, Any]) -> None:
        """`given`: settings by flat name, over those of `slipstream serve`."""
        served = {
            "model": setup.model,
            "num_threads": setup.num_threads,
            "max_num_seqs": setup.max_num_seqs,
            "max_model_len": setup.max_model_len,
            "num_kv_blocks": -(-(setup.kv_tokens + setup.max_num_seqs * SPARE_TOKENS) // BLOCK_SIZE),
            "block_size": BLOCK_SIZE,
            "cost_table": PROFILE_COSTS,
        }
        built = build_engine(settings_from_flat(served | given))
        self.engine = built.engine
        model, config = built.resolution.settings.model, built.resolution.scheduler
        dtype = resolve_dtype(model.dtype, resolve_device(model.device))
        per_token = model_kv_bytes_per_token(built.source.config, dtype)
        self.kv_bytes: int | None = config.num_kv_blocks * config.block_size * per_token
        self.versions = versions_of("slipstream", "torch")
        self.details = {row.name: row.value for row in built.resolution.report}
        self._number = 0
        self._indices: dict[str, int] = {}
        self._before = copy.deepcopy(self.engine.scheduler.statistics)

    def prepare(self, job: Job) -> None:
        """Empties the prefix cache."""
        self.engine.scheduler.forget_cached()
        self._before = copy.deepcopy(self.engine.scheduler.statistics)

    def answer(self, job: Job) -> list[list[int]]:
        """See Engine."""
        return closed_loop(self, job)

    def add(self, index: int, prompt: Sequence[int], job: Job) -> None:
        """See SteppedEngine."""
        self._number += 1
        sampling = SamplingParams(temperature=job.temperature, max_tokens=job.max_new_tokens, ignore_eos=job.ignore_eos)
        submission = Submission(str(self._number), tuple(prompt), sampling, index, arrival_time=self.engine.clock())
        self._indices[submission.choice_id(0)] = index
        self.engine.add_request(submission)

    def step(self) -> Iterator[tuple[int, Sequence[int], bool]]:
        """See SteppedEngine."""
        for output in self.engine.step().outputs:
            if output.finish_reason is FinishReason.ERROR:
                raise RuntimeError(f"error: {output.error}")
            has_ended = output.finish_reason is not None
            index = self._indices.pop(output.request_id) if has_ended else self._indices[output.request_id]
            yield index, output.new_token_ids, has_ended

    def acceptance_length(self) -> float | None:
        """See Engine."""
        counted = acceptance_between(self._before, self.engine.scheduler.statistics)
        return None if counted is None else counted.tokens_per_decode_step


def setting(text: str) -> tuple[str, Any]:
    """`NAME=VALUE`."""
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--set", action="append", default=[], type=setting, metavar="NAME=VALUE", dest="settings")
    args = parser.parse_args()
    serve(partial(SlipstreamEngine, given=dict(args.settings)))


if __name__ == "__main__":
    main()
