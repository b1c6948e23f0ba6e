"""A recorded run, replayed through a fresh scheduler, gives the same plans: scripted random traffic, and a real run."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from driver import drive, make_config, make_request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slipstream.config import SettingError
from slipstream.request import RequestError, SamplingParams
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.scheduler.cost_table_json import cost_table_to_json
from slipstream.scheduler.interpolation import Grid
from slipstream.scheduler.layouts import LAYOUTS
from slipstream.scheduler.protocol import DraftRequest, StepMode, StepPlan
from slipstream.simulation.drafters import ScriptedDrafter, predict_with
from slipstream.simulation.record_to import RecordTo
from slipstream.simulation.recorder import RecordedScheduler, Recorder
from slipstream.simulation.recording import (
    Aborted,
    Added,
    Committed,
    CostsSet,
    Planned,
    RecordedEvent,
    Recording,
    canonical,
)
from slipstream.simulation.recording_reader import read_recording
from slipstream.simulation.replay import Replay, check_hashes, first_divergence, hashes_for
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


@pytest.mark.parametrize("lag", [0, 1])
def test_tight_pools_preempt_and_replay(tmp_path: Path, lag: int) -> None:
    """Fixed seeds whose runs really preempt, abort and find cached prefixes, so that the property covers them."""
    config = make_config(
        max_num_batched_tokens=24,
        max_num_seqs=6,
        max_model_len=80,
        block_size=4,
        num_kv_blocks=22,
        layout_name="dflash",
        num_speculative_tokens=4,
    )
    seen = Counter[str]()
    for seed in range(8):
        recording, plans = record_traffic(tmp_path / f"{seed}.jsonl.gz", config, lag, seed)
        assert_replays(recording)
        lives = Counter(new.request_id for plan in plans for new in plan.new_requests)
        seen["preempted"] += sum(count - 1 for count in lives.values())
        seen["aborted"] += sum(isinstance(event, Aborted) for event in recording.events)
        seen["cached"] += sum(e.num_computed_tokens > 0 and e.epoch == 0 for p in plans[:3] for e in p.requests)
        cached = {e.request_id for p in plans for e in p.requests if e.is_prefill and e.num_computed_tokens}
        seen["cached"] += len(cached)
    assert min(seen.values()) > 0 and len(seen) == 3


@pytest.mark.parametrize("change", ["hash", "stop", "tokens", "drop an abort", "order"])
def test_a_replay_notices_what_is_not_as_it_was(tmp_path: Path, change: str) -> None:
    """The equality above is no empty promise: a recording that says something else gives other plans."""
    config = make_config(max_num_seqs=4, max_num_batched_tokens=24, block_size=4, num_kv_blocks=40, max_model_len=80)
    events: list[RecordedEvent] = []
    for seed in range(30):
        recording, _ = record_traffic(tmp_path / "run.jsonl.gz", config, 0, seed)
        events = changed_events(recording.events, change)
        if events != recording.events:
            found = first_divergence(recording, Replay(recording))
            assert found is None
            other = dataclasses.replace(recording, events=events)
            try:
                found = first_divergence(other, Replay(other))
            except (KeyError, ValueError, IndexError):
                return  # so different that results no longer fit the plans
            if found is not None:
                return
    pytest.fail("never noticed")


def changed_events(events: list[RecordedEvent], change: str) -> list[RecordedEvent]:
    changed = list(events)
    for place, event in enumerate(events):
        match event:
            case Added() if change == "hash" and event.block_hashes:
                changed[place] = dataclasses.replace(event, block_hashes=(b"other", *event.block_hashes[1:]))
            case Committed() if change == "stop" and event.ends:
                changed[place] = dataclasses.replace(event, ends={})
                return changed
            case Committed() if change == "tokens" and any(r.token_ids for r in event.result.results):
                longer = [dataclasses.replace(r, token_ids=[*r.token_ids, 0]) for r in event.result.results]
                changed[place] = dataclasses.replace(event, result=dataclasses.replace(event.result, results=longer))
                return changed
            case Aborted() if change == "drop an abort":
                del changed[place]
                return changed
            case Added() if change == "order" and place + 1 < len(events) and isinstance(events[place + 1], Added):
                changed[place : place + 2] = [events[place + 1], event]
                return changed
            case _:
                pass
    return changed


def test_changed_block_sizes_use_the_recorded_chain() -> None:
    small = make_config(block_size=4)
    hashes = [bytes([n]) for n in range(7)]
    assert hashes_for(hashes, small, make_config(block_size=8)) == [b"\x01", b"\x03", b"\x05"]
    assert hashes_for(hashes, small, make_config(block_size=4)) == hashes
    with pytest.raises(SettingError, match="the nearest is 8"):
        check_hashes(small, make_config(block_size=9))
    with pytest.raises(SettingError, match="without a prefix cache"):
        check_hashes(make_config(enable_prefix_caching=False), make_config())
    check_hashes(small, make_config(block_size=9, enable_prefix_caching=False))


@pytest.mark.model
@pytest.mark.parametrize("lag", [0, 1])
def test_a_run_of_the_embedded_model_replays(tmp_path: Path, lag: int) -> None:
    """A real engine: preemption, an abort, prefix-cache hits, stop strings, a cost table and its successor."""
    from slipstream.engine.build import build_engine
    from slipstream.engine.flat_settings import settings_from_flat
    from slipstream.engine.messages import Submission

    grid = Grid((1.0, 48.0), (0.0, 400.0), ((8.0, 9.0), (40.0, 44.0)))
    table = CostTable(Provenance("a test", "embedded"), {StepMode.EAGER: grid}, draft=Grid((1.0,), (0.0,), ((0.1,),)))
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps(cost_table_to_json(table)))
    path = tmp_path / "run.jsonl.gz"
    settings = settings_from_flat(
        {
            "max_num_seqs": 4,
            "max_num_batched_tokens": 48,
            "num_kv_blocks": 14,
            "max_model_len": 160,
            "commit_lag": lag,
            "cost_table": str(costs),
            "composition": "mix",
            "speculative_config": {"method": "ngram"},
        }
    )
    built = build_engine(settings, record=RecordTo(path))
    engine = built.engine
    begin = "You are a careful cook. Say how to make bread, step by step, and say again: flour, water, salt, flour, "
    encode = built.source.tokenizer.encode
    for number in range(8):
        prompt = tuple(encode(begin + f"number {number}: flour, water, salt, flour, water,"))
        sampling = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True, stop=(" salt",) * (number == 3))
        engine.add_request(Submission(f"r{number}", prompt, sampling, seed=number, arrival_time=engine.clock()))
    steps, stopped = 0, set()
    while engine.has_work():
        for output in engine.step().outputs:
            if output.stop_reason == " salt":
                stopped.add(output.request_id)
        steps += 1
        if steps == 12:
            engine.abort("r1")
        if steps == 20:  # as a refit does
            engine.scheduler.set_costs(dataclasses.replace(table, version=1))
    engine.close()
    statistics = engine.scheduler.statistics
    assert statistics.num_preemptions and statistics.num_accepted_tokens and statistics.num_finished["abort"] == 1
    assert stopped and engine.scheduler.kv.num_hit_tokens

    recording = read_recording(path)
    assert not recording.is_cut and recording.num_steps == sum(statistics.num_steps.values())
    assert any(isinstance(event, CostsSet) for event in recording.events)
    assert_replays(recording)
    text = gzip.decompress(path.read_bytes())
    assert all(word not in text for word in (b"flour", b"salt", b"cook"))
