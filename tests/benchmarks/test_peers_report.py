"""Medians, ratios and tables, from results that are made up."""

from __future__ import annotations

import json

import pytest
from peers.interleaved import Measured, System
from peers.jobs import Job, Loaded, Result
from peers.machine import this_machine
from peers.report import ABSENT, Figure, as_json, markdown, rows_of, table, texts_of
from peers.workload import PREFILL, decoding_jobs, num_prompts, prefill_job, setup_for

SYSTEMS = [System(name, list, is_peer=name != "ours") for name in ("transformers", "fast", "broken", "ours")]
TEXT = list(range(100, 110))


def result(seconds: float, *answers: list[int], length: float | None = None) -> Result:
    return Result(seconds=seconds, num_prompt_tokens=1000, token_ids=list(answers), acceptance_length=length,
                  resident_bytes=2_000_000, kv_bytes=1_000_000)  # fmt: skip


@pytest.fixture
def jobs() -> list[Job]:
    greedy = decoding_jobs({"talk": [[1], [2]]}, [1], max_new_tokens=10, ignore_eos=True)
    return [*greedy, prefill_job([[1, 2, 3]])]


@pytest.fixture
def measured() -> Measured:
    other = [*TEXT[:5], 1, 2, 3, 4, 5]
    decode = {
        "transformers": [result(2.0, TEXT, TEXT), result(1.0, TEXT, TEXT), result(4.0, TEXT, TEXT)],
        "fast": [result(0.5, TEXT, other), result(0.4, TEXT, TEXT), result(1.0, TEXT, TEXT)],
        "ours": [result(0.25, TEXT, TEXT, length=2.5), result(0.2, TEXT, TEXT, length=2.0)],
    }
    prefill = {"transformers": [result(4.0, [1])], "ours": [result(2.0, [1])]}
    loaded = Loaded(load_s=1.0, resident_bytes=1, versions={"package": "1.2"})
    return Measured(
        [decode, prefill],
        loaded=dict.fromkeys(("transformers", "fast", "ours"), (loaded, 3.0)),
        errors={"broken": "no AVX-512 | none"},
        failures={(1, "fast"): "error: too long"},
    )


def test_medians_spread_and_ratios_against_the_best_peer(jobs: list[Job], measured: Measured) -> None:
    decode, prefill = rows_of(SYSTEMS, jobs, measured)
    assert decode.figures["fast"].median == 40.0
    assert decode.figures["fast"].spread == pytest.approx(1.5)
    assert decode.best_peer == "fast"
    assert decode.ratios == {"ours": pytest.approx(90.0 / 40.0)}
    assert decode.acceptance_lengths == {"ours": 2.25}
    assert decode.failures == {"broken": "no AVX-512 | none"}
    assert prefill.best_peer == "transformers"
    assert prefill.figures["ours"].median == 500.0
    assert prefill.ratios == {"ours": 2.0}
    assert prefill.failures["fast"] == "error: too long"


def test_without_a_peer_there_is_no_ratio(jobs: list[Job]) -> None:
    alone = Measured([{"ours": [result(1.0, TEXT)]}, {}])
    row = rows_of(SYSTEMS, jobs, alone)[0]
    assert row.best_peer is None
    assert row.ratios == {}
    assert ABSENT in markdown(SYSTEMS, rows_of(SYSTEMS, jobs, alone), alone, {}, this_machine())


def test_texts_are_compared_with_the_reference(jobs: list[Job], measured: Measured) -> None:
    texts = texts_of(jobs, measured)
    assert texts["transformers"].same is None
    assert texts["fast"].same == pytest.approx(0.75)
    assert texts["ours"].same == 1.0
    assert texts["ours"].num_answers == 2
    loop = Measured([{"ours": [result(1.0, [7] * 60, TEXT)]}, {}])
    assert texts_of(jobs, loop)["ours"].num_loops == 1


def test_the_report_names_everything(jobs: list[Job], measured: Measured) -> None:
    rows = rows_of(SYSTEMS, jobs, measured)
    text = markdown(SYSTEMS, rows, measured, texts_of(jobs, measured), this_machine())
    assert (
        "| 1 | 2 | 10 | 10.0 (5.0 to 20.0) | **40.0 (20.0 to 50.0)** | failed | 90.0 (80.0 to 100.0) | 2.25 | 2.25 |"
        in text
    )
    assert "* broken: no AVX-512 | none" in text
    assert "| broken | failed: no AVX-512 / none |" in text
    assert "* fast: error: too long" in text
    assert "| ours | package 1.2 | 1.0 | 3.0 | 2 | 1 |" in text
    assert "time ended" not in text
    measured.is_complete = False
    assert "time ended" in markdown(SYSTEMS, rows, measured, {}, this_machine())


def test_json_holds_every_repeat(jobs: list[Job], measured: Measured) -> None:
    rows = rows_of(SYSTEMS, jobs, measured)
    values = json.loads(json.dumps(as_json(SYSTEMS, rows, measured, texts_of(jobs, measured), this_machine())))
    assert values["jobs"][0]["systems"]["fast"]["rates"] == [40.0, 50.0, 20.0]
    assert values["jobs"][0]["systems"]["ours"]["repeats"][1]["seconds"] == 0.2
    assert values["jobs"][0]["ratios"] == {"ours": pytest.approx(2.25)}
    assert values["systems"]["broken"] == {"error": "no AVX-512 | none"}
    assert values["systems"]["fast"]["versions"] == {"package": "1.2"}
    assert values["machine"]["num_cores"] >= 1


def test_a_table_survives_bars_and_line_breaks() -> None:
    assert table(["a"], [["x|y\nz"]]) == "| a |\n| --- |\n| x/y z |"
    assert str(Figure((2.0,))) == "2.0"


def test_jobs_are_as_large_as_their_concurrency() -> None:
    assert [num_prompts(concurrency) for concurrency in (1, 8, 32, 64, 100)] == [4, 16, 64, 64, 100]
    prompts = [[n] for n in range(80)]
    jobs = decoding_jobs({"talk": prompts}, [1, 8, 64], max_new_tokens=5, ignore_eos=False, temperature=1.0)
    assert [len(job.prompts) for job in jobs] == [4, 16, 64]
    assert jobs[0].name == "talk, EOS respected, T = 1"
    limited = decoding_jobs({"talk": prompts[:3]}, [8], max_new_tokens=5, ignore_eos=True, limit=50)
    assert len(limited[0].prompts) == 3, "no prompt twice: a prefix cache would know it"
    setup = setup_for(
        [*jobs, prefill_job(prompts)], model="m", gguf="", folder="", dtype="float32", num_threads=1, eos_token_ids=[0]
    )
    assert (setup.max_num_seqs, setup.max_model_len, setup.kv_tokens) == (64, 1001, 1001)
    assert prefill_job(prompts).name == PREFILL
    assert {len(prompt) for prompt in prefill_job(prompts, limit=2).prompts} == {1000}
