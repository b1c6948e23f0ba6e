"""Constrained requests on the scripted model, with drafters that want to break the grammar: `stop` is a valid document,
`length` the beginning of one, and no draft changes a text."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from driver import Run, drive, make_config, make_request
from structured import (
    EOS,
    SCHEMAS,
    VOCAB_SIZE,
    AdversarialDrafter,
    TalkativeLogits,
    is_valid,
    json_of,
    make_grammars,
    text_of,
    tokens_of,
)

from slipstream.request import ConstraintKind, FinishReason, OutputConstraint, Request
from slipstream.sampling.sampler import Sampler
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftBlock, Drafter, DraftRequest, SampledTokens, SampleRow
from slipstream.scheduler.scheduler import Scheduler
from slipstream.simulation.drafters import oracle, predict_with
from slipstream.simulation.scripted import Logits, LogitsFunction, ScriptedExecutor

GRAMMARS = make_grammars()
LOGITS = TalkativeLogits()
SAMPLER = Sampler(VOCAB_SIZE)
MAX_TOKENS = 40


def sample(logits: Logits, rows: Sequence[SampleRow]) -> SampledTokens:
    return SAMPLER.sample(torch.from_numpy(logits), list(rows))


def request(name: str, constraint: OutputConstraint, seed: int = 0, **options: Any) -> Request:
    return make_request(
        name,
        [1, 2, 3 + seed % 7],
        options.pop("max_tokens", MAX_TOKENS),
        eos=(EOS,),
        temperature=options.pop("temperature", 1.0),
        constraint=constraint,
        seed=seed,
        **options,
    )


def run(
    requests: Sequence[Request],
    drafter: Drafter | None = None,
    *,
    k: int = 5,
    lag: int = 0,
    num_kv_blocks: int = 512,
    logits: LogitsFunction = LOGITS,
    max_num_seqs: int = 16,
) -> tuple[Run, Scheduler]:
    config = make_config(
        max_num_batched_tokens=128,
        max_num_seqs=max_num_seqs,
        max_model_len=128,
        num_kv_blocks=num_kv_blocks,
        block_size=4,
        layout_name="ngram" if drafter is None else "dspark",
        num_speculative_tokens=0 if drafter is None else k,
    )
    executor = ScriptedExecutor(
        logits,
        num_kv_blocks=num_kv_blocks,
        block_size=4,
        drafter=drafter,
        sampler=sample,
        max_model_len=128,
        matchers=GRAMMARS,
    )
    scheduler = Scheduler(config)
    return drive(scheduler, executor, requests, lag=lag), scheduler


def adversary(logits: LogitsFunction = LOGITS) -> AdversarialDrafter:
    return AdversarialDrafter(predict_with(logits, sample, GRAMMARS))


def check(run: Run, schemas: dict[str, Any]) -> dict[FinishReason, int]:
    """Every answer is what its finish reason says; gives how many ended by which."""
    counts = {FinishReason.STOP: 0, FinishReason.LENGTH: 0}
    for name, schema in schemas.items():
        reason, tokens = run.finish_reasons[name], run.token_ids[name]
        counts[reason] += 1
        if reason is FinishReason.STOP:
            assert is_valid(schema, text_of(tokens)), f"{name}: {text_of(tokens)!r} is no {schema}"
        else:
            matcher = GRAMMARS.matcher(json_of(schema), frozenset())
            assert len(tokens) == MAX_TOKENS and matcher.num_legal([], tokens) == MAX_TOKENS, text_of(tokens)
    return counts


def answers(num_answers: int, lag: int, caplog: pytest.LogCaptureFixture) -> None:
    """So many answers of the twenty schemas, in batches; their texts without speculation are the same."""
    names = {f"a{index}": SCHEMAS[index % len(SCHEMAS)] for index in range(num_answers)}

    def requests() -> list[Request]:
        return [request(name, json_of(schema), seed=index) for index, (name, schema) in enumerate(names.items())]

    with caplog.at_level(logging.WARNING):
        speculated, scheduler = run(requests(), adversary(), lag=lag)
    counts = check(speculated, names)
    assert counts[FinishReason.STOP] > num_answers / 2 and counts[FinishReason.LENGTH] > 0, counts
    assert speculated.num_verified > num_answers and scheduler.statistics.num_accepted_tokens > num_answers
    assert not caplog.records
    assert run(requests())[0].token_ids == speculated.token_ids


@pytest.mark.parametrize("lag", [0, 1])
def test_S3_answers_with_adversarial_drafts_are_valid_or_the_beginning_of_valid_ones(
    lag: int, caplog: pytest.LogCaptureFixture
) -> None:
    answers(100, lag, caplog)


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_ten_thousand_answers_are_valid_or_the_beginning_of_valid_ones(
    lag: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        answers(1000, lag, caplog)


class IllegalAtSecond:
    """A good draft, then one that no JSON has there, then good ones again."""

    layout = LAYOUTS["dspark"]

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter."""
        predict = predict_with(LOGITS, sample, GRAMMARS)
        blocks = []
        for wanted in requests:
            first = predict(wanted, wanted.token_ids)
            blocks.append(DraftBlock([first, VOCAB_SIZE - 1, first, first][: wanted.num_draft_tokens]))
        return blocks

    def release(self, request_id: str) -> None:
        """See Drafter; nothing is kept."""


def test_S2_an_illegal_draft_is_refused_at_its_place_and_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    schema = SCHEMAS[0]
    wanted = [request(f"r{seed}", json_of(schema), seed) for seed in range(20)]
    with caplog.at_level(logging.WARNING):
        done, _ = run(wanted, IllegalAtSecond(), k=4)
    check(done, {one.request_id: schema for one in wanted})
    verified = {output.num_verified for output in done.outputs}
    assert verified == {0, 1} and not caplog.records
    assert all(output.num_accepted == output.num_verified for output in done.outputs)
    assert done.num_verified > 20


class PastTheEnd:
    """Drafts a text, EOS, and more of the text after it."""

    layout = LAYOUTS["dspark"]

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = [*tokens, EOS, *tokens, EOS]

    def propose(self, requests: Sequence[DraftRequest]) -> list[DraftBlock]:
        """See Drafter."""
        return [
            DraftBlock(self._tokens[len(one.token_ids) - one.num_prompt_tokens :][: one.num_draft_tokens])
            for one in requests
        ]

    def release(self, request_id: str) -> None:
        """See Drafter; nothing is kept."""


@pytest.mark.parametrize("lag", [0, 1])
def test_S4_a_thousand_answers_stop_where_their_grammar_ends(lag: int, caplog: pytest.LogCaptureFixture) -> None:
    text = '{"a":1}'
    constraint = OutputConstraint(ConstraintKind.GRAMMAR, f"start: {json.dumps(text)}")
    wanted = [request(f"r{seed}", constraint, seed) for seed in range(1000)]
    with caplog.at_level(logging.WARNING):
        done, _ = run(wanted, PastTheEnd(tokens_of(text)), k=7, lag=lag, num_kv_blocks=1024)
    assert set(done.finish_reasons.values()) == {FinishReason.STOP} and len(done.finish_reasons) == 1000
    assert {text_of(tokens) for tokens in done.token_ids.values()} == {text.encode()}
    assert all(tokens[-1] == EOS and tokens.count(EOS) == 1 for tokens in done.token_ids.values())
    assert done.num_verified > 0 and not caplog.records


def test_S6_one_constrained_request_among_plain_ones() -> None:
    constrained = request("json", json_of(SCHEMAS[3]), 5)
    plain = [make_request(f"p{n}", [n, 2, 3], 20, eos=(EOS,), temperature=1.0, seed=n) for n in range(7)]
    together, _ = run([*plain, constrained], adversary())
    assert len(together.finish_reasons) == 8
    check(together, {"json": SCHEMAS[3]})
    for one in (*plain, constrained):
        again = Request(one.request_id, [*one.token_ids[:3]], one.sampling, seed=one.seed, eos_token_ids=(EOS,))
        alone, _ = run([again])
        assert alone.token_ids[one.request_id] == together.token_ids[one.request_id]


@pytest.mark.parametrize("lag", [0, 1])
def test_preemption_in_mid_document_changes_no_text(lag: int) -> None:
    def requests() -> list[Request]:
        return [request(f"r{seed}", json_of(SCHEMAS[3 + seed % 3]), seed) for seed in range(12)]

    crowded, scheduler = run(requests(), adversary(), lag=lag, num_kv_blocks=33)
    assert scheduler.statistics.num_preemptions > 0
    assert crowded.token_ids == run(requests())[0].token_ids


def test_choices_of_one_request_differ_and_are_all_valid() -> None:
    schema = SCHEMAS[3]
    choices = [request(f"r#{index}", json_of(schema), seed=9, choice_index=index) for index in range(8)]
    done, _ = run(choices, adversary())
    check(done, {choice.request_id: schema for choice in choices})
    assert len({tuple(tokens) for tokens in done.token_ids.values()}) > 4


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_other_parameters_hold_inside_of_the_grammar(temperature: float) -> None:
    """Penalties, bias and bans move the choice between tokens that fit, never to one that does not."""
    schema = SCHEMAS[3]
    digits = tokens_of("0123456789")
    options: list[dict[str, Any]] = [
        {"logit_bias": {EOS: 100.0}, "presence_penalty": 2.0},
        {"allowed_token_ids": tuple(digits)},
        {"bad_words_token_ids": ((tokens_of('"')[0],),), "repetition_penalty": 2.0},
        {"top_k": 1, "min_p": 0.5},
        {"min_tokens": 30},
    ]
    for number, more in enumerate(options):
        names = [f"o{number}-{seed}" for seed in range(3)]
        make = [(name, seed) for seed, name in enumerate(names)]
        done, _ = run(
            [request(name, json_of(schema), seed, temperature=temperature, **more) for name, seed in make], adversary()
        )
        check(done, dict.fromkeys(names, schema))
        plain, _ = run([request(name, json_of(schema), seed, temperature=temperature, **more) for name, seed in make])
        assert plain.token_ids == done.token_ids


def test_stop_ids_end_only_where_the_document_is_complete() -> None:
    """The user's stop token would else cut the object at its first colon."""
    colon = tokens_of(":")[0]
    constraint = OutputConstraint(ConstraintKind.REGEX, "[a-z]{3}(:[a-z])*")
    wanted = [request(f"r{seed}", constraint, seed, stop_token_ids=(colon,)) for seed in range(20)]
    done, _ = run(wanted, adversary())
    by_user = 0
    for one in wanted:
        tokens = done.token_ids[one.request_id]
        assert done.finish_reasons[one.request_id] is FinishReason.STOP
        assert len(text_of(tokens).rstrip(b":")) == 3
        by_user += done.stop_reasons[one.request_id] == colon
    assert 0 < by_user < 20


def test_an_oracle_that_knows_the_grammar_is_always_right() -> None:
    drafter = oracle(LAYOUTS["dspark"], predict_with(LOGITS, sample, GRAMMARS), VOCAB_SIZE)
    done, _ = run([request(f"r{seed}", json_of(SCHEMAS[19]), seed) for seed in range(8)], drafter)
    assert all(output.num_accepted == output.num_verified for output in done.outputs if output.finish_reason is None)
    assert done.num_verified > 100


def test_greedy_sampling_of_the_simulation_heeds_constraints() -> None:
    executor = ScriptedExecutor(LOGITS, num_kv_blocks=64, block_size=4, max_model_len=128, matchers=GRAMMARS)
    wanted = request("g", json_of(SCHEMAS[2]), temperature=0.0)
    done = drive(Scheduler(make_config(max_model_len=128, block_size=4, num_kv_blocks=64)), executor, [wanted])
    assert done.finish_reasons["g"] is FinishReason.STOP and is_valid(SCHEMAS[2], text_of(done.token_ids["g"]))


def test_without_matchers_a_constraint_is_refused_and_not_ignored() -> None:
    executor = ScriptedExecutor(LOGITS, num_kv_blocks=64, block_size=4)
    with pytest.raises(ValueError, match="constrained"):
        drive(Scheduler(make_config()), executor, [request("r", json_of(SCHEMAS[0]))])
