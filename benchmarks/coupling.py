"""Acceptance at T = 1 against the coupling formula (docs/drafters.md), and against greedy drafts, in real decoding.

    python benchmarks/coupling.py DRAFTER --prompts FILE [--prompts FILE …] [--num-prompts 40] [--json FILE]

Every prompt is answered twice with the same seed: drafts drawn with the target's noise, and greedy drafts. The text is
the same. For each verified draft whose predecessors were accepted, the chance of a match follows from the target's
distribution p and the drafter's q: sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), or p(draft) for a greedy one. Their mean
stands beside the share that was accepted. The bar: at every position the two are no further apart than 0.02, and
coupled drafts are accepted more often than greedy ones. Positions with so few drafts that chance alone may miss it (a
standard error above a third of the bar) are shown and not judged. Exits with 1 where the bar is missed or nothing is
judged.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from slipstream.bench.dataset import BUILT_IN_PROMPTS
from slipstream.bench.in_process import BenchRequest
from slipstream.bench.model_systems import ModelFactory
from slipstream.config import EMBEDDED_MODEL, ModelSettings, SpeculativeSettings
from slipstream.execution.executor import TorchExecutor
from slipstream.request import SamplingParams
from slipstream.speculation.formats.checkpoint import open_drafter_checkpoint
from slipstream.training.coupling import PositionMatches, collect_matches
from slipstream.training.measured_decoding import Decoding, measuring_settings, slices
from slipstream.training.measuring_prompts import prompts_of
from slipstream.training.train_bar import StageBar

BAR = 0.02
MOST_ERROR = BAR / 3
METHODS = ("coupled", "greedy")


@dataclass(frozen=True, slots=True)
class Comparison:
    """By draft position, drafts of both kinds. lengths: tokens per decode step. same_texts: of the two ways."""

    coupled: list[PositionMatches]
    greedy: list[PositionMatches]
    lengths: dict[str, float | None]
    same_texts: float

    def rows(self) -> list[tuple[PositionMatches, PositionMatches | None]]:
        """By position; None where no greedy draft was verified after accepted ones."""
        missing = [None] * (len(self.coupled) - len(self.greedy))
        return list(zip(self.coupled, [*self.greedy, *missing], strict=False))

    def verdicts(self) -> list[bool | None]:
        """By position, whether the bar holds; None with too few drafts to tell."""
        found: list[bool | None] = []
        for ours, theirs in self.rows():
            is_above = theirs is None or theirs.standard_error > MOST_ERROR or ours.measured > theirs.measured
            is_met = abs(ours.difference) <= BAR and is_above
            found.append(is_met if ours.standard_error <= MOST_ERROR else None)
        return found

    def to_json(self) -> dict[str, Any]:
        """All figures."""
        return {
            "coupled": [position.to_json() for position in self.coupled],
            "greedy": [position.to_json() for position in self.greedy],
            "tokens_per_step": self.lengths,
            "same_texts": self.same_texts,
        }


def compare(
    factory: ModelFactory,
    model: ModelSettings,
    drafter: Path,
    requests: Sequence[BenchRequest],
    concurrency: int,
    bar: StageBar,
) -> Comparison:
    """Decode with both kinds of drafts."""
    kind = open_drafter_checkpoint(drafter).config.algorithm.value
    found: dict[str, list[PositionMatches]] = {}
    lengths: dict[str, float | None] = {}
    texts: list[list[list[int]]] = []
    for method in METHODS:
        speculative = SpeculativeSettings(
            method=kind, model=str(drafter), num_speculative_tokens=None, draft_sample_method=method
        )
        decoding = Decoding(factory, measuring_settings(model, speculative, concurrency, verify_all=True))
        executor = decoding.system.recorder.executor
        assert isinstance(executor, TorchExecutor)
        collector = collect_matches(executor, is_coupled=method == "coupled")
        texts.append([])
        for part in slices(requests, 2 * concurrency):
            texts[-1] += [record.token_ids for record in decoding.run(part, concurrency).requests]
            bar.report(f"{method.capitalize()} drafts", len(texts[-1]), len(requests))
        acceptance = decoding.acceptance()
        decoding.close()
        found[method] = collector.positions()
        lengths[method] = None if acceptance is None else acceptance.tokens_per_decode_step
    same = sum(a == b for a, b in zip(*texts, strict=True)) / len(requests)
    return Comparison(found["coupled"], found["greedy"], lengths, same)


def show(comparison: Comparison) -> None:
    """Print the table."""
    table = Table(title="Acceptance given that the drafts before were accepted", title_justify="left", box=None)
    for column in ("draft", "events", "formula", "measured", "difference", "± s.e.", "greedy: events", "p(draft)",
                   "measured", "bar"):  # fmt: skip
        table.add_column(column, justify="right")
    words = {True: "met", False: "MISSED", None: "too few"}
    for place, (row, verdict) in enumerate(zip(comparison.rows(), comparison.verdicts(), strict=True)):
        ours, theirs = row
        cells = [str(ours.num_events), f"{ours.expected:.4f}", f"{ours.measured:.4f}", f"{ours.difference:+.4f}"]
        cells.append(f"{ours.standard_error:.4f}")
        if theirs is None:
            cells += ["0", "", ""]
        else:
            cells += [str(theirs.num_events), f"{theirs.expected:.4f}", f"{theirs.measured:.4f}"]
        table.add_row(str(place + 1), *cells, words[verdict])
    console = Console(width=120)
    console.print(table)
    lengths = ", ".join(f"{name} {length:.3f}" for name, length in comparison.lengths.items() if length is not None)
    console.print(f"tokens per decode step: {lengths}; same texts: {comparison.same_texts:.1%}", highlight=False)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drafter", type=Path, help="a dspark or dflash drafter's folder")
    parser.add_argument("--model", default=EMBEDDED_MODEL, help="the target, as for serve")
    parser.add_argument("--prompts", action="append", default=[], metavar="FILE", help="JSONL (default: built-in)")
    parser.add_argument("--num-prompts", type=int, metavar="N", help="of each file, the first ones (default: all)")
    parser.add_argument("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: 256)")
    parser.add_argument("--temperature", type=float, default=1.0, metavar="T", help="(default: 1)")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="requests at a time (default: 4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first answer (default: 0)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--num-threads", type=int, metavar="N", help="CPU threads (default: all cores)")
    parser.add_argument("--device", default="auto", metavar="NAME")
    parser.add_argument("--dtype", default="auto", metavar="TYPE")
    parser.add_argument("--no-progress", action="store_true")
    args = parser.parse_args(arguments)
    if not args.temperature > 0.0:
        parser.error(f"--temperature must be above 0, got {args.temperature:g}: at 0 the formula says nothing")
    model = ModelSettings(model=args.model, device=args.device, dtype=args.dtype, num_threads=args.num_threads)
    factory = ModelFactory(model, progress=not args.no_progress)
    texts = [text for path in args.prompts for text in prompts_of(path)[: args.num_prompts]]
    texts = texts or list(BUILT_IN_PROMPTS)[: args.num_prompts]
    sampling = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature)
    requests = [BenchRequest(tuple(factory.encode_chat(text)), sampling, args.seed + i) for i, text in enumerate(texts)]
    with StageBar(is_shown=not args.no_progress) as bar:
        comparison = compare(factory, model, args.drafter, requests, args.concurrency, bar)
    print(f"{factory.description}; {len(texts)} prompts, T = {args.temperature:g}")
    show(comparison)
    verdicts = comparison.verdicts()
    if args.json is not None:
        settings = {"model": factory.description, "drafter": args.drafter.name, "temperature": args.temperature}
        settings |= {"num_prompts": len(texts), "max_tokens": args.max_tokens, "bar": BAR, "verdicts": verdicts}
        args.json.write_text(json.dumps(settings | comparison.to_json(), indent=2) + "\n", encoding="utf-8")
    if all(verdict is None for verdict in verdicts):
        print(f"no position has a standard error of {MOST_ERROR:.4f} or less: give more prompts, or longer answers")
        return 1
    return 1 if False in verdicts else 0


if __name__ == "__main__":
    raise SystemExit(main())
