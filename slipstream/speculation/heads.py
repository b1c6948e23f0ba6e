"""What runs draft by draft: Markov heads, the confidence head, and the loop that draws a block with them.

Source: DSpark (arXiv 2607.05147). A Markov head adds a bias to a draft's logits that depends on the draft before, so
that drafts computed in parallel fit together. With e = w1[previous token] (target ids) and h the row's hidden state:
vanilla: w2 e. gated: w2 (sigmoid(Wg [h; e] + b) * e). rnn: (g, c, o) = Wj [s; e; h] + b;
s <- sigmoid(g) * s + (1 - sigmoid(g)) * tanh(c), which starts at 0; bias w2 tanh(o).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from slipstream.kernels.packing import pack_weight
from slipstream.kernels.protocol import RowKernels
from slipstream.speculation.drafter_config import DrafterConfig, MarkovKind

Step = tuple[Tensor, Tensor]
"""What w2 is applied to, and the next state; both [N, rank]."""


def embedding_table(num_rows: int, width: int) -> nn.Embedding:
    """An embedding [num_rows, width] to be trained or loaded.

    On the meta device nn.Embedding's own first values would make PyTorch import its compiler, which takes seconds and
    100 MB for nothing.
    """
    weight = torch.empty(num_rows, width)
    if not weight.is_meta:
        return nn.Embedding(num_rows, width)
    table: nn.Embedding = nn.Embedding.from_pretrained(weight, freeze=False)  # type: ignore[no-untyped-call]
    return table


class MarkovHead(nn.Module):
    """The vanilla head, and what all kinds share. Rank r, draft vocabulary V_d, rows N."""

    def __init__(self, config: DrafterConfig, kernels: RowKernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.rank = config.markov_rank
        self.markov_w1 = embedding_table(config.vocab_size, self.rank)
        self.markov_w2 = nn.Linear(self.rank, config.draft_vocab_size, bias=False)
        self._product: Callable[[Tensor], Tensor] | None = None

    def pack(self) -> None:
        """Lay out the weights for inference."""
        packed = pack_weight(self.markov_w2.weight.detach())
        self.run_by(lambda features: self.kernels.linear(features, packed))

    def run_by(self, product: Callable[[Tensor], Tensor]) -> None:
        """Let another multiply by w2, for inference: [N, r] to [N, V_d]."""
        self._product = product

    def embed(self, previous: Tensor) -> Tensor:
        """Embedding of the tokens before (target ids [...]): [..., r]."""
        return functional.embedding(previous, self.markov_w1.weight)

    def start(self, like: Tensor) -> Tensor:
        """The state before a block's first draft, for embeddings `like` [N, r]."""
        return torch.zeros_like(like)

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor) -> Step:
        """From e [N, r], h [N, d] and the state to what `bias` takes, and the next state."""
        return embedded, state

    def bias(self, features: Tensor) -> Tensor:
        """[N, r] to logit biases [N, V_d]."""
        if self._product is not None:
            return self._product(features)
        return self.kernels.linear(features, self.markov_w2.weight)

    def teacher_forced_features(self, previous: Tensor, hidden: Tensor) -> Tensor:
        """What `bias` takes, of whole blocks whose tokens are known: previous [N, K], hidden [N, K, d] to [N, K, r]."""
        embedded = self.embed(previous)
        state, features = self.start(embedded[:, 0]), []
        for k in range(previous.shape[1]):
            feature, state = self.step(embedded[:, k], hidden[:, k], state)
            features.append(feature)
        return torch.stack(features, dim=1)

    def teacher_forced(self, previous: Tensor, hidden: Tensor) -> Tensor:
        """Biases of the same blocks: [N, K, V_d]."""
        features = self.teacher_forced_features(previous, hidden)
        return self.bias(features.flatten(0, 1)).view(*previous.shape, -1)


class GatedMarkovHead(MarkovHead):
    """The hidden state decides how much of the previous token counts."""

    def __init__(self, config: DrafterConfig, kernels: RowKernels) -> None:
        super().__init__(config, kernels)
        self.gate_proj = nn.Linear(config.hidden_size + self.rank, self.rank)

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor) -> Step:
        """See MarkovHead."""
        gate = _apply(self.gate_proj, torch.cat((hidden, embedded), dim=-1), self.kernels).sigmoid()
        return gate * embedded, state


class RnnMarkovHead(MarkovHead):
    """A recurrent state carries more than the one token before."""

    def __init__(self, config: DrafterConfig, kernels: RowKernels) -> None:
        super().__init__(config, kernels)
        self.joint_proj = nn.Linear(2 * self.rank + config.hidden_size, 3 * self.rank)

    def step(self, embedded: Tensor, hidden: Tensor, state: Tensor) -> Step:
        """See MarkovHead."""
        joint = _apply(self.joint_proj, torch.cat((state, embedded, hidden), dim=-1), self.kernels)
        gate, candidate, output = joint.chunk(3, dim=-1)
        gate = gate.sigmoid()
        return output.tanh(), gate * state + (1 - gate) * candidate.tanh()


def _apply(projection: nn.Linear, x: Tensor, kernels: RowKernels) -> Tensor:
    return kernels.linear(x, projection.weight, projection.bias)


MARKOV_HEADS: dict[MarkovKind, type[MarkovHead]] = {
    MarkovKind.VANILLA: MarkovHead,
    MarkovKind.GATED: GatedMarkovHead,
    MarkovKind.RNN: RnnMarkovHead,
}


class ConfidenceHead(nn.Module):
    """Logit of the chance that a draft is accepted given that those before are; it never sees the draft itself."""

    def __init__(self, config: DrafterConfig, kernels: RowKernels) -> None:
        super().__init__()
        self.kernels = kernels
        self.with_markov = config.confidence_with_markov
        width = config.hidden_size + (config.markov_rank if self.with_markov else 0)
        self.proj = nn.Linear(width, 1)

    def forward(self, hidden: Tensor, embedded: Tensor | None) -> Tensor:
        """h [N, d] and e [N, r] (of the previous token; read if `with_markov`) to logits [N], in float32."""
        if self.with_markov:
            assert embedded is not None
            hidden = torch.cat((hidden, embedded), dim=-1)
        return self.kernels.linear(hidden.float(), self.proj.weight.float(), self.proj.bias.float()).squeeze(-1)


@dataclass(frozen=True, slots=True)
class DraftedBlocks:
    """Drafts of R requests.

    Attributes:
        token_ids: target ids, int64 [R, K].
        confidence_logits: float32 [R, K] before calibration; None without a confidence head.
        logits: what the drafts were drawn from, before the temperature, float32 [R, K, V_d]; None unless asked for.
    """

    token_ids: Tensor
    confidence_logits: Tensor | None
    logits: Tensor | None = None


Choose = Callable[[int, Tensor], Tensor]
"""(draft number from 0, logits [R, V_d]) -> chosen tokens as target ids, int64 [R]."""


def draw_blocks(
    base_logits: Tensor,
    hidden: Tensor,
    anchors: Tensor,
    choose: Choose,
    markov: MarkovHead | None,
    confidence: ConfidenceHead | None,
    *,
    keep_logits: bool = False,
) -> DraftedBlocks:
    """Draw K drafts for each of R requests, one position after the other.

    Args:
        base_logits: [R, K, V_d]. hidden: of the same rows, after the final norm, [R, K, d].
        anchors: newest committed tokens, target ids, int64 [R].
    """
    previous = anchors
    state: Tensor | None = None
    token_ids: list[Tensor] = []
    scores: list[Tensor] = []
    kept: list[Tensor] = []
    for k in range(base_logits.shape[1]):
        logits, row, embedded = base_logits[:, k].float(), hidden[:, k], None
        if markov is not None:
            embedded = markov.embed(previous)
            features, state = markov.step(embedded, row, markov.start(embedded) if state is None else state)
            logits = logits + markov.bias(features)
        if confidence is not None:
            scores.append(confidence(row, embedded))
        previous = choose(k, logits)
        token_ids.append(previous)
        if keep_logits:
            kept.append(logits)
    return DraftedBlocks(
        torch.stack(token_ids, dim=1),
        torch.stack(scores, dim=1) if scores else None,
        torch.stack(kept, dim=1) if kept else None,
    )
