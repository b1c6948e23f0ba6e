"""Decides every open setting for a model, and reports how each value came about (design 7)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Protocol

from slipstream.config.checks import check_settings
from slipstream.config.settings import (
    COUPLED,
    NO_COST_TABLE,
    STANDARD_REJECTION,
    SchedulerConfig,
    SchedulerSettings,
    SettingError,
    Settings,
    SpeculativeSettings,
)


@dataclass(frozen=True, slots=True)
class ResolvedSetting:
    """One line of the resolution report."""

    name: str
    value: Any
    source: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What of the model the other settings depend on.

    Attributes:
        max_position: tokens the model was made for.
        kv_bytes_per_token: bytes of KV per token, target's and drafter's, in the dtype in use.
        device_type: "cpu" or "cuda".
        memory_bytes: memory that KV may come from.
    """

    max_position: int
    kv_bytes_per_token: int
    device_type: str = "cpu"
    memory_bytes: int = 4 << 30


class DraftCosts(Protocol):
    """What resolution asks of a DraftLayout (scheduler/layouts.py), which lives in a room below."""

    @property
    def method(self) -> str: ...
    @property
    def carries_target_rows(self) -> bool: ...
    def draft_query_rows(self, num_target_rows: int, num_draft_tokens: int) -> int: ...
    def reserved_slots(self, num_draft_tokens: int) -> int: ...
    def default_draft_capacity(self, max_num_batched_tokens: int, max_num_seqs: int, num_draft_tokens: int) -> int: ...


@dataclass(frozen=True, slots=True)
class DeviceDefaults:
    """Budgets where the user names none. A CPU's step time grows with its rows, so its budget is small."""

    max_num_batched_tokens: int
    max_num_seqs: int
    kv_memory_share: float


DEVICE_DEFAULTS = {
    "cpu": DeviceDefaults(256, 64, 0.25),
    "cuda": DeviceDefaults(8192, 256, 0.8),
}


@dataclass(frozen=True, slots=True)
class Resolution:
    """Settings with every value decided, and how each came about."""

    settings: Settings
    scheduler: SchedulerConfig
    report: tuple[ResolvedSetting, ...]

    def as_dict(self) -> list[dict[str, Any]]:
        """The report as JSON-ready rows: name, value, source, reason."""
        return [dataclasses.asdict(row) for row in self.report]


def resolve_settings(settings: Settings, facts: ModelFacts, layout: DraftCosts) -> Resolution:
    """Decide every open setting for this model and method. Raises SettingError for values that cannot work."""
    check_settings(settings)
    return _Resolver(settings, facts, layout).resolve()


class _Resolver:
    """One resolution; collects the report as it decides."""

    def __init__(self, settings: Settings, facts: ModelFacts, layout: DraftCosts) -> None:
        self._settings = settings
        self._facts = facts
        self._layout = layout
        self._report: list[ResolvedSetting] = []

    def resolve(self) -> Resolution:
        settings, facts, layout = self._settings, self._facts, self._layout
        scheduler, cache, speculative = settings.scheduler, settings.cache, settings.speculative
        most = 0 if speculative is None else speculative.num_drafts
        defaults = DEVICE_DEFAULTS[facts.device_type]
        budget, seats = self._budget_and_seats(defaults)
        capacity = self._draft_capacity(budget, seats, most)
        self._check_shared(budget, seats, most)
        min_prefill = self._decide(
            "min_prefill_tokens", scheduler.min_prefill_tokens, max(budget // 8, 1), "an eighth of the token budget"
        )
        if min_prefill > budget:
            raise SettingError(
                f"--min-prefill-tokens {min_prefill} is more than --max-num-batched-tokens {budget}, "
                "the nearest that works"
            )
        max_model_len = self._max_model_len()
        num_blocks = self._num_kv_blocks(defaults, seats, max_model_len)
        pool_tokens = num_blocks * cache.block_size
        if pool_tokens < max_model_len:
            self._note(
                "max_request_tokens",
                pool_tokens,
                "derived",
                "the KV pool is smaller than max_model_len; requests end there",
            )
        for name, value, default in (
            ("block_size", cache.block_size, 16),
            ("enable_prefix_caching", cache.enable_prefix_caching, True),
            ("draft_budget", scheduler.draft_budget, "separate"),
            ("long_prefill_token_threshold", scheduler.long_prefill_token_threshold, 0),
            ("priority_ageing_s", scheduler.priority_ageing_s, 30.0),
            ("commit_lag", scheduler.commit_lag, 0),
            ("cost_table", scheduler.cost_table, NO_COST_TABLE),
            ("batch_invariant", settings.model.batch_invariant, False),
        ):
            self._note(name, value, "default" if value == default else "user", "")
        self._note_brains()
        if speculative is None:
            self._note("speculation", "off", "derived", "nothing drafts")
        else:
            what = f"{speculative.method}, at most {most} drafts per request and step"
            self._note("speculation", "on", "derived", what)
            self._note_judging(speculative)
            schedule = speculative.num_speculative_tokens_per_batch_size
            if schedule:
                self._note("num_speculative_tokens_per_batch_size", schedule, "user", "more requests keep the last K")
        resolved = dataclasses.replace(
            settings,
            speculative=None if speculative is None else dataclasses.replace(speculative, num_speculative_tokens=most),
            model=dataclasses.replace(settings.model, max_model_len=max_model_len),
            cache=dataclasses.replace(cache, num_kv_blocks=num_blocks),
            scheduler=dataclasses.replace(
                scheduler,
                max_num_batched_tokens=budget,
                max_num_seqs=seats,
                draft_capacity=capacity,
                min_prefill_tokens=min_prefill,
            ),
        )
        config = SchedulerConfig(
            max_num_batched_tokens=budget,
            max_num_seqs=seats,
            max_model_len=max_model_len,
            block_size=cache.block_size,
            num_kv_blocks=num_blocks,
            enable_prefix_caching=cache.enable_prefix_caching,
            draft_budget=scheduler.draft_budget,
            layout_name=layout.method,
            num_speculative_tokens=most,
            draft_capacity=capacity,
            min_prefill_tokens=min_prefill,
            long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
            draft_max_model_len=None if speculative is None else speculative.draft_max_model_len,
            draft_schedule=() if speculative is None else speculative.num_speculative_tokens_per_batch_size,
            rejection_sample_method=COUPLED if speculative is None else speculative.rejection_sample_method,
            priority_ageing_s=scheduler.priority_ageing_s,
            composition=scheduler.composition,
            verification=scheduler.verification,
            max_prompt_wait_s=scheduler.max_prompt_wait_s,
            max_tpot_ms=scheduler.max_tpot_ms,
        )
        return Resolution(resolved, config, tuple(self._report))

    def _note_brains(self) -> None:
        """What decides a step's content; without a cost table it cannot be weighed, which is said here, once."""
        scheduler, default = self._settings.scheduler, SchedulerSettings()
        reason = ""
        if scheduler.cost_table == NO_COST_TABLE:
            reason = "no cost table: prompts are mixed in at once, every draft that fits is verified"
        for name in ("composition", "verification", "max_prompt_wait_s", "max_tpot_ms"):
            value = getattr(scheduler, name)
            is_brain = name in ("composition", "verification")
            source = "default" if value == getattr(default, name) else "user"
            self._note(name, value, source, reason if is_brain else "")

    def _note_judging(self, speculative: SpeculativeSettings) -> None:
        """The rule by which drafts are accepted, and how a model's drafts are chosen."""
        rule, choice = speculative.rejection_sample_method, speculative.chosen_draft_sample_method
        has_model = speculative.model is not None
        reason = "a draft is accepted when it is the target's own sample: the text does not depend on speculation"
        if rule == STANDARD_REJECTION:
            reason = "accepted with probability min(1, p / q): texts are equal in law to those without speculation"
            if not has_model or choice == "greedy":
                reason = "drafts are certain, so this rule and 'coupled' give the same texts"
        self._note("rejection_sample_method", rule, "default" if rule == COUPLED else "user", reason)
        if has_model:
            is_open = speculative.draft_sample_method is None
            self._note("draft_sample_method", choice, "derived" if is_open else "user", "")

    def _note(self, name: str, value: Any, source: str, reason: str) -> None:
        self._report.append(ResolvedSetting(name, value, source, reason))

    def _decide(self, name: str, value: int | None, default: int, reason: str) -> int:
        if value is None:
            self._note(name, default, "default", reason)
            return default
        self._note(name, value, "user", "")
        return value

    def _budget_and_seats(self, defaults: DeviceDefaults) -> tuple[int, int]:
        scheduler = self._settings.scheduler
        reason = f"the default for {self._facts.device_type}"
        wanted, seats = scheduler.max_num_batched_tokens, scheduler.max_num_seqs
        if wanted is not None and seats is not None and wanted < seats:
            raise SettingError(
                f"--max-num-batched-tokens {wanted} is less than --max-num-seqs {seats}: each running request needs "
                f"a row in every step. Use --max-num-batched-tokens {seats} or --max-num-seqs {wanted}"
            )
        # The one the user left open follows the one that was named.
        budget = self._decide(
            "max_num_batched_tokens", wanted, max(defaults.max_num_batched_tokens, 4 * (seats or 0)), reason
        )
        seats = self._decide("max_num_seqs", seats, min(defaults.max_num_seqs, budget), reason)
        return budget, seats

    def _draft_capacity(self, budget: int, seats: int, most: int) -> int:
        layout = self._layout
        needed = layout.default_draft_capacity(budget, seats, most)
        capacity = self._decide(
            "draft_capacity", self._settings.scheduler.draft_capacity, needed, f"what {layout.method} needs at most"
        )
        if not most:
            return capacity
        # A layout that carries target rows cannot skip them, so every running request needs its row here too.
        least = layout.draft_query_rows(seats if layout.carries_target_rows else 1, most)
        if capacity < least:
            raise SettingError(
                f"--draft-capacity {capacity} is too small: {layout.method} with num_speculative_tokens {most}"
                + (f" and --max-num-seqs {seats}" if layout.carries_target_rows else "")
                + f" needs at least {least} draft rows in a pass; {needed} lets every request draft in every step"
            )
        return capacity

    def _check_shared(self, budget: int, seats: int, most: int) -> None:
        reserved = self._layout.reserved_slots(most)
        left = budget - seats * reserved
        if self._settings.scheduler.draft_budget != "shared" or left > 0:
            return
        raise SettingError(
            f"--draft-budget shared with --max-num-batched-tokens {budget}, --max-num-seqs {seats} and "
            f"num_speculative_tokens {most} leaves {budget} - {seats} x {reserved} = {left} rows for the target. "
            "Use --draft-budget separate (which reserves nothing), "
            f"--max-num-batched-tokens {seats * reserved + seats}, or --max-num-seqs {max((budget - 1) // reserved, 1)}"
        )

    def _max_model_len(self) -> int:
        most = self._facts.max_position
        wanted = self._settings.model.max_model_len
        if wanted is not None and wanted > most:
            raise SettingError(
                f"--max-model-len {wanted} is more than the model's {most} positions; the nearest that works is {most}"
            )
        return self._decide("max_model_len", wanted, most, "the model's own limit")

    def _num_kv_blocks(self, defaults: DeviceDefaults, seats: int, max_model_len: int) -> int:
        cache, facts = self._settings.cache, self._facts
        block_bytes = facts.kv_bytes_per_token * cache.block_size
        most = facts.memory_bytes // block_bytes
        if cache.num_kv_blocks is not None:
            if cache.num_kv_blocks > most:
                raise SettingError(
                    f"--num-kv-blocks {cache.num_kv_blocks} of {block_bytes} bytes are more than the "
                    f"{facts.memory_bytes >> 20} MiB of memory at hand; the largest pool that fits has {most}"
                )
            return self._decide("num_kv_blocks", cache.num_kv_blocks, 0, "")
        memory = cache.kv_cache_memory_bytes
        reason = f"{memory} bytes asked for"
        if memory is None:
            memory = int(facts.memory_bytes * defaults.kv_memory_share)
            reason = f"{defaults.kv_memory_share:.0%} of the memory at hand ({memory >> 20} MiB)"
        fitting = memory // block_bytes
        useful = seats * -(-max_model_len // cache.block_size)
        if fitting < 1:
            raise SettingError(
                f"--kv-cache-memory-bytes {memory} does not hold one KV block of {block_bytes} bytes; "
                f"the nearest that works is {block_bytes}"
            )
        if useful < fitting:
            fitting, reason = useful, f"{seats} requests of {max_model_len} tokens; more would never be used"
        if fitting > most:
            raise SettingError(
                f"--kv-cache-memory-bytes {memory} is more than the {facts.memory_bytes} bytes of memory at hand, "
                "the nearest that works"
            )
        self._note("num_kv_blocks", fitting, "derived", reason)
        return fitting
