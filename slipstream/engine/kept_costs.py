"""Cost tables that starts before this one measured, so that a start has to measure only once."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from pathlib import Path

from slipstream.config import SchedulerConfig, SettingError, SpeculativeSettings
from slipstream.engine.cost_table_files import read_cost_table, write_cost_table
from slipstream.models.embedded import cache_directory
from slipstream.scheduler.cost_table import CostTable, Provenance
from slipstream.version import __version__

logger = logging.getLogger(__name__)

# What a step costs does not depend on these; the pool's size follows the memory at hand.
_FREE = ("num_kv_blocks", "max_prompt_wait_s", "max_tpot_ms", "priority_ageing_s", "composition", "verification")


def kept_costs_path(here: Provenance, config: SchedulerConfig, speculative: SpeculativeSettings | None) -> Path:
    """Where the table of this machine, model, drafter and these sizes is kept."""
    sizes = {name: value for name, value in dataclasses.asdict(config).items() if name not in _FREE}
    drafter = None if speculative is None else dataclasses.asdict(speculative)
    key = json.dumps([__version__, here.machine, here.model, sizes, drafter], sort_keys=True, default=str)
    return cache_directory() / "costs" / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"


def read_kept_costs(path: Path) -> CostTable | None:
    """The table kept there; None for none, or one that cannot be read: it is measured again then."""
    if not path.is_file():
        return None
    try:
        return read_cost_table(path)
    except SettingError as error:
        logger.warning("%s; measuring again", error)
        return None


def keep_costs(table: CostTable, path: Path) -> None:
    """Keep a table for the next start. A cache that cannot be written costs that start its time, nothing else."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_cost_table(table, path)
    except (OSError, SettingError) as error:
        logger.warning("the measured costs are not kept: %s", error)
