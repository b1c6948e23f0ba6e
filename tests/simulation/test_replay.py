"""A recorded run, replayed through a fresh scheduler, gives the same plans: scripted random traffic, and a real run."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from driver import drive, make_config, make_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.request import RequestError
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftRequest, StepPlan
from slipstream.simulation.drafters import ScriptedDrafter, predict_with
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recorder import RecordedScheduler, Recorder
from slipstream.simulation.recording import Planned, Recording, canonical, read_recording
from slipstream.simulation.replay import Replay, first_divergence
from slipstream.simulation.scripted import HashedLogits, ScriptedExecutor

VOCAB = 16
EOS = 15
LOGITS = HashedLogits(VOCAB, seed=3, window=1, scale=2.0)


def record_traffic(path: Path, config, lag: int, seed: int) -> tuple[Recording, list[StepPlan]]:
    """Random arrivals with shared prefixes, aborts and ragged drafts; the recording and the plans that ran."""
    random = Random(seed)
    recorder = Recorder(RecordTo(path), config, clock=lambda: 0.0, model="scripted")
    scheduler = RecordedScheduler(config, recorder)
    predict = predict_with(LOGITS)

    def sometimes_right(request: DraftRequest, prefix: list[int]) -> int:
        return predict(request, prefix) if random.random() < 0.7 else random.randrange(VOCAB)

    def offered(request: DraftRequest, call: int) -> int:
        return random.randrange(request.num_draft_tokens + 1) if random.random() < 0.3 else request.num_draft_tokens

    executor = ScriptedExecutor(
        LOGITS,
        num_kv_blocks=config.num_kv_blocks,
        block_size=config.block_size,
        drafter=ScriptedDrafter(LAYOUTS[config.layout_name], sometimes_right, VOCAB, num_offered=offered),
        max_model_len=config.max_model_len,
    )
    prefix = [random.randrange(VOCAB - 1) for _ in range(40)]
    live: list[str] = []
    to_come = random.randrange(4, 20)

    def before_step(step: int) -> None:
        nonlocal to_come
        while to_come and random.random() < 0.5:
            to_come -= 1
            length = random.randrange(1, min(config.max_model_len, 60))
            prompt = (prefix if random.random() < 0.6 else [])[: random.randrange(1, 41)]
            prompt = (prompt + [random.randrange(VOCAB - 1) for _ in range(length)])[:length]
            request = make_request(
                f"r{to_come}",
                prompt,
                random.choice((1, 3, 12, 40, None)),
                eos=(EOS,),
                priority=random.randrange(3),
                arrival_time=float(step),
            )
            try:
                scheduler.add_request(request)
            except RequestError:
                continue
            live.append(request.request_id)
        if live and random.random() < 0.08:
            scheduler.abort(random.choice(live))

    plans = []
    while True:
        plans += drive(scheduler, executor, lag=lag, before_step=before_step, max_steps=20_000).plans
        if not to_come:
            break
    recorder.close()
    return read_recording(path), plans


def replayed_plans(recording: Recording) -> list[StepPlan]:
    replay = Replay(recording)
    return [plan for event in recording.events if (plan := replay.apply(event)) is not None]


def assert_replays(recording: Recording) -> None:
    recorded = [event.plan for event in recording.events if isinstance(event, Planned)]
    assert replayed_plans(recording) == recorded
    assert first_divergence(recording, Replay(recording)) is None


@st.composite
def traffic(draw):
    layout = LAYOUTS[draw(st.sampled_from(sorted(LAYOUTS)))]
    most, seats = draw(st.integers(0, 6)), draw(st.integers(1, 8))
    budget = draw(st.integers(seats, 48))
    shared = draw(st.booleans()) and budget > seats * layout.reserved_slots(most)
    config = make_config(
        max_num_batched_tokens=budget,
        max_num_seqs=seats,
        max_model_len=96,
        block_size=4,
        num_kv_blocks=draw(st.integers(24, 80)),
        layout_name=layout.method,
        num_speculative_tokens=most,
        draft_budget="shared" if shared else "separate",
        long_prefill_token_threshold=draw(st.sampled_from((0, 7))),
        enable_prefix_caching=draw(st.booleans()),
    )
    return config, draw(st.integers(0, 1)), draw(st.integers(0, 2**31))


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=traffic())
def test_random_traffic_replays(tmp_path: Path, drawn) -> None:
    recording, plans = record_traffic(tmp_path / "run.jsonl.gz", *drawn)
    assert not recording.is_cut
    assert [e.plan for e in recording.events if isinstance(e, Planned) and e.plan.requests] == list(
        map(canonical, plans)
    )
    assert_replays(recording)
