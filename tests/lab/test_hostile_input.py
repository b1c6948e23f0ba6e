"""What scenarios, tables and flags of the lab's commands are refused for: one line, exit code 2, nothing written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slipstream.cli import main
from slipstream.config import SettingError
from slipstream.engine.cost_table_files import read_cost_table

SCENARIO = """
[machine]
name = "roofline:cpu:smollm2-135m:tp1"
[scheduler]
max_num_batched_tokens = 64
max_num_seqs = 4
layout = "ngram"
num_speculative_tokens = 2
[acceptance]
mean = 2.0
[[workload]]
prompt_tokens = 20
output_tokens = 6
num_requests = 5
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    """The one line that a command ends with."""
    assert main([str(argument) for argument in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert len(line) < 700
    return line


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("mean = 2.0", "mean = 1" + "0" * 400), "mean must be a number"),
        (("mean = 2.0", "chances = [" + "0.5," * 65 + "]"), "65 depths; 64 drafts are the most"),
        (("mean = 2.0", "class = [{share = 1e308, mean = 2}]"), "share must be between 0 and 1e+06"),
        (("prompt_tokens = 20", "prompt_tokens = 16777216"), "the nearest is 4194304"),
        (("num_requests = 5", "num_requests = 1000000000"), "between 1 and 1000000, got 1000000000"),
        (
            (
                "prompt_tokens = 20\noutput_tokens = 6\nnum_requests = 5",
                "prompt_tokens = 90\noutput_tokens = 6\nnum_requests = 1000000",
            ),
            "96000000 tokens",
        ),
        (("[scheduler]", "[scheduler]\ncost_table = 5"), "cost_table must be 'machine', 'none' or a file, got 5"),
        (("[scheduler]", '[scheduler]\ncost_table = "a\\u0000b"'), "embedded null byte"),
        (("[scheduler]", "[scheduler]\nmax_model_len = []"), "max_model_len must be a whole number, got []"),
        (("[scheduler]", "[scheduler]\nnum_kv_blocks = 1000000000000"), "8388608 are simulated at most"),
        (('layout = "ngram"', "layout = [1]"), "layout must be a text, got [1]"),
        (("num_speculative_tokens = 2", "num_speculative_tokens = -0.0"), "must be a whole number, 0 for no drafts"),
        (("[machine]", 'title = "a\\u001b[31m"\n[machine]'), "control character '\\x1b'"),
        (("[machine]", 'title = "a\\u202eb"\n[machine]'), "control character '\\u202e'"),
        (("[machine]", "title = 0x" + "f" * 6000 + "\n[machine]"), "a int too large to show"),
        (("[machine]", "title = 1" + "0" * 6000 + "\n[machine]"), "is not TOML"),
        (("[machine]", "a = " + "[" * 5000 + "]" * 5000 + "\n[machine]"), "nested too deeply"),
        (("tp1", "tp" + "9" * 5000), "tensor parallel degree as tp1"),
    ],
)
def test_values_out_of_all_bounds(
    scenario: Path, capsys: pytest.CaptureFixture[str], change: tuple[str, str], words: str
) -> None:
    scenario.write_text(SCENARIO.replace(*change))
    assert words in refused(capsys, "simulate", scenario)


def test_what_is_no_file_to_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "loop.toml").symlink_to("loop.toml")
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    (tmp_path / "a.toml").write_text('extends = "b.toml"')
    (tmp_path / "b.toml").write_text('extends = "a.toml"')
    for name, words in (
        (tmp_path / "pipe.toml", "a pipe or a device"),
        ("/dev/zero", "a pipe or a device"),
        (tmp_path, "is a directory"),
        (tmp_path / "loop.toml", "symbolic links"),
        ("a\0b.toml", "null byte"),
        (tmp_path / "binary.toml", "is not UTF-8"),
        (tmp_path / "a.toml", "extends itself, by way of 'a.toml'"),
    ):
        assert words in refused(capsys, "simulate", name)
        if not str(name).endswith(".toml") or "pipe" in str(name):
            assert words in refused(capsys, "replay", name)


def test_reports_overwrite_nothing_else(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "r"
    (tmp_path / "loop").symlink_to("loop")
    for command in ("simulate", "tune"):
        for flags, words in (
            (("--json", scenario), "would overwrite the s"),
            (("--json", report, "--html", report), "would overwrite what --json writes"),
            (("--html", tmp_path / "loop"), "leads back to itself"),
            (("--html", ""), "no name of a file"),
        ):
            assert words in refused(capsys, command, scenario, *flags)
    assert scenario.read_text() == SCENARIO
    assert main(["simulate", str(scenario), "--json", "/dev/full", "--processes", "1"]) == 1
    assert "No space left" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loop", "s.toml"]


def test_set_takes_one_value(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("max_num_seqs=1\nmax_num_batched_tokens=2", "max_num_seqs=" + "[" * 3000):
        assert "max-num-seqs must be a whole number" in refused(capsys, "simulate", scenario, "--set", text)


def test_names_are_no_markup(scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario.write_text(
        SCENARIO + '[[variant]]\nname = "[/]<b>"\n[published]\nsource = "[/x]"\n"[/]<b>" = {tpot_ms = 2}\n'
    )
    page = tmp_path / "p.html"
    assert main(["simulate", str(scenario), "--processes", "1", "--html", str(page)]) == 0
    assert "[/]<b>" in capsys.readouterr().out
    assert "[/]&lt;b&gt;" in page.read_text()
    assert "[/]<b>" not in page.read_text()


def test_words_of_tune(scenario: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "between 1 and 1024, got 1000000" in refused(capsys, "tune", scenario, "--workers", "1000000")
    long = refused(capsys, "tune", scenario, "--search", "max_num_seqs=" + "9" * 5000)
    assert "whole numbers from 1 to 16777216" in long
    with pytest.raises(SystemExit) as end:
        main(["tune", str(scenario), "--max-tpot-p50", "9" * 5000 + "ms"])
    assert end.value.code == 2
    assert len(capsys.readouterr().err) < 700


TABLE = {
    "format": "slipstream-cost-table/1",
    "provenance": {"machine": "a GPU", "model": "m"},
    "decode_graphs": "uniform",
    "capture_sizes": [2],
    "target_ms": {
        "eager": {"num_rows": [1, 64], "num_kv_tokens": [0], "ms": [[0], [0]]},
        "full_graph": {"num_rows": [2], "num_kv_tokens": [0], "ms": [[0]]},
    },
}


@pytest.mark.parametrize("composition", ["mix", "burst", "cost"])
@pytest.mark.parametrize("verification", ["fixed", "confidence"])
@pytest.mark.parametrize("ms", [0, 5])
def test_steps_that_cost_nothing_and_graphs_for_few_rows(
    scenario: Path, tmp_path: Path, composition: str, verification: str, ms: int
) -> None:
    """Steps of 0 ms end, and a uniform graph smaller than the seats is no trap."""
    table = json.loads(json.dumps(TABLE).replace("[0]]", f"[{ms}]]"))
    (tmp_path / "t.json").write_text(json.dumps(table))
    scenario.write_text(
        SCENARIO.replace('name = "roofline:cpu:smollm2-135m:tp1"', 'file = "t.json"').replace(
            "[scheduler]", f'[scheduler]\ncomposition = "{composition}"\nverification = "{verification}"'
        )
    )
    report = tmp_path / "r.json"
    assert main(["simulate", str(scenario), "--processes", "1", "--json", str(report)]) == 0
    (case,) = json.loads(report.read_text())["cases"]
    assert case["completed"] == 5


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"ms": [[0]]', '"ms": [[1e308]]', "from 0 to 1e\\+09"),
        ('"ms": [[0]]', f'"ms": [[1{"0" * 400}]]', "from 0 to 1e\\+09"),
        ('"capture_sizes": [2]', f'"capture_sizes": [1{"0" * 400}]', "to 16777216 at most"),
        ('"num_rows": [1, 64]', '"num_rows": [64, 1]', "must rise"),
        ('"num_rows": [1, 64]', '"num_rows": [1, 1e300]', "must rise"),
        ('"capture_sizes"', '"host_ms": {"per_step": 1e300}, "capture_sizes"', "from 0 to 1e\\+09"),
        ('"capture_sizes"', '"corrections": {"eager": 1e8}, "capture_sizes"', "at most 1e\\+06"),
        ('"capture_sizes"', '"capture_sizes": [1], "capture_sizes"', "'capture_sizes' stands there twice"),
    ],
)
def test_absurd_tables(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = json.dumps(TABLE)
    assert old in text
    (tmp_path / "t.json").write_text(text.replace(old, new))
    with pytest.raises(SettingError, match=words):
        read_cost_table(tmp_path / "t.json")


def test_deep_tables(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[" * 100_000)
    with pytest.raises(SettingError, match="nested too deeply"):
        read_cost_table(tmp_path / "t.json")


@pytest.mark.slow
@pytest.mark.parametrize("command", [("simulate", "--processes"), ("tune", "--workers")])
@pytest.mark.parametrize("seconds", [1.5, 4.0])
def test_an_interrupt_is_quiet(scenario: Path, tmp_path: Path, command: tuple[str, str], seconds: float) -> None:
    """Worker processes, those that are just starting too, leave no traceback, and no file is left."""
    text = SCENARIO.replace("num_requests = 5", "num_requests = 20000")
    scenario.write_text(
        text + ('[[variant]]\nname = "a"\n[[variant]]\nname = "b"\n' if command[0] == "simulate" else "")
    )
    name, flag = command
    process = subprocess.Popen(
        [sys.executable, "-m", "slipstream.cli", name, str(scenario), flag, "2", "--json", str(tmp_path / "r.json")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (130, b"")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.toml"]
