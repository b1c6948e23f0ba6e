"""Forced acceptance gives the length it was asked for, and the same luck to everyone."""

from __future__ import annotations

import pytest

from slipstream.bench.forced import ForcedDrafter, KnownText, check_forced, conditional_acceptance
from slipstream.config import SettingError, SpeculativeSettings
from slipstream.request import SamplingParams
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftRequest

VOCAB = 97


def drafter(conditional: float, texts: dict[str, KnownText], seed: int = 0) -> ForcedDrafter:
    return ForcedDrafter(LAYOUTS["dspark"], texts, conditional, VOCAB, seed)


def follow(
    forced: ForcedDrafter, text: KnownText, num_draft_tokens: int, first: int = 1
) -> tuple[list[tuple[int, int]], set[int]]:
    """Decode one request by hand: (verified, accepted) of each step, and the output positions of refused drafts."""
    prompt, tokens = [1, 2, 3], list(text.token_ids)
    steps, refused, done = [], set(), first
    while done < len(tokens):
        wanted = min(num_draft_tokens, len(tokens) - done - 1)
        request = DraftRequest("r", prompt + tokens[:done], wanted, len(prompt), SamplingParams(), 0, 0)
        drafts = forced.propose([request])[0].token_ids if wanted else []
        assert len(drafts) == wanted
        accepted = 0
        while accepted < wanted and drafts[accepted] == tokens[done + accepted]:
            accepted += 1
        if accepted < wanted:
            refused.add(done + accepted)
        steps.append((wanted, accepted))
        done += accepted + 1
    assert done == len(tokens)
    return steps, refused


@pytest.mark.parametrize(
    ("length", "drafts", "expected"), [(2.6, 3, 0.717), (3.0, 4, 0.741), (1.0, 5, 0.0), (6.0, 5, 1.0)]
)
def test_conditional_acceptance(length: float, drafts: int, expected: float) -> None:
    p = conditional_acceptance(length, drafts)
    assert p == pytest.approx(expected, abs=5e-4)
    assert sum(p**j for j in range(1, drafts + 1)) == pytest.approx(length - 1)


@pytest.mark.parametrize(("length", "nearest"), [(0.5, "nearest is 1"), (6.5, "nearest is 6")])
def test_impossible_lengths_name_the_nearest(length: float, nearest: str) -> None:
    with pytest.raises(SettingError, match=nearest):
        conditional_acceptance(length, 5)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"acceptance_length": 3.0}, "layout"),
        ({"acceptance_length": 3.0, "layout": "nothing"}, "'nothing'"),
        ({"layout": "dspark"}, "acceptance_length"),
    ],
)
def test_incomplete_settings_are_refused_by_name(settings: dict[str, object], named: str) -> None:
    with pytest.raises(SettingError, match=named):
        check_forced(SpeculativeSettings(method="forced", **settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "drafts"), [(4.72, 5), (2.0, 3), (1.3, 8)])
def test_the_wanted_length_comes_out(length: float, drafts: int) -> None:
    text = KnownText(4, [i * i % VOCAB for i in range(40_000)])
    steps, _ = follow(drafter(conditional_acceptance(length, drafts), {"r": text}), text, drafts)
    assert 1 + sum(accepted for _, accepted in steps) / len(steps) == pytest.approx(length, rel=0.02)


def test_extremes_accept_everything_and_nothing() -> None:
    text = KnownText(0, list(range(61)))
    everything, _ = follow(drafter(1.0, {"r": text}), text, 5)
    nothing, _ = follow(drafter(0.0, {"r": text}), text, 5)
    assert all(accepted == verified for verified, accepted in everything)
    assert all(accepted == 0 for _, accepted in nothing) and len(nothing) == 60


def test_two_policies_meet_the_same_luck_and_fall_back_into_step() -> None:
    text = KnownText(7, [i * 7 % VOCAB for i in range(600)])
    forced = drafter(0.8, {"r": text})
    _, early = follow(forced, text, 5, first=1)
    _, late = follow(forced, text, 5, first=4)  # as after three steps without drafts
    both = early & late
    assert len(both) > 0.8 * len(early)
    meeting = min(both)
    assert {p for p in early if p >= meeting} == {p for p in late if p >= meeting}


def test_luck_follows_seed_and_request_not_the_step_it_was_asked_in() -> None:
    tokens = list(range(90))
    texts = {"a": KnownText(0, tokens), "b": KnownText(1, tokens)}

    def drafts(forced: ForcedDrafter, name: str, done: int) -> list[int]:
        request = DraftRequest(name, [5, *tokens[:done]], 40, 1, SamplingParams(), 0, 0)
        return forced.propose([request])[0].token_ids

    forced = drafter(0.5, texts)
    whole = drafts(forced, "a", 1)
    forced.release("a")  # preempted: asked again later
    assert drafts(forced, "a", 3)[:38] == whole[2:]
    assert drafts(forced, "b", 1) != whole
    assert drafts(drafter(0.5, texts, seed=1), "a", 1) != whole
    assert drafts(drafter(0.5, texts), "a", 1) == whole


def test_unknown_requests_and_ends_of_text_get_no_drafts() -> None:
    forced = drafter(1.0, {"r": KnownText(0, [4, 5])})
    ask = [DraftRequest(name, [1, 4, 5], 3, 1, SamplingParams(), 0, 0) for name in ("r", "stranger")]
    assert [block.token_ids for block in forced.propose(ask)] == [[], []]


def test_forced_drafts_are_certain_and_say_so() -> None:
    """Else they would count as faults under the textbook rule."""
    forced = drafter(1.0, {"r": KnownText(0, [4, 5, 6])})
    (block,) = forced.propose([DraftRequest("r", [1, 4], 3, 1, SamplingParams(), 0, 0)])
    assert (block.token_ids, block.distributions) == ([5, 6], ())
