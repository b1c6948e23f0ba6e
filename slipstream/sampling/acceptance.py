"""How often drafts are accepted, in closed form: an oracle for tests, and what the documentation states."""

from __future__ import annotations

from collections.abc import Sequence


def coupled_match_probability(target: Sequence[float], draft: Sequence[float]) -> float:
    """Chance that two Gumbel-max draws with the same noise, from `target` and from `draft`, give the same token.

    match = sum_i 1 / sum_j max(p_j / p_i, q_j / q_i), over tokens i possible in both. Token i wins both draws when
    E_i <= E_j min(p_i / p_j, q_i / q_j) for all j, with E exponential; that minimum over j is exponential too. At least
    (1 - TV) / (1 + TV), where the textbook rejection rule accepts 1 - TV.
    """
    pairs = list(zip(target, draft, strict=True))
    return sum(
        1.0 / sum(max(p_other / p, q_other / q) for p_other, q_other in pairs) for p, q in pairs if p > 0.0 and q > 0.0
    )


def rejection_match_probability(target: Sequence[float], draft: Sequence[float]) -> float:
    """Chance that the textbook rejection rule accepts a draft drawn from `draft`: sum_i min(p_i, q_i) = 1 - TV."""
    return sum(min(p, q) for p, q in zip(target, draft, strict=True))
