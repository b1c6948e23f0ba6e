"""OpenVINO GenAI: its continuous batching pipeline, from the GGUF file as it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import openvino
import openvino_genai

from peers.jobs import Job, Setup
from peers.measuring import closed_loop, serve, versions_of

CACHE_GB = 1
EOOF=1
