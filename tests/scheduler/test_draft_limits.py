"""Requests that bound their own drafts, and prompts that are reported on: neither changes a text."""

from __future__ import annotations

from pathlib import Path

import pytest
from case_rig import VOCAB, make_rig, plain_tokens, prompt
from driver import make_request

from slipstream.engine.draft_history import DraftHistory, per_position
from slipstream.request import Logprobs, Request, RequestOutput, SamplingParams
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recorder import RecordedScheduler, Recorder
from slipstream.simulation.recording_reader import read_recording
from slipstream.simulation.replay import Replay, first_divergence
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor

LIMITS: list[int | None] = [None, 0, 1, 3, 9]
LAGS = pytest.mark.parametrize("lag", [0, 1])


def requests() -> list[Request]:
    made = []
    for index, limit in enumerate(LIMITS):
        request = make_request(str(index), prompt(9 + index), 40)
        request.max_draft_tokens = limit
        made.append(request)
    return made


@LAGS
@pytest.mark.parametrize("budget", ["separate", "shared"])
def test_nobody_drafts_beyond_its_own_limit(lag: int, budget: str) -> None:
    rig = make_rig("oracle", num_speculative_tokens=5, draft_budget=budget)
    run = rig.drive(requests(), lag=lag)
    for index, limit in enumerate(LIMITS):
        outputs = [output for output in run.outputs if output.request_id == str(index)]
        most = 5 if limit is None else min(limit, 5)
        assert max(output.num_drafted for output in outputs) == most
        assert max(output.num_verified for output in outputs) == most
    assert run.token_ids == plain_tokens(requests(), logits=HashedLogits(VOCAB))
    statistics = rig.scheduler.statistics
    assert sum(output.num_drafted for output in run.outputs) == statistics.num_drafted_tokens
    assert sum(output.num_admitted for output in run.outputs) == statistics.num_admitted_tokens


def reported(request_id: str, num_tokens: int, count: int | None = 0) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=40, prompt_logprobs=count)
    return Request(request_id, list(prompt(num_tokens)), sampling, reads_prefix_cache=count is None)


def report(logits, token_id: int, count: int) -> Logprobs:
    return Logprobs(float(logits[token_id]), 1, ())


class Reporting(ScriptedExecutor):
    """Gives the logit itself as the log probability, so that it can be checked."""

    def __init__(self, *args, **kwargs) -> None:
        super().__init__(*args, report=report, **kwargs)


@LAGS
@pytest.mark.parametrize("num_kv_blocks", [256, 12])
def test_L5_every_prompt_token_is_reported_once_and_in_order(lag: int, num_kv_blocks: int) -> None:
    """In chunks, beside cached copies of itself, and with a pool that preempts."""
    logits = HashedLogits(VOCAB)
    rig = make_rig(
        "oracle",
        logits=logits,
        executor_type=Reporting,
        num_speculative_tokens=3,
        max_num_batched_tokens=24,
        num_kv_blocks=num_kv_blocks,
    )
    rig.drive([reported("warm", 70, None)], lag=lag)
    run = rig.drive([reported("a", 70), reported("b", 70), reported("c", 2)], lag=lag)
    tokens = list(prompt(70))
    expected = [float(logits(tokens[:place])[tokens[place]]) for place in range(1, 70)]
    for name, length in (("a", 70), ("b", 70), ("c", 2)):
        given = [output.prompt_logprobs for output in run.outputs if output.request_id == name]
        assert given[0] is not None and all(later is None for later in given[1:])
        assert [entry.logprob for entry in given[0]] == expected[: length - 1]
    assert all(output.num_cached_tokens == 0 for output in run.outputs)
    if num_kv_blocks == 12:
        assert rig.scheduler.statistics.num_preemptions > 0


def test_a_replay_knows_limits_and_prompts_that_are_not_read_from_the_cache(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rig = make_rig("oracle", num_speculative_tokens=5)
    recorder = Recorder(RecordTo(path), rig.config, clock=lambda: 0.0, model="scripted")
    rig.scheduler = RecordedScheduler(rig.config, recorder)
    rig.drive([make_request("first", prompt(70), 4)])
    rig.drive([*requests(), reported("again", 70)])
    recorder.close()
    recording = read_recording(path)
    assert first_divergence(recording, Replay(recording)) is None
    assert recording.num_steps > 10


def test_histories_add_up() -> None:
    history = DraftHistory()
    for drafted, admitted, verified, accepted in ((3, 0, 0, 0), (3, 3, 2, 2), (0, 3, 3, 0), (0, 0, 0, 0)):
        history.add(
            RequestOutput(
                "r",
                [1],
                num_verified=verified,
                num_accepted=accepted,
                num_drafted=drafted,
                num_admitted=admitted,
            )
        )
    assert (history.drafted, history.admitted) == ([3, 3], [3, 3])
    assert history.mean_acceptance_length == 2.0 and history.acceptance_rate == pytest.approx(2 / 5)
    assert history.acceptance_histogram(3) == [1, 0, 1, 0] and history.num_steps == 2
    assert per_position(history.verified, 4) == [2, 2, 1, 0]
    both = DraftHistory.sum([history, history])
    assert both.num_steps == 4 and DraftHistory().mean_acceptance_length is None
