"""The same text, id for id: the native kernels in any batch, with any K, chunk, threads, instructions and temperature.

    python benchmarks/same_text.py [--prompts FILE.jsonl] [--num-prompts 100] [--tokens 128] [--plain-tokens 16]

Each row is one run of all prompts, compared with the first: one request at a time, no drafts, prompts whole, one
thread, the fastest instructions. Every K from 0 to 8 stands with every concurrency; the rest changes from row to row.
Drafts up to K = 5 come from what ships (n-grams, then DSpark), above from n-grams. Plain instructions are slow, so they
run over fewer prompts and tokens. Ends with status 1 where an id differs.
"""

from __future__ import annotations

import argparse
import itertools
import time
from dataclasses import dataclass

import torch

from slipstream.bench.dataset import BUILT_IN_PROMPTS
from slipstream.config import EMBEDDED_MODEL, SchedulerConfig, SpeculativeSettings
from slipstream.execution.build import executor_around
from slipstream.kernels.native.library import InstructionPath, Workers, open_library
from slipstream.models.loading import ModelSource, open_model
from slipstream.models.native_decoder import NativeDecoder
from slipstream.request import Request, SamplingParams
from slipstream.scheduler.scheduler import Scheduler
from slipstream.speculation.registry import open_drafter
from slipstream.speculation.serving import DrafterSource
from slipstream.speculation.shipped import shipped_drafters
from slipstream.training.measuring_prompts import prompts_of

BLOCK_SIZE = 16
PLAIN_PROMPTS = 8


@dataclass(frozen=True)
class Row:
    temperature: float
    concurrency: int = 1
    num_drafts: int = 0
    chunk: int = 0
    num_threads: int = 1
    path: InstructionPath | None = None  # None: the fastest


class Texts:
    """The model, and the texts of each row."""

    def __init__(self, prompts: list[list[int]], num_tokens: int, source: ModelSource) -> None:
        self.prompts, self.num_tokens, self.source = prompts, num_tokens, source
        library = open_library()
        if library is None:
            raise SystemExit("the native library was not built; slipstream doctor says more")
        self.library = library
        self.max_model_len = max(map(len, prompts)) + num_tokens
        self._decoders: dict[tuple[int, InstructionPath], NativeDecoder] = {}

    def decoder(self, row: Row) -> NativeDecoder:
        path = self.library.best_path if row.path is None else row.path
        key = (row.num_threads, path)
        if key not in self._decoders:
            workers = Workers(self.library, row.num_threads)
            self._decoders[key] = NativeDecoder(
                self.source.config, self.source.load_stored(), workers=workers, path=path,
                num_positions=self.max_model_len, source_fingerprint=self.source.fingerprint(),
            )  # fmt: skip
        return self._decoders[key]

    def drafter(self, num_drafts: int) -> DrafterSource | None:
        if not num_drafts:
            return None
        if num_drafts > 5:
            return open_drafter(SpeculativeSettings(method="ngram", num_speculative_tokens=num_drafts))
        [folder] = [drafter.folder for drafter in shipped_drafters() if drafter.target.name == self.source.name]
        chain = SpeculativeSettings(
            method="chain", drafters=("ngram", "dspark"), model=str(folder), num_speculative_tokens=num_drafts
        )
        return open_drafter(chain)

    def run(self, row: Row) -> tuple[list[list[int]], int, float]:
        """Ids of each prompt's text, drafts that were verified, seconds."""
        drafter = self.drafter(row.num_drafts)
        num_blocks = row.concurrency * -(-(self.max_model_len + 9) // BLOCK_SIZE)
        layout = None if drafter is None else drafter.layout
        executor = executor_around(self.decoder(row), num_blocks, BLOCK_SIZE, drafter)
        config = SchedulerConfig(
            max_num_batched_tokens=max(256, row.concurrency),
            max_num_seqs=row.concurrency,
            max_model_len=self.max_model_len,
            block_size=BLOCK_SIZE,
            num_kv_blocks=num_blocks,
            layout_name="ngram" if layout is None else layout.method,
            num_speculative_tokens=row.num_drafts,
            draft_capacity=0 if layout is None else layout.default_draft_capacity(
                max(256, row.concurrency), row.concurrency, row.num_drafts
            ),
            long_prefill_token_threshold=row.chunk,
            verification="fixed",
        )  # fmt: skip
        scheduler = Scheduler(config)
        sampling = SamplingParams(temperature=row.temperature, max_tokens=self.num_tokens, ignore_eos=True)
        for i, prompt in enumerate(self.prompts):
            scheduler.add_request(Request(str(i), prompt, sampling, seed=i))
        texts: list[list[int]] = [[] for _ in self.prompts]
        begin = time.perf_counter()
        while scheduler.has_work():
            plan = scheduler.schedule(time.perf_counter())
            for output in scheduler.commit(plan, executor.execute(plan)):
                texts[int(output.request_id)] += output.new_token_ids
        return texts, scheduler.statistics.num_verified_tokens, time.perf_counter() - begin


def rows_of(temperature_of: itertools.cycle[float]) -> list[Row]:
    chunks, threads = itertools.cycle((0, 7, 64, 0, 33)), itertools.cycle((2, 1, 2))
    return [
        Row(next(temperature_of), concurrency, num_drafts, next(chunks), next(threads))
        for num_drafts in range(9)
        for concurrency in (64, 8, 1)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", help="JSONL, as for slipstream evaluate; default: built-in prompts")
    parser.add_argument("--num-prompts", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--plain-tokens", type=int, default=16)
    parser.add_argument("--slow-prompts", type=int, default=100, help="prompts of rows with one request at a time")
    args = parser.parse_args()
    torch.set_num_threads(1)
    source = open_model(EMBEDDED_MODEL, progress=False)
    given = list(BUILT_IN_PROMPTS) if args.prompts is None else prompts_of(args.prompts)
    assert source.chat_template is not None
    chats = [source.chat_template.render([{"role": "user", "content": text}]) for text in given[: args.num_prompts]]
    prompts = [source.tokenizer.encode(chat, add_special_tokens=False) for chat in chats]
    texts = Texts(prompts, args.tokens, source)
    reference = {temperature: texts.run(Row(temperature))[0] for temperature in (0.0, 1.0)}
    failed = 0

    def compare(row: Row, runner: Texts, num_tokens: int) -> None:
        nonlocal failed
        found, num_verified, seconds = runner.run(row)
        expected = [text[:num_tokens] for text in reference[row.temperature][: len(found)]]
        num_ids = sum(map(len, found))
        differing = sum(
            a != b for left, right in zip(found, expected, strict=True) for a, b in zip(left, right, strict=True)
        )
        failed += differing
        print(f"{row}: {num_ids} ids, {differing} differ; {num_verified} drafts verified; {seconds:.0f} s", flush=True)

    for row in rows_of(itertools.cycle((0.0, 1.0))):
        runner = texts
        if row.concurrency == 1 and args.slow_prompts < len(prompts):
            runner = Texts(prompts[: args.slow_prompts], args.tokens, source)
            runner._decoders, runner.max_model_len = texts._decoders, texts.max_model_len
        compare(row, runner, args.tokens)
    few = Texts(prompts[:PLAIN_PROMPTS], args.plain_tokens, source)
    for path in InstructionPath:
        if path <= texts.library.best_path:
            for temperature, concurrency, num_drafts in ((0.0, 8, 5), (1.0, 3, 2)):
                compare(Row(temperature, concurrency, num_drafts, 7, 2, path), few, args.plain_tokens)
    print("0 ids differ" if not failed else f"{failed} ids differ")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
