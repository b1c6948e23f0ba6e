"""Prompt lookup: what it proposes, what it costs, and that requests share nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipstream.config import SettingError, SpeculativeSettings
from slipstream.request import SamplingParams
from slipstream.scheduler.protocol import DraftRequest
from slipstream.speculation.ngram import NgramDrafter, NgramIndex
from slipstream.speculation.reference_text import ReferenceTextDrafter
from slipstream.speculation.registry import open_drafter


def draft_request(token_ids: list[int], k: int = 4, name: str = "r", num_prompt: int = 0) -> DraftRequest:
    return DraftRequest(name, token_ids, k, num_prompt, SamplingParams(), 0, 0)


def drafts(drafter: NgramDrafter, token_ids: list[int], k: int = 4, name: str = "r") -> list[int]:
    return drafter.propose([draft_request(token_ids, k, name)])[0].token_ids


def test_the_longest_match_wins_over_a_later_shorter_one() -> None:
    text = [1, 2, 3, 50, 51, 52, 53, 9, 3, 60, 61, 1, 2, 3]
    assert drafts(NgramDrafter(1, 3), text) == [50, 51, 52, 53]
    assert drafts(NgramDrafter(1, 1), text) == [60, 61, 1, 2]


def test_the_latest_of_equal_matches_wins() -> None:
    assert drafts(NgramDrafter(2, 2), [1, 2, 30, 1, 2, 40, 9, 9, 1, 2]) == [40, 9, 9, 1]


def test_no_match_no_drafts() -> None:
    assert drafts(NgramDrafter(2, 4), [1, 2, 3, 4]) == []
    assert drafts(NgramDrafter(2, 4), [1]) == []
    assert drafts(NgramDrafter(1, 4), []) == []


def test_a_match_below_the_shortest_length_does_not_count() -> None:
    assert drafts(NgramDrafter(2, 4), [5, 6, 7, 5]) == []


def test_a_repeating_end_goes_on_repeating() -> None:
    assert drafts(NgramDrafter(1, 3), [9, 4, 5, 4, 5], k=5) == [4, 5, 4, 5, 4]
    assert drafts(NgramDrafter(1, 3), [7, 7], k=3) == [7, 7, 7]


def longest_match(text: list[int], shortest: int, longest: int) -> int | None:
    """By the definition, looking at everything."""
    for length in range(min(longest, len(text)), shortest - 1, -1):
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == text[len(text) - length :]:
                return start + length
    return None


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.integers(1, 3), st.integers(0, 2), st.randoms())
def test_the_growing_index_equals_a_search_from_scratch(
    text: list[int], shortest: int, more: int, random: object
) -> None:
    index = NgramIndex(shortest, shortest + more)
    length = 0
    while length < len(text):
        length = min(length + random.randint(1, 6), len(text))  # type: ignore[attr-defined]
        index.extend(text[:length])
        assert index.continuation(text[:length]) == longest_match(text[:length], shortest, shortest + more)


class CountedList(list[int]):
    """Counts how many of its tokens are looked at."""

    num_read = 0

    def __getitem__(self, key: object) -> object:  # type: ignore[override]
        found = super().__getitem__(key)  # type: ignore[index]
        CountedList.num_read += len(found) if isinstance(found, list) else 1
        return found


def test_a_step_costs_what_is_new_not_what_is_long() -> None:
    text = CountedList(i % 997 for i in range(20000))
    drafter = NgramDrafter(2, 4)
    drafter.propose([draft_request(text)])
    CountedList.num_read = 0
    for _ in range(10):
        text.append(5)
        drafter.propose([draft_request(text)])
    assert CountedList.num_read < 10 * 40


def test_no_table_is_kept_from_another_request() -> None:
    """Case D19: after a long request, a request under the same id drafts from its own tokens alone."""
    first = [i * 7 % 101 for i in range(500)]
    second = [200 + i % 6 for i in range(20)] + [first[3], first[4]] * 3 + [200 + i % 6 for i in range(34)]

    def drafts_of_second(drafter: NgramDrafter) -> list[list[int]]:
        return [drafts(drafter, second[:n], k=5, name="slot") for n in range(1, len(second) + 1)]

    used = NgramDrafter(2, 4)
    for n in range(1, len(first) + 1):
        drafts(used, first[:n], name="slot")
    used.release("slot")
    fresh = drafts_of_second(NgramDrafter(2, 4))
    assert drafts_of_second(used) == fresh
    assert any(fresh)
    assert all(set(block) <= set(second) for block in fresh)
    # Even without a release (the id came back): the text is shorter than what was indexed.
    careless = NgramDrafter(2, 4)
    drafts(careless, first, name="slot")
    assert drafts_of_second(careless) == fresh


def test_requests_side_by_side_share_nothing_and_release_forgets() -> None:
    drafter = NgramDrafter(2, 2)
    blocks = drafter.propose([draft_request([1, 2, 3, 1, 2], name="x"), draft_request([8, 1, 2], name="y")])
    assert [block.token_ids for block in blocks] == [[3, 1, 2, 3], []]
    drafter.release("x")
    drafter.release("never seen")
    assert list(drafter._indexes) == ["y"]


def test_registry() -> None:
    assert open_drafter(None) is None
    source = open_drafter(SpeculativeSettings(method="ngram", prompt_lookup_min=1, prompt_lookup_max=1))
    assert source is not None
    drafter = source.build(None).drafter
    assert drafter is not None and drafter.layout.method == "ngram"
    assert drafter.propose([draft_request([4, 5, 4])])[0].token_ids == [5, 4, 5, 4]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (SpeculativeSettings(method="ngram", prompt_lookup_min=0), ["prompt_lookup_min", "0", "1"]),
        (SpeculativeSettings(method="ngram", prompt_lookup_min=5), ["prompt_lookup_max", "4", "5"]),
        (SpeculativeSettings(method="forced", layout="dspark", acceptance_length=4.0), ["forced", "offline"]),
        (SpeculativeSettings(method="medusa"), ["medusa", "ngram"]),
    ],
)
def test_the_registry_refuses_by_name(settings: SpeculativeSettings, words: list[str]) -> None:
    with pytest.raises(SettingError) as refused:
        open_drafter(settings)
    assert all(word in str(refused.value) for word in words)


def test_reference_text_is_spoilt_by_rule() -> None:
    texts = {"r": [10, 11, 12, 13, 14], "r2": [20, 21]}
    layout = NgramDrafter(1, 1).layout

    def block(drafter: ReferenceTextDrafter, name: str, num_output: int) -> list[int]:
        asked = draft_request([0, 0, *range(num_output)], 3, name, num_prompt=2)
        return drafter.propose([asked])[0].token_ids

    right = ReferenceTextDrafter(layout, texts, 100)
    asked = DraftRequest("r", [1, 2, 3], 3, 1, SamplingParams(), 0, 0)
    assert right.propose([asked])[0].distributions == (), "certain drafts, which are no fault under the textbook rule"
    assert block(right, "r-7", 1) == [11, 12, 13]
    assert block(right, "r-7", 4) == [14]
    assert block(right, "r2-7", 0) == [20, 21]
    assert block(right, "other", 0) == []
    assert block(ReferenceTextDrafter(layout, texts, 14, num_right=1), "r", 2) == [12, 0, 1]
    assert block(ReferenceTextDrafter(layout, texts, 100, num_offered=lambda position: position % 3), "r", 1) == [11]
