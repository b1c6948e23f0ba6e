"""The synchronous core: choices, stops, failures, both commit lags."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from engine_helpers import EOS, VOCABULARY, ScriptedText, byte_tokens, make_engine, printable_logits

from slipstream.engine.engine import MAX_CONSECUTIVE_FAILURES, Engine, EngineDeadError
from slipstream.engine.messages import Submission
from slipstream.engine.output_processor import ChoiceDelta
from slipstream.engine.tracker import RequestTracker
from slipstream.request import FinishReason, RequestError, SamplingParams
from slipstream.scheduler.protocol import Executor, StepPlan, StepResult

PROMPT = tuple(byte_tokens("hello"))


def run(engine: Engine, submissions: list[Submission]) -> dict[tuple[str, int], list[ChoiceDelta]]:
    tracker = RequestTracker(VOCABULARY)
    for submission in submissions:
        engine.add_request(submission)
        tracker.add(submission)
    deltas: dict[tuple[str, int], list[ChoiceDelta]] = {}
    while len(tracker):
        for request_id, delta in tracker.read(engine.step(), engine.clock()):
            deltas.setdefault((request_id, delta.choice_index), []).append(delta)
    return deltas


def tokens(deltas: list[ChoiceDelta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def text(deltas: list[ChoiceDelta]) -> str:
    return "".join(delta.text for delta in deltas)


def blocks_are_free(engine: Engine) -> bool:
    pool = engine.scheduler.kv.pool
    return pool.num_free == pool.num_blocks


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("drafts", [0, 5])
def test_G19_choices_share_the_seed_and_differ(lag: int, drafts: int) -> None:
    sampling = SamplingParams(n=3, seed=1, max_tokens=20)
    engine = make_engine(commit_lag=lag, num_speculative_tokens=drafts)
    deltas = run(engine, [Submission("a", PROMPT, sampling, seed=1)])
    outputs = [tokens(deltas["a", index]) for index in range(3)]
    plain = run(make_engine(), [Submission("a", PROMPT, sampling, seed=1)])
    assert outputs == [tokens(plain["a", index]) for index in range(3)]
    assert len({tuple(output) for output in outputs}) == 3
    if drafts:
        assert engine.scheduler.statistics.num_accepted_tokens > 0
    engine.close()
    assert blocks_are_free(engine) and not engine.has_work()


@pytest.mark.parametrize("lag", [0, 1])
@pytest.mark.parametrize("position", range(16))
def test_F3_stop_string_inside_an_accepted_block(lag: int, position: int) -> None:
    said = "x" * position + "STOP" + "y" * 40
    engine = make_engine(ScriptedText(len(PROMPT), byte_tokens(said)), commit_lag=lag, num_speculative_tokens=15)
    sampling = SamplingParams(temperature=0.0, max_tokens=60, stop=("STOP", "yyy"), logprobs=1)
    deltas = run(engine, [Submission("a", PROMPT, sampling, seed=0)])["a", 0]
    assert text(deltas) == "x" * position
    assert tokens(deltas) == byte_tokens("x" * position + "STOP")
    assert sum(len(delta.logprobs or ()) for delta in deltas) == position + 4
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == (FinishReason.STOP, "STOP")
    engine.close()
    assert blocks_are_free(engine)


@pytest.mark.parametrize("drafts", [0, 7])
def test_min_tokens_hides_earlier_stop_strings(drafts: int) -> None:
    engine = make_engine(ScriptedText(len(PROMPT), byte_tokens("ab ab ab ab")), num_speculative_tokens=drafts)
    sampling = SamplingParams(temperature=0.0, max_tokens=60, min_tokens=5, stop=("ab",))
    deltas = run(engine, [Submission("a", PROMPT, sampling, seed=0)])["a", 0]
    assert text(deltas) == "ab ab "


@pytest.mark.parametrize("drafts", [0, 4])
def test_E8_first_token_is_kept_and_judged(drafts: int) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=10)
    ended = run(
        make_engine(ScriptedText(len(PROMPT), [EOS]), num_speculative_tokens=drafts),
        [Submission("a", PROMPT, sampling, seed=0)],
    )["a", 0]
    assert (text(ended), ended[-1].finish_reason, tokens(ended)) == ("", FinishReason.STOP, [EOS])
    said = run(
        make_engine(ScriptedText(len(PROMPT), byte_tokens("A!")), num_speculative_tokens=drafts),
        [Submission("a", PROMPT, sampling, seed=0)],
    )["a", 0]
    assert text(said) == "A!"


@pytest.mark.parametrize("max_tokens", range(1, 21))
def test_E7_E6_tokens_logprobs_and_limit_agree(max_tokens: int) -> None:
    engine = make_engine(num_speculative_tokens=7)
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, logprobs=0)
    deltas = run(engine, [Submission("a", PROMPT, sampling, seed=0)])["a", 0]
    assert len(tokens(deltas)) == max_tokens == sum(len(delta.logprobs or ()) for delta in deltas)
    assert deltas[-1].finish_reason is FinishReason.LENGTH


def test_C4_logprobs_and_text_survive_preemption() -> None:
    values = {"num_kv_blocks": 14, "max_num_seqs": 4, "block_size": 4, "enable_prefix_caching": False}
    sampling = SamplingParams(temperature=0.0, max_tokens=30, logprobs=0, stop=("never said",))
    submissions = [Submission(f"r{index}", (*PROMPT, index + 40), sampling, seed=0) for index in range(4)]
    engine = make_engine(num_speculative_tokens=3, **values)
    together = run(engine, submissions)
    assert engine.scheduler.statistics.num_preemptions > 0
    for submission in submissions:
        alone = run(make_engine(), [submission])[submission.request_id, 0]
        deltas = together[submission.request_id, 0]
        assert tokens(deltas) == tokens(alone) and text(deltas) == text(alone)
        assert sum(len(delta.logprobs or ()) for delta in deltas) == 30
    assert blocks_are_free(engine)


class Failing:
    """Raises in chosen steps."""

    def __init__(self, executor: Executor, fails: Callable[[StepPlan], bool]) -> None:
        self._executor = executor
        self._fails = fails

    def execute(self, plan: StepPlan) -> StepResult:
        result = self._executor.execute(plan)
        if self._fails(plan):
            raise RuntimeError("the device is on fire")
        return result


@pytest.mark.parametrize("lag", [0, 1])
def test_failing_step_ends_its_requests_only(lag: int) -> None:
    engine = make_engine(commit_lag=lag, max_num_seqs=1, wrap=lambda inner: Failing(inner, lambda plan: plan.step == 2))
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    deltas = run(engine, [Submission(name, PROMPT, sampling, seed=0) for name in ("a", "b")])
    assert deltas["a", 0][-1].finish_reason is FinishReason.ERROR
    assert "the device is on fire" in (deltas["a", 0][-1].error or "")
    assert len(tokens(deltas["b", 0])) == 8
    engine.close()
    assert blocks_are_free(engine) and engine.death is None


def test_executor_that_always_fails_kills_the_engine_with_a_reason() -> None:
    engine = make_engine(max_num_seqs=1, wrap=lambda inner: Failing(inner, lambda plan: True))
    sampling = SamplingParams(max_tokens=8)
    for index in range(MAX_CONSECUTIVE_FAILURES + 1):
        engine.add_request(Submission(f"r{index}", PROMPT, sampling, seed=0))
    for _ in range(MAX_CONSECUTIVE_FAILURES):
        assert engine.step().outputs[0].finish_reason is FinishReason.ERROR
    assert engine.death is not None
    left = engine.fail_all(engine.death)
    assert [output.request_id for output in left] == [f"r{MAX_CONSECUTIVE_FAILURES}#0"]
    with pytest.raises(EngineDeadError):
        engine.add_request(Submission("late", PROMPT, sampling, seed=0))


@pytest.mark.parametrize("lag", [0, 1])
def test_C7_abort_of_a_waiting_request_leaves_the_running_one_alone(lag: int) -> None:
    engine = make_engine(max_num_seqs=1, commit_lag=lag)
    sampling = SamplingParams(temperature=0.0, max_tokens=12)
    tracker = RequestTracker(VOCABULARY)
    for name in ("a", "b"):
        submission = Submission(name, PROMPT, sampling, seed=0)
        engine.add_request(submission)
        tracker.add(submission)
    received: list[int] = []
    for number in range(40):
        if number == 4:
            engine.abort("b")
            tracker.drop("b", engine.clock())
        if not engine.has_work():
            break
        for request_id, delta in tracker.read(engine.step(), engine.clock()):
            assert request_id == "a"
            received += delta.token_ids
    assert received == tokens(run(make_engine(), [Submission("a", PROMPT, sampling, seed=0)])["a", 0])
    engine.close()
    assert blocks_are_free(engine)


def test_C3_abort_between_schedule_and_result_a_hundred_times() -> None:
    engine = make_engine(commit_lag=1, num_speculative_tokens=3)
    sampling = SamplingParams(temperature=0.0, max_tokens=100)
    engine.add_request(Submission("stays", PROMPT, sampling, seed=0))
    stays: list[int] = []
    for index in range(100):
        engine.add_request(Submission(f"goes{index}", PROMPT, sampling, seed=0))
        for _ in range(2):
            for output in engine.step().outputs:
                if output.request_id == "stays#0":
                    stays += output.new_token_ids
        engine.abort(f"goes{index}")
    while engine.has_work():
        for output in engine.step().outputs:
            stays += output.new_token_ids
    statistics = engine.scheduler.statistics
    assert len(stays) == 100 and 0 < statistics.num_accepted_tokens <= statistics.num_verified_tokens
    engine.close()
    assert blocks_are_free(engine)


def test_E5_output_that_cannot_fit_is_refused_and_names_what_can() -> None:
    engine = make_engine(max_model_len=64)
    room = 64 - len(PROMPT)
    engine.add_request(Submission("fits", PROMPT, SamplingParams(max_tokens=room), seed=0))
    with pytest.raises(RequestError, match=f"the largest max_tokens here is {room}") as caught:
        engine.add_request(Submission("not", PROMPT, SamplingParams(max_tokens=room + 1), seed=0))
    assert caught.value.parameter == "max_tokens"
    engine.add_request(Submission("open", PROMPT, SamplingParams(max_tokens=None), seed=0))


@pytest.mark.parametrize("seed", [-1, 10**30, 2**64 - 1])
def test_any_integer_is_a_seed(seed: int) -> None:
    sampling = SamplingParams(seed=seed, max_tokens=5)
    first = run(make_engine(), [Submission("a", PROMPT, sampling, seed=seed)])
    again = run(make_engine(), [Submission("a", PROMPT, sampling, seed=seed)])
    assert tokens(first["a", 0]) == tokens(again["a", 0])


def test_refused_choice_leaves_nothing_behind() -> None:
    engine = make_engine(printable_logits(), max_model_len=4)
    with pytest.raises(RequestError):
        engine.add_request(Submission("a", PROMPT, SamplingParams(n=3, max_tokens=None), seed=0))
    assert not engine.has_work()


def test_seeds_a_power_of_two_apart_differ() -> None:
    texts = []
    for seed in (0, 2**64):
        sampling = SamplingParams(seed=seed, max_tokens=12)
        texts.append(tokens(run(make_engine(), [Submission("a", PROMPT, sampling, seed=seed)])["a", 0]))
    assert texts[0] != texts[1]


def test_at_lag_1_one_cause_counts_once() -> None:
    """The step after a failed one was planned with the same request and is doomed; two bad requests kill nobody."""
    bad = {"bad0#0", "bad1#0"}
    engine = make_engine(
        commit_lag=1,
        max_num_seqs=1,
        wrap=lambda inner: Failing(inner, lambda plan: any(item.request_id in bad for item in plan.requests)),
    )
    sampling = SamplingParams(temperature=0.0, max_tokens=8)
    deltas = run(engine, [Submission(name, PROMPT, sampling, seed=0) for name in ("bad0", "bad1", "good")])
    assert deltas["bad0", 0][-1].finish_reason is FinishReason.ERROR
    assert deltas["bad1", 0][-1].finish_reason is FinishReason.ERROR
    assert len(tokens(deltas["good", 0])) == 8
    assert engine.death is None
    engine.close()
