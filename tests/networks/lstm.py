"""A recurrent network."""

from __future__ import annotations

from torch import Tensor, nn


class LstmTagger(nn.Module):
    """A tag for each token."""

    def __init__(self, *, vocabulary: int, dim: int, hidden: int, depth: int, tags: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.lstm = nn.LSTM(dim, hidden, num_layers=depth, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, tags)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.lstm(self.embedding(ids))[0])


def lstm_tagger(
    *, vocabulary: int = 1000, dim: int = 64, hidden: int = 64, depth: int = 1, tags: int = 9
) -> LstmTagger:
    return LstmTagger(vocabulary=vocabulary, dim=dim, hidden=hidden, depth=depth, tags=tags)
