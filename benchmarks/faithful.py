"""How far quantised arithmetic moves a model: perplexity and greedy texts beside the same weights dequantised.

    python benchmarks/faithful.py [MODEL] [--dtype float32|bfloat16] [--text FILE] [--prompts FILE.jsonl]

Perplexity: of 20 kB of English (Python's own reference, unless a file is given), in windows of 512 tokens, every token
but the first of a window judged. Greedy: the share of texts, and of tokens before the first difference, over 64 tokens.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch

from slipstream.attention.metadata import AttentionRequest, build_metadata
from slipstream.bench.dataset import BUILT_IN_PROMPTS
from slipstream.config import EMBEDDED_MODEL, ModelSettings
from slipstream.engine.llm import LLM
from slipstream.execution.build import build_decoder
from slipstream.models.loading import open_model
from slipstream.models.protocol import TransformerDecoder
from slipstream.request import SamplingParams
from slipstream.training.measuring_prompts import prompts_of

NUM_BYTES = 20_000
WINDOW = 512
NUM_TOKENS = 64


def reference_text() -> str:
    """English prose that every Python brings."""
    from pydoc_data.topics import topics

    return "\n".join(topics[name] for name in sorted(topics))


def perplexity(decoder: TransformerDecoder, token_ids: list[int]) -> float:
    total, count = 0.0, 0
    for start in range(0, len(token_ids), WINDOW):
        window = token_ids[start : start + WINDOW]
        if len(window) < 2:
            continue
        blocks = -(-len(window) // 16)
        cache = decoder.make_cache(blocks, 16)
        request = AttentionRequest(0, len(window), 0, list(range(blocks)))
        metadata = build_metadata([request], 16, cache.scratch_block, decoder.device)
        hidden = decoder.forward(torch.tensor(window), metadata, cache).hidden
        for first in range(0, len(window) - 1, 128):
            rows = hidden[first : min(first + 128, len(window) - 1)]
            logits = decoder.compute_logits(rows).float().log_softmax(-1)
            following = torch.tensor(window[first + 1 : first + 1 + len(rows)])
            total -= logits.gather(1, following[:, None]).double().sum().item()
            count += len(rows)
    return math.exp(total / count)


def greedy(settings: ModelSettings, prompts: list[str]) -> list[list[int]]:
    llm = LLM(
        settings.model, dtype=settings.dtype, quantization=settings.quantization, speculative_config=None,
        cost_table="none", max_num_seqs=16,
    )  # fmt: skip
    chats = [llm.encode_chat([{"role": "user", "content": prompt}]) for prompt in prompts]
    results = llm.generate(chats, SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True))
    return [result.choices[0].token_ids for result in results]


def shared(left: list[int], right: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(left, right, strict=True)) if a != b), len(left))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED_MODEL)
    parser.add_argument("--dtype", default="float32", help="of the dequantised weights")
    parser.add_argument("--text", help="a file; its first 20 kB are judged")
    parser.add_argument("--prompts", help="JSONL, as for slipstream evaluate; default: built-in prompts")
    parser.add_argument("--num-prompts", type=int, default=32)
    args = parser.parse_args()

    text = Path(args.text).read_text(encoding="utf-8") if args.text else reference_text()
    text = text.encode()[:NUM_BYTES].decode(errors="ignore")
    source = open_model(args.model, progress=False)
    token_ids = source.tokenizer.encode(text)
    ways = {
        "quantised": ModelSettings(model=args.model, device="cpu", quantization="int8"),
        f"dequantised, {args.dtype}": ModelSettings(
            model=args.model, device="cpu", quantization="none", dtype=args.dtype
        ),
    }
    with torch.inference_mode():
        found = {name: perplexity(build_decoder(source, settings), token_ids) for name, settings in ways.items()}
    for name, value in found.items():
        print(f"perplexity of {len(token_ids)} tokens, {name}: {value:.4f}")
    ours, theirs = found.values()
    print(f"quantised over dequantised: {ours / theirs:.4f}")

    prompts = list(BUILT_IN_PROMPTS) if args.prompts is None else prompts_of(args.prompts)
    texts = [greedy(settings, prompts[: args.num_prompts]) for settings in ways.values()]
    agreed = [shared(left, right) for left, right in zip(*texts, strict=True)]
    print(
        f"greedy, {len(agreed)} prompts x {NUM_TOKENS} tokens: {sum(n == NUM_TOKENS for n in agreed)} texts equal; "
        f"{sum(agreed) / len(agreed) / NUM_TOKENS:.1%} of tokens stand before the first difference"
    )


if __name__ == "__main__":
    main()
