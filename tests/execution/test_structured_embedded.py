"""Two hundred constrained answers of the embedded model, with drafts that want to break the grammar."""

from __future__ import annotations

import logging

import pytest
from driver import drive, make_config, make_request
from structured import SCHEMAS, AdversarialDrafter, is_valid, json_of

from slipstream.config import EMBEDDED_MODEL, ModelSettings
from slipstream.engine.build import grammar_compiler
from slipstream.engine.vocabulary import Vocabulary
from slipstream.execution.build import build_decoder
from slipstream.execution.executor import TorchExecutor
from slipstream.models.loading import open_model
from slipstream.request import FinishReason, Request
from slipstream.scheduler.protocol import Drafter, DraftRequest
from slipstream.scheduler.scheduler import Scheduler

NUM_ANSWERS = 200
MAX_TOKENS = 48
MAX_MODEL_LEN = 96
NUM_KV_BLOCKS = 256
BLOCK_SIZE = 16


@pytest.mark.slow
@pytest.mark.model
def test_two_hundred_answers_are_valid_or_the_beginning_of_valid_ones(caplog: pytest.LogCaptureFixture) -> None:
    source = open_model(EMBEDDED_MODEL, progress=False)
    settings = ModelSettings(device="cpu", batch_invariant=True, max_model_len=MAX_MODEL_LEN)
    decoder = build_decoder(source, settings)
    vocabulary = Vocabulary.from_tokenizer(source.tokenizer)
    vocab_size, eos = source.config.vocab_size, source.config.eos_token_ids[0]
    grammars = grammar_compiler(source.tokenizer, vocabulary, source.config.eos_token_ids, vocab_size)
    schemas = {f"a{index}": SCHEMAS[index % len(SCHEMAS)] for index in range(NUM_ANSWERS)}

    def requests() -> list[Request]:
        return [
            make_request(
                name,
                source.tokenizer.encode(f"Answer {index % 9} as JSON, and nothing else:\n"),
                MAX_TOKENS,
                eos=source.config.eos_token_ids,
                temperature=0.8,
                seed=index,
                constraint=json_of(schema),
            )
            for index, (name, schema) in enumerate(schemas.items())
        ]

    def run(drafter: Drafter | None, num_drafts: int):
        executor = TorchExecutor(
            decoder, num_kv_blocks=NUM_KV_BLOCKS, block_size=BLOCK_SIZE, drafter=drafter, matchers=grammars
        )
        config = make_config(
            max_num_batched_tokens=128,
            max_num_seqs=16,
            max_model_len=MAX_MODEL_LEN,
            num_kv_blocks=NUM_KV_BLOCKS,
            block_size=BLOCK_SIZE,
            layout_name="dspark" if num_drafts else "ngram",
            num_speculative_tokens=num_drafts,
        )
        return drive(Scheduler(config), executor, requests(), lag=int(drafter is not None))

    with caplog.at_level(logging.WARNING):
        plain = run(None, 0)

        def said(request: DraftRequest, prefix: list[int]) -> int:
            text, position = plain.token_ids[request.request_id], len(prefix) - request.num_prompt_tokens
            return text[position] if position < len(text) else eos

        done = run(AdversarialDrafter(said, vocab_size, eos), 5)
    assert not caplog.records and done.num_verified > NUM_ANSWERS
    assert done.token_ids == plain.token_ids
    num_stopped = 0
    for name, schema in schemas.items():
        tokens = done.token_ids[name]
        if done.finish_reasons[name] is FinishReason.STOP:
            num_stopped += 1
            assert is_valid(schema, b"".join(map(vocabulary.text_bytes_of, tokens))), name
        else:
            assert done.finish_reasons[name] is FinishReason.LENGTH
            matcher = grammars.matcher(json_of(schema), frozenset())
            assert len(tokens) == MAX_TOKENS and matcher.num_legal([], tokens) == MAX_TOKENS, name
    assert num_stopped > NUM_ANSWERS / 4
