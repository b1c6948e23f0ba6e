"""Commands without the folders that stood in them."""

from __future__ import annotations

import pytest

from slipstream.training.command_words import without_folders


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("slipstream calibrate /home/me/run/drafter --events 100", "slipstream calibrate drafter --events 100"),
        ("slipstream calibrate d --prompts=../data/a.jsonl", "slipstream calibrate d --prompts=a.jsonl"),
        ("slipstream calibrate 'a b/c d'", "slipstream calibrate 'c d'"),
        ("""slipstream evaluate --beside '{"model": "x/y"}'""", """slipstream evaluate --beside '{"model": "x/y"}'"""),
    ],
)
def test_paths_keep_their_last_name(typed: str, kept: str) -> None:
    assert without_folders(typed) == kept
