"""The typed tree of settings. Flag names follow vLLM where the meaning is the same: `max_num_seqs` is `--max-num-seqs`.

A setting left at None is chosen by `resolve_settings` (resolution.py).
"""

from __future__ import annotations

from dataclasses import dataclass, field

EMBEDDED_MODEL = "smollm2-135m-instruct"
QUANTIZATIONS = ("auto", "int8", "none")
DTYPES = ("auto", "float32", "bfloat16", "float16")
DRAFT_BUDGETS = ("separate", "shared")
COMPOSITIONS = ("mix", "burst", "cost")
VERIFICATIONS = ("fixed", "confidence")
NO_COST_TABLE = "none"
PROFILE_COSTS = "profile"
AUTO_COSTS = "auto"
MEASURED_COSTS = (AUTO_COSTS, PROFILE_COSTS)
"""Values of `cost_table` for which a model in front of it is measured."""
BLOCK_DRAFTERS = ("dflash", "dspark")
MODEL_DRAFTERS = (*BLOCK_DRAFTERS, "draft_model")
CHAINABLE = ("ngram", *MODEL_DRAFTERS)
AUTO_METHOD = "auto"
SPECULATIVE_METHODS = (*CHAINABLE, "chain", "forced", AUTO_METHOD)
COUPLED, STANDARD_REJECTION = "coupled", "standard"
REJECTION_SAMPLE_METHODS = (COUPLED, STANDARD_REJECTION)
DRAFT_SAMPLE_METHODS = ("coupled", "probabilistic", "greedy")
DEFAULT_SPECULATIVE_TOKENS = 5
MAX_SPECULATIVE_TOKENS = 64
MAX_LOOKUP_LENGTH = 32

DraftSchedule = tuple[tuple[int, int, int], ...]
"""(lowest, highest, K): most drafts per request while so many run; ranges rise from 1 on without gaps."""


class SettingError(ValueError):
    """A setting that cannot work: names the flag, its value and the nearest value that works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Which model, and how its arithmetic runs.

    Attributes:
        model: the embedded model's name, a `.gguf` file, or a Hugging Face directory.
        served_model_name: the name clients use; the model's own when None.
        dtype: one of DTYPES; `auto` is bfloat16 where the device multiplies it fast, else float32.
        quantization: one of QUANTIZATIONS. `int8` keeps weights in groups of four or eight bits and multiplies bytes,
            in the native library; `auto` does so on a CPU where the library was built and `dtype` is left open.
        device: torch device; `auto` is `cuda` when there is one, else `cpu`.
        max_model_len: prompt and output tokens at most; the model's own limit when None.
        batch_invariant: a row's result never depends on the other rows (design 5); slower.
        num_threads: CPU threads; all cores this process may use when None.
    """

    model: str = EMBEDDED_MODEL
    served_model_name: str | None = None
    dtype: str = "auto"
    quantization: str = "auto"
    device: str = "auto"
    max_model_len: int | None = None
    batch_invariant: bool = False
    num_threads: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheSettings:
    """KV memory.

    Attributes:
        block_size: tokens per KV block.
        num_kv_blocks: size of the pool in blocks; None derives it from `kv_cache_memory_bytes`.
        kv_cache_memory_bytes: memory for KV; None takes a part of the machine's.
        enable_prefix_caching: keep and share full blocks by content.
    """

    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_memory_bytes: int | None = None
    enable_prefix_caching: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Budgets and order (design 3).

    Attributes:
        max_num_batched_tokens: B, rows of the target's pass in one step.
        max_num_seqs: S, requests running at once.
        draft_budget: `separate` (default) or `shared` (vLLM 0.32's reservation, to measure the difference).
        draft_capacity: D, rows of any one pass of the drafter; None takes what the method's layout needs.
        min_prefill_tokens: rows that waiting prompts get before verify rows, None is B / 8.
        long_prefill_token_threshold: rows of one prompt in one step at most; 0 is no limit.
        priority_ageing_s: seconds of waiting that count as much as one priority step.
        commit_lag: 0 commits each step before the next is planned; 1 plans the next one first (asynchronous stepping).
        composition: `mix` runs prompts at once beside decodes, `burst` holds them until they fill a step, `cost` weighs
            waiting against the price of a prompt step (design 4).
        verification: `fixed` verifies every draft that fits, `confidence` what is worth its cost.
        max_prompt_wait_s: a prompt that could run is held back no longer than this.
        max_tpot_ms: prompts are not released faster than lets running requests keep this time per token; None is no
            limit.
        cost_table: a file, PROFILE_COSTS to measure one at start, AUTO_COSTS to take what an earlier start measured and
            measure only where there is none, or NO_COST_TABLE: mix at once and verify all.
        profile_seconds: what measuring at start may take.
    """

    max_num_batched_tokens: int | None = None
    max_num_seqs: int | None = None
    draft_budget: str = "separate"
    draft_capacity: int | None = None
    min_prefill_tokens: int | None = None
    long_prefill_token_threshold: int = 0
    priority_ageing_s: float = 30.0
    commit_lag: int = 0
    composition: str = "cost"
    verification: str = "confidence"
    max_prompt_wait_s: float = 10.0
    max_tpot_ms: float | None = None
    cost_table: str = NO_COST_TABLE
    profile_seconds: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeSettings:
    """`--speculative-config`, a JSON object with vLLM's key names.

    Attributes:
        method: one of SPECULATIVE_METHODS; AUTO_METHOD takes what ships for the target (speculation/choice.py).
        num_speculative_tokens: K, most drafts per request per step; None takes what a block drafter was trained for,
            and DEFAULT_SPECULATIVE_TOKENS for other methods.
        model: directory or name of the drafter, for MODEL_DRAFTERS; of `draft_model`, whatever `--model` takes. None
            takes the block drafter that ships for the target.
        drafters: of `chain`: two or more of CHAINABLE; each request takes the first that has drafts for it.
        rejection_sample_method: how drafts are judged at temperatures above 0: `coupled`, accepted when equal to the
            target's own sample, so that the text is the one without speculation; or `standard`, vLLM's name for the
            textbook rejection rule, under which texts are equal in law.
        draft_sample_method: how a model's drafts are chosen there: `coupled`, with the target's own noise;
            `probabilistic`, vLLM's name for noise of their own; or `greedy`, the likeliest token (accepted less often).
            None takes what belongs to the rejection_sample_method.
        prompt_lookup_min, prompt_lookup_max: n-gram lengths that `ngram` looks for, at most MAX_LOOKUP_LENGTH.
        layout: whose budgets `forced` obeys.
        acceptance_length: mean tokens per step that `forced` makes come out, 1 to K + 1.
        draft_max_model_len: the drafter's own position limit; requests past it stop drafting.
        num_speculative_tokens_per_batch_size: K by the number of running requests, as [lowest, highest, K]; empty for
            the same K at every load.
    """

    method: str
    num_speculative_tokens: int | None = None
    model: str | None = None
    drafters: tuple[str, ...] = ()
    rejection_sample_method: str = COUPLED
    draft_sample_method: str | None = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 4
    layout: str | None = None
    acceptance_length: float | None = None
    draft_max_model_len: int | None = None
    num_speculative_tokens_per_batch_size: DraftSchedule = ()

    @property
    def num_drafts(self) -> int:
        """K, with the default where it is open; a drafter's own default is filled in when its files are opened."""
        return DEFAULT_SPECULATIVE_TOKENS if self.num_speculative_tokens is None else self.num_speculative_tokens

    @property
    def chosen_draft_sample_method(self) -> str:
        """`draft_sample_method`, with the default where it is open."""
        if self.draft_sample_method is not None:
            return self.draft_sample_method
        return "probabilistic" if self.rejection_sample_method == STANDARD_REJECTION else "coupled"

    @property
    def layout_name(self) -> str:
        """Name of the DraftLayout that this method obeys."""
        return self.layout or self.method


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything an engine is built from."""

    model: ModelSettings = field(default_factory=ModelSettings)
    cache: CacheSettings = field(default_factory=CacheSettings)
    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    speculative: SpeculativeSettings | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """What the scheduler is built from: every number decided."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    num_kv_blocks: int
    enable_prefix_caching: bool = True
    draft_budget: str = "separate"
    layout_name: str = "ngram"
    num_speculative_tokens: int = 0
    draft_capacity: int = 0
    min_prefill_tokens: int = 0
    long_prefill_token_threshold: int = 0
    draft_max_model_len: int | None = None
    draft_schedule: DraftSchedule = ()
    rejection_sample_method: str = COUPLED
    priority_ageing_s: float = 30.0
    composition: str = "cost"
    verification: str = "confidence"
    max_prompt_wait_s: float = 10.0
    max_tpot_ms: float | None = None
