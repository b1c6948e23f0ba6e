"""Prometheus metrics under vLLM's names and labels, so that existing dashboards work, and what vLLM lacks.

Names that begin with `vllm:` mean what they mean there; docs/metrics.md says where they cannot. Ours begin with
`slipstream:`. One module per subject.
"""

from slipstream.server.metrics.engine import EngineCollector
from slipstream.server.metrics.front import FrontCollector
from slipstream.server.metrics.requests import ServerMetrics

__all__ = ["EngineCollector", "FrontCollector", "ServerMetrics"]
