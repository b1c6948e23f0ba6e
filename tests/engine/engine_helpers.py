"""A tiny byte-level tokenizer and engines on the scripted target, for tests of fronts and server."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tokenizers
import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from slipstream.config import SchedulerConfig
from slipstream.engine.build import grammar_compiler, submission_checker
from slipstream.engine.engine import Engine
from slipstream.engine.stop_strings import TextStopChecker
from slipstream.engine.vocabulary import Vocabulary
from slipstream.models.chat_template import ChatTemplate
from slipstream.models.tokenizer import Tokenizer, byte_level_alphabet
from slipstream.sampling.logprobs import row_logprobs
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.layouts import LAYOUTS, DraftLayout
from slipstream.scheduler.protocol import Drafter, Executor, SampledTokens, SampleRow
from slipstream.scheduler.scheduler import Scheduler
from slipstream.scheduler.stopping import TokenStopChecker
from slipstream.simulation.drafters import Predict, oracle, predict_with
from slipstream.simulation.scripted import HashedLogits, Logits, ScriptedExecutor

MERGES = [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), ("Ġ", "w"), ("Ġw", "o")]
CHAT = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def make_tokenizer() -> Tokenizer:
    """256 bytes, a few merges, two special tokens; <|end|> is EOS."""
    vocabulary = dict(byte_level_alphabet())
    for left, right in MERGES:
        vocabulary[left + right] = len(vocabulary)
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=MERGES))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|start|>", special=True), AddedToken("<|end|>", special=True)])
    return Tokenizer(backend, eos_token_ids=[backend.token_to_id("<|end|>")])


TOKENIZER = make_tokenizer()
VOCABULARY = Vocabulary.from_tokenizer(TOKENIZER)
VOCAB_SIZE = TOKENIZER.vocab_size
EOS = TOKENIZER.eos_token_ids[0]
TEMPLATE = ChatTemplate(CHAT)
GRAMMARS = grammar_compiler(TOKENIZER, VOCABULARY, (EOS,), VOCAB_SIZE)


def byte_tokens(text: str) -> list[int]:
    """A text as one token per byte, so that every character is cut as often as possible."""
    return list(text.encode())


class ScriptedText:
    """Logits that say a text after a prompt of known length, then EOS for ever."""

    def __init__(self, num_prompt_tokens: int, token_ids: Sequence[int]) -> None:
        self._start = num_prompt_tokens
        self._tokens = list(token_ids)

    def __call__(self, prefix: Sequence[int]) -> Logits:
        index = len(prefix) - self._start
        token = self._tokens[index] if index < len(self._tokens) else EOS
        logits = np.full(VOCAB_SIZE, -5.0)
        logits[(token + 1) % VOCAB_SIZE] = 3.0
        logits[token] = 5.0
        return logits


def real_sampler(logits: Logits, rows: Sequence[SampleRow]) -> SampledTokens:
    """The product's own sampler on scripted logits."""
    return Sampler(VOCAB_SIZE).sample(torch.from_numpy(logits), list(rows))


def printable_logits(seed: int = 0) -> Callable[[Sequence[int]], Logits]:
    """Random-looking logits that only ever say printable ASCII, never EOS."""
    hashed = HashedLogits(VOCAB_SIZE, seed)

    def logits(prefix: Sequence[int]) -> Logits:
        row = hashed(prefix).copy()
        row[:32] -= 1000.0
        row[127:] -= 1000.0
        return row

    return logits


def make_config(**values: Any) -> SchedulerConfig:
    """Small defaults; any field by name."""
    chosen: dict[str, Any] = {
        "max_num_batched_tokens": 64,
        "max_num_seqs": 8,
        "max_model_len": 256,
        "block_size": 16,
        "num_kv_blocks": 256,
        "layout_name": "ngram",
        "num_speculative_tokens": 0,
        "min_prefill_tokens": 8,
        **values,
    }
    layout = LAYOUTS[chosen["layout_name"]]
    chosen.setdefault(
        "draft_capacity",
        layout.default_draft_capacity(
            chosen["max_num_batched_tokens"], chosen["max_num_seqs"], chosen["num_speculative_tokens"]
        ),
    )
    return SchedulerConfig(**chosen)


def make_engine(
    logits: Callable[[Sequence[int]], Logits] | None = None,
    *,
    commit_lag: int = 0,
    wrap: Callable[[Executor], Executor] | None = None,
    clock: Callable[[], float] = time.monotonic,
    make_drafter: Callable[[DraftLayout, Predict, int], Drafter] = oracle,
    **config_values: Any,
) -> Engine:
    """An engine on a scripted target that samples as the product does; `make_drafter`'s drafts when K > 0."""
    config = make_config(**config_values)
    chosen = logits or printable_logits()
    drafter: Drafter | None = None
    if config.num_speculative_tokens:
        predict = predict_with(chosen, real_sampler, GRAMMARS)
        drafter = make_drafter(LAYOUTS[config.layout_name], predict, VOCAB_SIZE)
    executor: Executor = ScriptedExecutor(
        chosen,
        num_kv_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        drafter=drafter,
        sampler=real_sampler,
        report=lambda row, token_id, count: row_logprobs(torch.from_numpy(row), token_id, count),
        max_model_len=config.max_model_len,
        matchers=GRAMMARS,
    )
    stops = TextStopChecker(TokenStopChecker(), VOCABULARY)
    return Engine(
        Scheduler(config, stop_checker=stops),
        wrap(executor) if wrap is not None else executor,
        clock=clock,
        eos_token_ids=(EOS,),
        commit_lag=commit_lag,
        check_sampling=submission_checker(VOCAB_SIZE, GRAMMARS),
        forget=stops.forget,
    )
