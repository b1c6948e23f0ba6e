"""What `import slipstream` gives."""

from __future__ import annotations

import subprocess
import sys

import pytest

import slipstream


def test_what_is_offered_is_there() -> None:
    from slipstream.engine.llm import LLM
    from slipstream.request import SamplingParams

    assert slipstream.LLM is LLM and slipstream.SamplingParams is SamplingParams
    assert all(hasattr(slipstream, name) for name in slipstream.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        slipstream.Engine  # noqa: B018


def test_it_costs_no_import_of_pytorch() -> None:
    code = "import sys, slipstream; slipstream.SamplingParams(temperature=0); raise SystemExit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
