"""DraftLayout: what each speculation method costs, in one formula per quantity (design 3).

Scheduler, runner, warm-up and simulator ask here and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from slipstream.config import SettingError, SpeculativeSettings


@dataclass(frozen=True, slots=True)
class LinearRows:
    """`per_draft * K + constant` rows, never below 0."""

    per_draft: int
    constant: int

    def __call__(self, num_draft_tokens: int) -> int:
        return max(self.per_draft * num_draft_tokens + self.constant, 0)


@dataclass(frozen=True, slots=True)
class DraftLayout:
    """The rows and KV slots of one speculation method. Q = target rows of a request in a step, K = its drafts.

    Attributes:
        method: name in `--speculative-config`.
        carries_target_rows: the drafter's pass repeats the Q target rows (EAGLE, draft models), so its size follows Q
            and skipping it would leave holes in the drafter's KV.
        extra_query_rows: rows of the drafter's own largest pass beside the carried ones.
        lookahead: KV slots the drafter writes from the anchor on.
        reserved: rows that vLLM 0.32 took from the target's budget per scheduled request (`shared`).
        has_context_rows: the target's step turns hidden states of its Q rows into drafter KV (DFlash, DSpark).
    """

    method: str
    carries_target_rows: bool
    extra_query_rows: LinearRows
    lookahead: LinearRows
    reserved: LinearRows
    has_context_rows: bool = False

    def draft_query_rows(self, num_target_rows: int, num_draft_tokens: int) -> int:
        """Rows of the drafter's largest pass for one request; with K = 0 only carried rows remain."""
        carried = num_target_rows if self.carries_target_rows else 0
        return carried + (self.extra_query_rows(num_draft_tokens) if num_draft_tokens > 0 else 0)

    def context_rows(self, num_target_rows: int) -> int:
        """Target rows whose hidden states become drafter KV in the target's own step; bounded by B."""
        return num_target_rows if self.has_context_rows else 0

    def lookahead_slots(self, num_draft_tokens: int) -> int:
        """KV slots written from the anchor's position on when the request drafts K tokens; 0 when it does not."""
        return self.lookahead(num_draft_tokens) if num_draft_tokens > 0 else 0

    def reserved_slots(self, num_draft_tokens: int) -> int:
        """Rows a scheduled request also costs in the target's budget under `shared`."""
        return self.reserved(num_draft_tokens) if num_draft_tokens > 0 else 0

    def default_draft_capacity(self, max_num_batched_tokens: int, max_num_seqs: int, num_draft_tokens: int) -> int:
        """D when the user names none: the drafter's pass is never short (design 3)."""
        extra = max_num_seqs * (self.extra_query_rows(num_draft_tokens) if num_draft_tokens > 0 else 0)
        return extra + (max_num_batched_tokens if self.carries_target_rows else 0)


@dataclass(frozen=True, slots=True)
class DraftCostTable:
    """A layout's answers for every K up to the configured one, looked up once per request and step.

    Attributes:
        extra_rows: `[k]` = draft query rows beside carried ones. lookahead_slots: `[k]` = KV slots from the anchor on.
    """

    extra_rows: tuple[int, ...]
    lookahead_slots: tuple[int, ...]

    @classmethod
    def of(cls, layout: DraftLayout, num_speculative_tokens: int) -> DraftCostTable:
        """Ask the layout for k = 0 … K."""
        counts = range(num_speculative_tokens + 1)
        return cls(
            tuple(layout.draft_query_rows(0, k) for k in counts), tuple(layout.lookahead_slots(k) for k in counts)
        )


def _rows(per_draft: int, constant: int) -> LinearRows:
    return LinearRows(per_draft, constant)


LAYOUTS: dict[str, DraftLayout] = {
    layout.method: layout
    for layout in (
        DraftLayout("ngram", False, _rows(0, 0), _rows(0, 0), _rows(0, 0)),
        DraftLayout("suffix", False, _rows(0, 0), _rows(0, 0), _rows(0, 0)),
        DraftLayout("eagle3", True, _rows(0, 0), _rows(1, -1), _rows(0, 0)),
        DraftLayout("mtp", True, _rows(0, 0), _rows(1, -1), _rows(0, 0)),
        DraftLayout("draft_model", True, _rows(0, 1), _rows(1, 0), _rows(0, 1)),
        DraftLayout("p_eagle", True, _rows(1, -1), _rows(1, -1), _rows(1, -1)),
        DraftLayout("pard", True, _rows(1, 0), _rows(1, 0), _rows(1, 0)),
        DraftLayout("dflash", False, _rows(1, 1), _rows(1, 1), _rows(1, 0), has_context_rows=True),
        DraftLayout("dspark", False, _rows(1, 0), _rows(1, 0), _rows(1, -1), has_context_rows=True),
        DraftLayout("dspark_fill_in", False, _rows(1, 1), _rows(1, 1), _rows(1, -1), has_context_rows=True),
    )
}
NO_LAYOUT = LAYOUTS["ngram"]


def layout_for(speculative: SpeculativeSettings | None) -> DraftLayout:
    """The layout whose budgets these settings obey. Raises SettingError for a name that is not in LAYOUTS."""
    if speculative is None:
        return NO_LAYOUT
    name = speculative.layout_name
    if name not in LAYOUTS:
        raise SettingError(
            f"--speculative-config: layout {speculative.layout!r} is not known; choose one of {', '.join(LAYOUTS)}"
        )
    return LAYOUTS[name]
