"""The recurrent model as PyTorch's users write it: `torch.nn.LSTM` with additive attention.

Shapes: B batch, S source length, T target length, D model dimension, U units, V vocabulary.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import rnn

from keras_transformer.config import PAD_ID, RecurrentConfig


class TorchRecurrent(nn.Module):
    """A bidirectional LSTM and one that attends to it, as `RecurrentModel` without its options."""

    def __init__(self, config: RecurrentConfig) -> None:
        super().__init__()
        self.dim, units, layers = config.model_dim, config.hidden_dim, config.num_layers
        self.embedding = nn.Embedding(config.vocabulary_size, self.dim)
        nn.init.normal_(self.embedding.weight, std=self.dim**-0.5)
        self.dropout = nn.Dropout(config.dropout)
        options = dict(batch_first=True, dropout=config.dropout if layers > 1 else 0.0)
        self.encoder = nn.LSTM(self.dim, units, layers, bidirectional=True, **options)
        self.decoder = nn.LSTM(self.dim, units, layers, **options)
        self.bridges = nn.ModuleList(nn.Linear(2 * units, units) for _ in range(2 * layers))
        width = config.attention_dim or units
        self.keys = nn.Linear(2 * units, width, bias=False)
        self.query = nn.Linear(units, width)
        self.vector = nn.Linear(width, 1, bias=False)
        self.output = nn.Linear(3 * units, self.dim)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Returns logits [B, T, V] for ids [B, S] and [B, T]."""
        is_padding = source == PAD_ID
        memory, state = self._encode(source, is_padding)
        hidden, _ = self.decoder(self._embed(target), state)
        hidden = self.dropout(hidden)  # [B, T, U]
        joined = torch.tanh(self.query(hidden)[:, :, None] + self.keys(memory)[:, None])
        scores = self.vector(joined).squeeze(-1)  # [B, T, S]
        weights = scores.masked_fill(is_padding[:, None], -math.inf).softmax(-1)
        context = weights @ memory  # [B, T, 2 U]
        output = self.dropout(self.output(torch.cat([hidden, context], -1)))
        return functional.linear(output, self.embedding.weight)

    def _encode(self, source: Tensor, is_padding: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Returns the memory [B, S, 2 U], and the decoder's first state, [layers, B, U] each."""
        lengths = (~is_padding).sum(1)
        embedded = self._embed(source)
        if is_padding.any():
            packed = rnn.pack_padded_sequence(
                embedded, lengths, batch_first=True, enforce_sorted=False
            )
            packed, states = self.encoder(packed)
            memory, _ = rnn.pad_packed_sequence(
                packed, batch_first=True, total_length=source.shape[1]
            )
        else:
            memory, states = self.encoder(embedded)
        ends = [torch.cat([*pair], -1) for state in states for pair in state.split(2)]
        firsts = [bridge(end).relu() for bridge, end in zip(self.bridges, ends, strict=True)]
        hidden, cell = torch.stack(firsts).chunk(2)
        return self.dropout(memory), (hidden, cell)

    def _embed(self, ids: Tensor) -> Tensor:
        vectors: Tensor = self.embedding(ids) * math.sqrt(self.dim)
        return self.dropout(vectors)
