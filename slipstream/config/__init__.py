"""One typed tree of settings, their validation, and the report of how each value came about (design 7)."""

from slipstream.config.checks import (
    check_settings,
    check_speculative,
    parse_speculative_config,
    speculative_settings_from,
)
from slipstream.config.resolution import (
    DEVICE_DEFAULTS,
    ModelFacts,
    Resolution,
    ResolvedSetting,
    resolve_settings,
)
from slipstream.config.settings import (
    DRAFT_BUDGETS,
    DTYPES,
    EMBEDDED_MODEL,
    MAX_SPECULATIVE_TOKENS,
    SPECULATIVE_METHODS,
    CacheSettings,
    ModelSettings,
    SchedulerConfig,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
)

__all__ = [
    "DEVICE_DEFAULTS",
    "DRAFT_BUDGETS",
    "DTYPES",
    "EMBEDDED_MODEL",
    "MAX_SPECULATIVE_TOKENS",
    "SPECULATIVE_METHODS",
    "CacheSettings",
    "ModelFacts",
    "ModelSettings",
    "Resolution",
    "ResolvedSetting",
    "SchedulerConfig",
    "SchedulerSettings",
    "SettingError",
    "Settings",
    "SpeculativeSettings",
    "check_settings",
    "check_speculative",
    "parse_speculative_config",
    "resolve_settings",
    "speculative_settings_from",
]
