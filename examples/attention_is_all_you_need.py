"""The Transformer of "Attention Is All You Need" (Vaswani et al. 2017) in one file of Keras 3.

Attention, layers, positions, learning rate, loss, greedy search and beam search with a cache, under
the paper's headings. Text and vocabulary come from `keras_transformer`, whose own
`Transformer` gives the same logits with the same weights, and adds speed, options and export.

    python examples/attention_is_all_you_need.py                           # names of numbers
    python examples/attention_is_all_you_need.py --multi30k=data/multi30k  # captions

Shapes: B sentences, S source tokens, T target tokens, D model dimension, H heads, K = D / H,
V vocabulary, W hypotheses of the beam. Memory: the encoder's output as a layer's keys and values.
"""

import argparse
import functools
import math
import warnings

import keras
import numpy as np
from keras import layers, ops

from keras_transformer import Seq2SeqPreprocessor, learn_vocabulary
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.data.corpus import FilePair, pad_ids
from keras_transformer.data.datasets import DatasetSplit

warnings.filterwarnings("ignore", "You are using a softmax over axis -1")  # one key in a first step

# The model (3)


class MultiHeadAttention(layers.Layer):
    """Scaled dot-product attention of several heads (3.2)."""

    def __init__(self, model_dim, num_heads, **kwargs):
        super().__init__(**kwargs)
        self.num_heads, self.key_dim = num_heads, model_dim // num_heads
        self.query, self.key, self.value, self.output_projection = (
            layers.Dense(model_dim, use_bias=False) for _ in range(4)
        )

    def split_heads(self, x):
        """Turns [B, T, D] into [B, H, T, K]."""
        x = ops.reshape(x, (-1, ops.shape(x)[1], self.num_heads, self.key_dim))
        return ops.transpose(x, (0, 2, 1, 3))

    def keys_and_values(self, x):
        """Projects the vectors to attend to, x [B, S, D], to keys and values [B, H, S, K]."""
        return self.split_heads(self.key(x)), self.split_heads(self.value(x))

    def call(self, x, keys, values, attention_mask=None):
        """softmax(Q K^T / sqrt(d_k)) V (equation 1), for queries from x [B, T, D].

        The mask broadcasts to [B, H, T, S] and is True where a query may attend.
        """
        query = self.split_heads(self.query(x))
        scores = ops.matmul(query, ops.swapaxes(keys, 2, 3)) / math.sqrt(self.key_dim)
        if attention_mask is not None:
            scores = ops.where(attention_mask, scores, -1e9)  # [B, H, T, S]
        heads = ops.matmul(ops.softmax(scores), values)  # [B, H, T, K]
        merged = ops.reshape(ops.transpose(heads, (0, 2, 1, 3)), ops.shape(x))  # [B, T, D]
        return self.output_projection(merged)


class AddAndNorm(layers.Layer):
    """LayerNorm(x + Dropout(Sublayer(x))), after each sub-layer (3.1, 5.4, Figure 1)."""

    def __init__(self, dropout, **kwargs):
        super().__init__(**kwargs)
        self.dropout = layers.Dropout(dropout)
        self.norm = layers.LayerNormalization(epsilon=1e-6)

    def call(self, x, sublayer_output, training=None):
        return self.norm(x + self.dropout(sublayer_output, training=training))


def feed_forward(model_dim, inner_dim):
    """max(0, x W1 + b1) W2 + b2 (equation 2)."""
    return keras.Sequential([layers.Dense(inner_dim, activation="relu"), layers.Dense(model_dim)])


class EncoderLayer(layers.Layer):
    """Self-attention and feed-forward, each with a residual connection around it (3.1)."""

    def __init__(self, model_dim, inner_dim, num_heads, dropout, **kwargs):
        super().__init__(**kwargs)
        self.attention = MultiHeadAttention(model_dim, num_heads)
        self.feed_forward = feed_forward(model_dim, inner_dim)
        self.add_and_norms = [AddAndNorm(dropout) for _ in range(2)]

    def call(self, x, attention_mask, training=None):
        attended = self.attention(x, *self.attention.keys_and_values(x), attention_mask)
        x = self.add_and_norms[0](x, attended, training=training)
        return self.add_and_norms[1](x, self.feed_forward(x), training=training)


class DecoderLayer(layers.Layer):
    """Masked self-attention, attention to the encoder's output, and feed-forward (3.1)."""

    def __init__(self, model_dim, inner_dim, num_heads, dropout, **kwargs):
        super().__init__(**kwargs)
        self.attention = MultiHeadAttention(model_dim, num_heads)
        self.cross_attention = MultiHeadAttention(model_dim, num_heads)
        self.feed_forward = feed_forward(model_dim, inner_dim)
        self.add_and_norms = [AddAndNorm(dropout) for _ in range(3)]

    def call(self, x, memory, memory_mask, causal_mask=None, cache=None, training=None):
        """Returns the output [B, T, D] and the cache: keys and values of all tokens so far.

        In training x has all tokens, and the causal mask hides those to the right. In a search x
        has the newest token alone; keys and values of those before it come from the cache.
        """
        keys, values = self.attention.keys_and_values(x)
        if cache is not None:
            keys = ops.concatenate([cache[0], keys], axis=2)
            values = ops.concatenate([cache[1], values], axis=2)
        attended = self.attention(x, keys, values, causal_mask)
        x = self.add_and_norms[0](x, attended, training=training)
        attended = self.cross_attention(x, *memory, memory_mask)
        x = self.add_and_norms[1](x, attended, training=training)
        return self.add_and_norms[2](x, self.feed_forward(x), training=training), (keys, values)


def positional_encoding(positions, model_dim):
    """PE(pos, 2i) = sin(pos / 10000^(2i / D)), PE(pos, 2i + 1) = cos(the same) (3.5): [T, D]."""
    rates = 10000.0 ** (-np.arange(0, model_dim, 2) / model_dim)
    angles = ops.cast(positions, "float32")[:, None] * ops.cast(rates, "float32")  # [T, D / 2]
    pairs = ops.stack([ops.sin(angles), ops.cos(angles)], axis=-1)  # [T, D / 2, 2]
    return ops.reshape(pairs, (-1, model_dim))


class Transformer(keras.Model):
    """Encoder and decoder (Figure 1); one matrix embeds both sides and gives the logits (3.4)."""

    def __init__(self, vocabulary_size, num_layers, model_dim, inner_dim, num_heads, dropout=0.1):
        super().__init__()
        self.model_dim = model_dim
        normal = keras.initializers.RandomNormal(stddev=model_dim**-0.5)
        self.embedding = layers.Embedding(vocabulary_size, model_dim, normal)
        self.dropout = layers.Dropout(dropout)
        sizes = model_dim, inner_dim, num_heads, dropout
        self.encoder = [EncoderLayer(*sizes) for _ in range(num_layers)]
        self.decoder = [DecoderLayer(*sizes) for _ in range(num_layers)]

    def embed(self, ids, first_position=0, training=None):
        """Embeddings times sqrt(D), plus positions, with dropout (3.4, 3.5, 5.4)."""
        positions = first_position + ops.arange(ops.shape(ids)[1])
        x = self.embedding(ids) * math.sqrt(self.model_dim)
        x = x + positional_encoding(positions, self.model_dim)
        return self.dropout(x, training=training)

    def encode(self, source, training=None):
        """Returns the memory of each decoder layer, and the mask that hides padding from it."""
        mask = ops.not_equal(source, PAD_ID)[:, None, None, :]  # [B, 1, 1, S]
        x = self.embed(source, training=training)
        for layer in self.encoder:
            x = layer(x, mask, training=training)
        return [layer.cross_attention.keys_and_values(x) for layer in self.decoder], mask

    def decode(self, target, memories, memory_mask, caches=None, training=None):
        """Returns the logits [B, T, V] of the tokens after those of `target`, and the caches."""
        num_cached, causal_mask = 0, None
        if caches is None:
            positions = ops.arange(ops.shape(target)[1])
            causal_mask = positions[:, None] >= positions  # [T, T]; padding follows real tokens
            caches = [None] * len(self.decoder)
        else:
            num_cached = ops.shape(caches[0][0])[2]
        x = self.embed(target, num_cached, training=training)
        new_caches = []
        for layer, memory, cache in zip(self.decoder, memories, caches, strict=True):
            x, cache = layer(x, memory, memory_mask, causal_mask, cache, training=training)
            new_caches.append(cache)
        return ops.matmul(x, ops.transpose(self.embedding.embeddings)), new_caches

    def call(self, inputs, training=None):
        memories, mask = self.encode(inputs["source"], training=training)
        return self.decode(inputs["target"], memories, mask, training=training)[0]


# Training (5)


class Schedule(keras.optimizers.schedules.LearningRateSchedule):
    """lrate = D^-0.5 min(step^-0.5, step warmup_steps^-1.5) (equation 3)."""

    def __init__(self, model_dim, warmup_steps):
        self.model_dim, self.warmup_steps = model_dim, warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32") + 1.0  # Keras counts from 0
        return self.model_dim**-0.5 * ops.minimum(step**-0.5, step * self.warmup_steps**-1.5)


def smoothed_cross_entropy(labels, logits, smoothing=0.1):
    """Cross-entropy with label smoothing (5.4), the mean over all tokens but padding.

    The wanted distribution is (1 - smoothing) one_hot(label) + smoothing / V.
    """
    log_probs = ops.log_softmax(logits)  # [B, T, V]
    picked = ops.take_along_axis(log_probs, ops.cast(labels, "int32")[..., None], axis=-1)
    losses = -(1 - smoothing) * picked[..., 0] - smoothing * ops.mean(log_probs, axis=-1)
    weights = ops.cast(ops.not_equal(labels, PAD_ID), losses.dtype)  # [B, T], 0 for padding
    return ops.sum(losses * weights) / ops.sum(weights)


# Search (6.1)


def greedy_search(model, source, max_length):
    """Takes the most probable token at each step: ids [B, at most max_length], junk after EOS."""
    memories, mask = model.encode(source)
    newest, caches = np.full((len(source), 1), BOS_ID), None
    ids = np.zeros((len(source), 0), int)
    while ids.shape[1] < max_length and not (ids == EOS_ID).any(axis=1).all():
        logits, caches = model.decode(newest, memories, mask, caches)
        newest = ops.convert_to_numpy(ops.argmax(logits, axis=-1))  # [B, 1]
        ids = np.concatenate([ids, newest], axis=1)
    return ids


def beam_search(model, source, max_length, beam_size=4, alpha=0.6):
    """Returns the ids of the best translation of each sentence, EOS included.

    Its score is log P(Y) / ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).
    """
    num_sentences = len(source)
    penalties = ((5 + np.arange(max_length + 1)) / 6) ** alpha  # by length
    repeat_for_beam = functools.partial(ops.repeat, repeats=beam_size, axis=0)  # [B * W, ...]
    memories, mask = keras.tree.map_structure(repeat_for_beam, model.encode(source))
    caches, newest = None, np.full((num_sentences * beam_size, 1), BOS_ID)
    log_probs = np.full((num_sentences, beam_size), -np.inf)
    log_probs[:, 0] = 0.0  # all hypotheses are the same at first
    ids = np.zeros((num_sentences, beam_size, 0), int)
    best_scores, best_ids = np.full(num_sentences, -np.inf), [np.array([EOS_ID])] * num_sentences

    for length in range(1, max_length + 1):
        logits, caches = model.decode(newest, memories, mask, caches)
        next_log_probs = ops.convert_to_numpy(ops.log_softmax(logits[:, -1]))  # [B * W, V]
        next_log_probs = next_log_probs.reshape(num_sentences, beam_size, -1).copy()
        next_log_probs[..., [PAD_ID, BOS_ID]] = -np.inf  # never written
        if length == max_length:  # only EOS
            next_log_probs[..., EOS_ID + 1 :] = next_log_probs[..., :EOS_ID] = -np.inf
        # Each hypothesis has one continuation with EOS: at least W of the best 2 W do not end.
        all_log_probs = (log_probs[..., None] + next_log_probs).reshape(num_sentences, -1)
        order = np.argsort(-all_log_probs, axis=1, kind="stable")[:, : 2 * beam_size]
        parents, new = np.divmod(order, next_log_probs.shape[-1])  # [B, 2 W]
        top_log_probs = np.take_along_axis(all_log_probs, order, axis=1)

        for sentence, rank in zip(*np.nonzero(new[:, :beam_size] == EOS_ID), strict=True):
            score = top_log_probs[sentence, rank] / penalties[length]
            if score > best_scores[sentence]:
                best_scores[sentence] = score
                best_ids[sentence] = np.append(ids[sentence, parents[sentence, rank]], EOS_ID)

        open_ranks = np.argsort(new == EOS_ID, axis=1, kind="stable")[:, :beam_size]
        log_probs = np.take_along_axis(top_log_probs, open_ranks, axis=1)
        parents, new = (np.take_along_axis(each, open_ranks, axis=1) for each in (parents, new))
        if (log_probs[:, 0] / penalties[max_length] <= best_scores).all():
            break  # log-probabilities only fall, and no divisor is larger: none can win
        ids = np.take_along_axis(ids, parents[..., None], axis=1)
        ids = np.concatenate([ids, new[..., None]], axis=2)
        rows = (np.arange(num_sentences)[:, None] * beam_size + parents).reshape(-1)
        # A cache follows its hypothesis; memories stay, the same for all W of a sentence.
        caches = keras.tree.map_structure(functools.partial(ops.take, indices=rows, axis=0), caches)
        newest = new.reshape(-1, 1)
    return best_ids


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--multi30k", help="folder with train.en, train.de, test_2016_flickr.*")
    folder = parser.parse_args().multi30k
    keras.utils.set_random_seed(1)
    if folder is None:
        train, test = (DatasetSplit(name="number_names/en-de", split=s) for s in ("train", "test"))
        vocabulary_size, num_layers, warmup_steps, epochs = 200, 2, 200, 3
    else:
        names = "train", "test_2016_flickr"
        train, test = (FilePair(f"{folder}/{name}.en", f"{folder}/{name}.de") for name in names)
        vocabulary_size, num_layers, warmup_steps, epochs = 8000, 4, 2000, 30
    vocabulary = learn_vocabulary((text for pair in train for text in pair), size=vocabulary_size)
    batches = Seq2SeqPreprocessor(vocabulary).batches(train, batch_tokens=4096)
    model = Transformer(vocabulary.size, num_layers, model_dim=128, inner_dim=256, num_heads=4)
    schedule = Schedule(model_dim=128, warmup_steps=warmup_steps)
    adam = keras.optimizers.Adam(schedule, beta_1=0.9, beta_2=0.98, epsilon=1e-9)  # 5.3
    model.compile(adam, loss=smoothed_cross_entropy)
    model.fit(batches, epochs=epochs, shuffle=False, verbose=2)  # batches are shuffled already
    pairs = [*test][:200]
    ids = pad_ids([[*row, EOS_ID] for row in vocabulary.encode([source for source, _ in pairs])])
    answers = vocabulary.decode(beam_search(model, ids, max_length=60))
    for (source, target), answer in zip(pairs[:5], answers, strict=False):
        print(f"{source}\n    {answer}\n    {target}")
    right = sum(answer == target for (_, target), answer in zip(pairs, answers, strict=True))
    print(f"{right} of {len(pairs)} are equal to the reference")


if __name__ == "__main__":
    main()
