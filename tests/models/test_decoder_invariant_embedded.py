"""The batch-invariant mode on the embedded model: its real shapes, in both dtypes."""

from __future__ import annotations

import pytest
import torch
from models.decoder_helpers import Sequences, random_tokens

from slipstream.config import EMBEDDED_MODEL, ModelSettings
from slipstream.execution.build import build_decoder
from slipstream.models.config import ModelLoadError
from slipstream.models.decoder import Decoder
from slipstream.models.loading import open_model

TOKENS = random_tokens(100, seed=3, vocab_size=40000)

pytestmark = [pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    try:
        source = open_model(EMBEDDED_MODEL, progress=False)
    except ModelLoadError as error:
        pytest.skip(f"the embedded model is not here and cannot be fetched: {error}")
    settings = ModelSettings(dtype=request.param, device="cpu", batch_invariant=True, max_model_len=256)
    return build_decoder(source, settings)


def test_bits_do_not_follow_the_batch(decoder: Decoder) -> None:
    whole = Sequences(decoder)
    whole.step({"a": TOKENS})
    pieces = Sequences(decoder, block_size=4, num_blocks=256)
    pieces.step({"x": random_tokens(21, 5), "a": TOKENS[:50]})  # a chunk behind another prompt
    pieces.step({"a": TOKENS[50:83], "x": [9]})
    for start in (83, 86, 89):  # verify rows: three right, three wrong
        pieces.step({"x": [start], "a": [*TOKENS[start : start + 3], 1, 2, 3], "y": [4]}, keep={"a": 3})
    for token in TOKENS[92:]:  # decode rows, alone
        pieces.step({"a": [token]})
    assert torch.equal(pieces.key_values("a"), whole.key_values("a"))
    assert torch.equal(pieces.all_logits("a"), whole.all_logits("a"))
