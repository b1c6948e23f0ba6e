"""How large a KV pool may be where it is simulated: it has an entry for every block."""

from __future__ import annotations

from slipstream.config import SchedulerConfig, SettingError

MAX_KV_BLOCKS = 1 << 23


def check_pool_size(config: SchedulerConfig) -> None:
    """Raise SettingError for a pool of more than MAX_KV_BLOCKS."""
    if config.num_kv_blocks > MAX_KV_BLOCKS:
        raise SettingError(
            f"the KV pool would have {config.num_kv_blocks} blocks of {config.block_size} tokens; {MAX_KV_BLOCKS} are "
            "simulated at most. Set num_kv_blocks, or a smaller max_num_seqs or max_model_len"
        )
