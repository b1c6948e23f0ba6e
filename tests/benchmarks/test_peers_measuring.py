"""What runs jobs inside a system's process, and the lines that go in and out."""

from __future__ import annotations

import subprocess
import sys

import pytest
from benchmarks.scripted_system import ScriptedEngine
from peers.jobs import Job, Loaded, Result, Setup
from peers.measuring import closed_loop, cut_at, measure, resident_bytes


def job(**changes: object) -> Job:
    values = {
        "name": "some",
        "prompts": [[1, 5], [2], [3, 3, 7]],
        "max_new_tokens": 4,
        "concurrency": 2,
        "ignore_eos": True,
    }
    return Job(**values | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "message",
    [
        job(temperature=1.0),
        Result(seconds=2.0, num_prompt_tokens=6, token_ids=[[1, 2], []], acceptance_length=1.5),
        Loaded(load_s=1.0, resident_bytes=None, versions={"a": "1"}, details={"weights": "line\nbreak"}),
        Setup(
            model="m", gguf="", folder="f", dtype="float32", num_threads=1, max_num_seqs=1, max_model_len=2,
            kv_tokens=3, eos_token_ids=[0],
        ),
    ],
)  # fmt: skip
def test_messages_travel_as_one_line(message: Job | Result | Loaded | Setup) -> None:
    line = message.to_line()
    assert "\n" not in line
    assert type(message).from_line(line) == message


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"name": "x", "unknown": 1}'])
def test_other_lines_are_refused(line: str) -> None:
    with pytest.raises(ValueError):
        Job.from_line(line)


def test_a_job_says_what_it_needs() -> None:
    assert job().max_model_len == 7
    assert job().kv_tokens == 7 + 6
    assert job(concurrency=8).kv_tokens == 7 + 6 + 5


def test_rates_count_what_was_measured() -> None:
    result = Result(seconds=2.0, num_prompt_tokens=6, token_ids=[[1, 2, 3], [4]])
    assert (result.num_tokens, result.tokens_per_s, result.prompt_tokens_per_s) == (4, 2.0, 3.0)


@pytest.mark.parametrize("concurrency", [1, 2, 3, 8])
def test_the_closed_loop_runs_so_many_at_once_and_never_more(concurrency: int) -> None:
    engine = ScriptedEngine()
    assert closed_loop(engine, job(concurrency=concurrency)) == [[6, 7, 8, 9], [3, 4, 5, 6], [8, 9, 10, 11]]
    assert engine.most_running == min(concurrency, 3)
    assert engine.order == [0, 1, 2]


def test_answers_end_before_eos_unless_it_is_ignored() -> None:
    result = measure(ScriptedEngine(), job(ignore_eos=False), [9])
    assert result.token_ids == [[6, 7, 8], [3, 4, 5, 6], [8]]
    assert result.num_prompt_tokens == 6
    assert result.acceptance_length == 1.5
    assert result.kv_bytes == 64
    assert cut_at([1, 2, 3], [7]) == [1, 2, 3]


def test_memory_is_that_of_all_its_processes() -> None:
    code = "x = bytearray(40_000_000); print(flush=True); input()"
    before = resident_bytes()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        both = resident_bytes()
        child.communicate(b"\n")
    assert before is not None
    assert both is not None
    assert both - before > 40_000_000


def test_an_engine_that_ends_early_is_found_out() -> None:
    class Hasty(ScriptedEngine):
        def answer(self, job: Job) -> list[list[int]]:
            return [answer[:-1] for answer in super().answer(job)]

    with pytest.raises(RuntimeError, match="answer 0 has 3 tokens, 4 were asked for"):
        measure(Hasty(), job(), [9])
