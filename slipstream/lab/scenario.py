"""Scenario: a machine, a scheduler's settings, workloads and drafts' luck, and the variants to compare on them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slipstream.config import (
    CacheSettings,
    ModelFacts,
    ModelSettings,
    SchedulerConfig,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
    resolve_settings,
    shown,
)
from slipstream.engine.cost_table_files import read_cost_table
from slipstream.lab.acceptance_choice import AcceptanceChoice
from slipstream.lab.machine_choice import MachineChoice
from slipstream.lab.simulate import Simulation
from slipstream.lab.toml_section import unknown_name
from slipstream.lab.workload import Workload
from slipstream.scheduler.costs import StepCosts
from slipstream.scheduler.layouts import layout_for
from slipstream.simulation.pool_size import check_pool_size

MACHINE_COSTS, NO_COSTS = "machine", "none"
SIMULATED_DEFAULTS: dict[str, Any] = {
    "cost_table": MACHINE_COSTS,
    "enable_prefix_caching": False,
    "layout": "dspark",
    "num_speculative_tokens": 5,
}
"""Settings whose default here is another than a server's: prompts share nothing, and the machine's costs are known."""

_SCHEDULER = tuple(f.name for f in dataclasses.fields(SchedulerSettings))
_NOT_SIMULATED = {
    "commit_lag": "each step is committed before the next is planned",
    "profile_seconds": "nothing is measured",
}
_CACHE = ("block_size", "num_kv_blocks", "enable_prefix_caching")
_SPECULATIVE = ("layout", "num_speculative_tokens", "draft_max_model_len")
SETTING_NAMES = (
    *(name for name in _SCHEDULER if name not in _NOT_SIMULATED),
    *_CACHE,
    *_SPECULATIVE,
    "max_model_len",
)
"""What `[scheduler]` and `[[variant]]` take."""

# A simulated pool has no bytes: as many blocks as asked for are at hand.
_FACTS = ModelFacts(max_position=1 << 40, kv_bytes_per_token=1, device_type="cuda", memory_bytes=1 << 62)
# Names the layout; which drafts are accepted is the acceptance model's business.
_ANY_LENGTH = 1.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the scenario.

    Attributes:
        settings: flat names, over the scenario's own. machine: overrides of the scenario's machine.
        baseline: name of the variant it is compared with; None for the first of a comparison.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    baseline: str | None = None


@dataclass(frozen=True, slots=True)
class Published:
    """What was measured elsewhere: variant -> figure (see report_figures.py) -> value."""

    source: str
    rows: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class Fit:
    """A machine's figure that is not known, and is chosen so that one variant gives the published figures.

    Attributes:
        variant: the one it is fitted on; others are predicted. parameter: key of `[machine]`.
        figures: those whose log errors are made least. low, high: where it is looked for.
        values: workload -> the fitted value. command: made them.
    """

    variant: str
    parameter: str
    figures: tuple[str, ...]
    low: float
    high: float
    values: Mapping[str, float] = field(default_factory=dict)
    command: str = ""


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a run of `slipstream simulate` is decided by.

    Attributes:
        name: the file's name without its ending.
        settings: flat names of SETTING_NAMES; what is not there keeps its default.
        variants: at least one.
        assumptions: what is not known and was chosen, each a sentence for the report.
    """

    name: str
    title: str
    machine: MachineChoice
    settings: Mapping[str, Any]
    acceptance: AcceptanceChoice
    workloads: tuple[Workload, ...]
    variants: tuple[Variant, ...] = (Variant("as set"),)
    assumptions: tuple[str, ...] = ()
    published: Published | None = None
    fit: Fit | None = None

    def with_settings(self, **settings: Any) -> Scenario:
        """The same with other settings (names of SETTING_NAMES).

        Raises:
            SettingError: an unknown name, a value that cannot work, or a setting that a variant sets itself.
        """
        check_names(settings, "setting")
        for variant in self.variants:
            for name in settings:
                if name in variant.settings:
                    raise SettingError(f"{name} is set by the variant {variant.name!r} of {self.name}; change it there")
        return self.checked(settings={**self.settings, **settings})

    def only(self, variant: str) -> Scenario:
        """The same with one variant, whose settings and machine are now the scenario's own."""
        chosen = self.variant(variant)
        return dataclasses.replace(
            self,
            settings={**self.settings, **chosen.settings},
            machine=self.machine.with_overrides(chosen.machine),
            variants=(Variant(chosen.name),),
        )

    def variant(self, name: str) -> Variant:
        """The variant of this name. Raises SettingError."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise unknown_name("variant", name, [variant.name for variant in self.variants])

    def checked(self, **changes: Any) -> Scenario:
        """With these attributes replaced, and every simulation checked. Raises SettingError."""
        scenario = dataclasses.replace(self, **changes) if changes else self
        for variant in scenario.variants:
            scenario.believed_costs(variant)
            for workload in scenario.workloads:
                scenario.config_of(workload, variant)
                scenario.machine_of(workload, variant)
        return scenario

    def settings_of(self, variant: Variant) -> dict[str, Any]:
        """Flat settings of a variant, the defaults of simulations included."""
        return {**SIMULATED_DEFAULTS, **self.settings, **variant.settings}

    def config_of(self, workload: Workload, variant: Variant) -> SchedulerConfig:
        """Every number of the scheduler. Raises SettingError."""
        flat = self.settings_of(variant)
        most = flat["num_speculative_tokens"]
        if not isinstance(most, int) or isinstance(most, bool):
            raise SettingError(f"num_speculative_tokens must be a whole number, 0 for no drafts, got {shown(most)}")
        if not isinstance(flat["layout"], str):
            raise SettingError(f"layout must be a text, got {shown(flat['layout'])}")
        speculative = None
        if most != 0:
            named = {name: flat[name] for name in _SPECULATIVE if name in flat}
            speculative = SpeculativeSettings(method="forced", acceptance_length=_ANY_LENGTH, **named)
        longest = workload.longest
        length = flat.get("max_model_len", longest)
        if not isinstance(length, int) or isinstance(length, bool):
            raise SettingError(f"max_model_len must be a whole number, got {shown(length)}")
        if length < longest:
            raise SettingError(
                f"max_model_len {length} is less than the longest request of {workload.name!r}, {longest} tokens, "
                "the nearest that works"
            )
        settings = Settings(
            model=ModelSettings(max_model_len=length),
            cache=CacheSettings(**{name: flat[name] for name in _CACHE if name in flat}),
            scheduler=SchedulerSettings(
                **{name: flat[name] for name in SETTING_NAMES if name in _SCHEDULER and name in flat}
            ),
            speculative=speculative,
        )
        config = resolve_settings(settings, _FACTS, layout_for(speculative)).scheduler
        check_pool_size(config)
        pool = config.num_kv_blocks * config.block_size
        if pool < longest:
            raise SettingError(
                f"num_kv_blocks {config.num_kv_blocks} hold {pool} tokens, and the longest request of "
                f"{workload.name!r} has {longest}; the nearest that works is {-(-longest // config.block_size)}"
            )
        return config

    def machine_of(self, workload: Workload, variant: Variant) -> StepCosts:
        """What steps cost for this workload: fitted figures, then the variant's own."""
        overrides: dict[str, Any] = {}
        if self.fit is not None and workload.name in self.fit.values:
            overrides[self.fit.parameter] = self.fit.values[workload.name]
        return self.machine.with_overrides({**overrides, **variant.machine}).build()

    def believed_costs(self, variant: Variant) -> StepCosts | None:
        """The cost table that the scheduler decides by where it is not the machine's own; None for none."""
        chosen = self.settings_of(variant)["cost_table"]
        return None if chosen in (NO_COSTS, MACHINE_COSTS) else read_cost_table(chosen)

    def simulation(self, workload: Workload, variant: Variant) -> Simulation:
        """What `simulate` runs. Raises SettingError."""
        config, machine = self.config_of(workload, variant), self.machine_of(workload, variant)
        believed = machine if self.settings_of(variant)["cost_table"] == MACHINE_COSTS else self.believed_costs(variant)
        acceptance = self.acceptance.build(config.num_speculative_tokens)
        return Simulation(config, machine, acceptance, workload.requests, workload.arrivals, believed)


def check_names(settings: Mapping[str, Any], what: str) -> None:
    """Raise SettingError for a name that no simulation has."""
    for name, value in settings.items():
        if name in _NOT_SIMULATED:
            raise SettingError(f"{name} is not simulated: {_NOT_SIMULATED[name]}; leave it out")
        if name not in SETTING_NAMES:
            raise unknown_name(what, name, SETTING_NAMES)
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingError(f"{what} {name} must be a finite number, got {value}")


def names_of(variants: Sequence[Variant]) -> list[str]:
    """Their names, in order."""
    return [variant.name for variant in variants]
