"""The LSTM with attention in float64 NumPy (Bahdanau 2015, See 2017, Paulus 2018, each et al.).

One sentence at a time, without padding. A model gives the weights.

Shapes: S source length, T target length, U units, V vocabulary.
"""

from typing import Any

import numpy as np
from transformer_oracle import Answer, Array, affine, float64, sigmoid, softmax


def lstm_step(layer: Any, x: Array, hidden: Array, cell: Array) -> Any:
    z = affine(layer.projection, x) + hidden @ float64(layer.recurrent_kernel)
    i, f, g, o = np.split(z, 4)
    cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(cell), cell


def read_source(model: Any, source: Any) -> Any:
    """Returns H [S, 2 U] and the decoder's first states."""
    encoder = model.encoder
    x = float64(model.source_embedding.table)[source] * np.sqrt(model.config.model_dim)
    states = []
    for layer in range(model.config.num_layers):
        outputs, last = [], []
        for lstm in (encoder.forwards[layer], encoder.backwards[layer]):
            hidden = cell = np.zeros(encoder.units)
            rows = []
            for row in x[::-1] if lstm.backwards else x:
                hidden, cell = lstm_step(lstm, row, hidden, cell)
                rows.append(hidden)
            outputs.append(np.array(rows[::-1] if lstm.backwards else rows))
            last.append((hidden, cell))
        x = np.concatenate(outputs, axis=1)
        bridges = encoder.hidden_bridges[layer], encoder.cell_bridges[layer]
        joined = [np.concatenate(part) for part in zip(*last, strict=True)]
        states.append([np.maximum(affine(b, j), 0) for b, j in zip(bridges, joined, strict=True)])
    return x, states


def answer(model: Any, source: Any, target: Any) -> Answer:
    """Returns what the model says of one sentence pair without padding."""
    config, decoder = model.config, model.decoder
    memory, states = read_source(model, source)
    keys = affine(decoder.memory_projection, memory)
    hiddens, logits, weights = [], [], []
    past_weights = np.zeros((len(target), len(target)))
    for time, token in enumerate(target):
        x = float64(model.target_embedding.table)[token] * np.sqrt(config.model_dim)
        for layer, lstm in enumerate(decoder.layers):
            states[layer] = lstm_step(lstm, x, *states[layer])
            x = states[layer][0]
        hidden = np.tanh(keys + affine(decoder.query_projection, x))
        weights.append(softmax(affine(decoder.vector, hidden)[:, 0]))
        parts = [x, weights[-1] @ memory]
        if config.intra_decoder_attention:
            earlier = np.array(hiddens)
            if time:
                past_weights[time, :time] = softmax(earlier @ affine(decoder.intra_query, x))
            parts.append(past_weights[time, :time] @ earlier if time else np.zeros_like(x))
        hiddens.append(x)
        output = affine(decoder.output_projection, np.concatenate(parts))
        if model.projection is None:
            logits.append(output @ float64(model.target_embedding.table).T)
        else:
            logits.append(affine(model.projection, output))
    bias = 0 if model.output_bias is None else float64(model.output_bias)
    heads = {"cross": np.array(weights)[None, None]}
    if config.intra_decoder_attention:
        heads["decoder"] = past_weights[None, None]
    return Answer(np.array(logits) + bias, heads, {}, np.array(weights))
