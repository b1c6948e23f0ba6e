"""`slipstream doctor` says what a model would run on."""

from __future__ import annotations

from pathlib import Path

import pytest
from models.tiny_models import write_tiny_hf_model

from slipstream.cli import main
from slipstream.kernels.native.library import open_library


def test_it_names_machine_kernels_and_arithmetic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_tiny_hf_model(tmp_path / "llama")
    assert main(["doctor", "--model", str(model)]) == 0
    lines = dict(
        line.split(maxsplit=1)
        for line in capsys.readouterr().out.replace("native kernels", "native").splitlines()
        if line
    )
    is_built = open_library() is not None
    assert ("built; this processor runs plain" in lines["native"]) == is_built
    assert lines["quantization"].startswith("int8" if is_built else "none")
    assert "llama, 3 layers of 64" in lines["model"]
    assert "threads" in lines["machine"]


def test_a_model_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--model", "/nowhere/at/all"]) == 2
    assert "no such file" in capsys.readouterr().err
