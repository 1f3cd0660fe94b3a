"""A really trained Transformer, whose answers another engine (CTranslate2) has written down.

500 Arabic words with forced log-probabilities, attention, and translations into Latin letters by a
beam of 4.
"""

import json
import pathlib
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID, TransformerConfig
from keras_transformer.models import Transformer
from keras_transformer.search import Hypotheses, beam_search

PAD, BOS, EOS, UNK = 0, 1, 2, 3  # <blank>, <s>, </s>, <unk>

CONFIG = TransformerConfig(
    vocabulary_size=51, target_vocabulary_size=43, num_layers=6, model_dim=32, feed_forward_dim=128,
    num_heads=8, share_embeddings="none", norm_position="pre", norm_epsilon=1e-5,
    positions="concatenated", first_position=1, attention_bias=True, output_bias=True,
)  # fmt: skip


class Oracle(NamedTuple):
    """The data: the model with the trained weights, its letters, and what is expected."""

    model: Transformer
    letters: list[str]  # of the target
    items: list[dict[str, Any]]
    source: np.ndarray  # [500, S]


@pytest.fixture(scope="module")
def oracle(sample_model) -> Oracle:
    folder = sample_model("transliteration")
    items = json.loads((folder / "oracle.json").read_text("utf-8"))["items"]
    source_letters = read_vocabulary(folder / "source_vocabulary.txt")
    target_letters = read_vocabulary(folder / "target_vocabulary.txt")
    source = pad([[source_letters.index(letter) for letter in item["src"]] for item in items])
    model = Transformer(CONFIG)
    load_weights(model, dict(np.load(folder / "weights_float32.npz")))
    return Oracle(model, target_letters, items, source)


def read_vocabulary(path: pathlib.Path) -> list[str]:
    return path.read_text("utf-8").split("\n")


def pad(rows: list[list[int]]) -> np.ndarray:
    result = np.full((len(rows), max(map(len, rows))), PAD, "int32")
    for padded, row in zip(result, rows, strict=True):
        padded[: len(row)] = row
    return result


def load_weights(model: Transformer, weights: dict[str, np.ndarray]) -> None:
    """Gives the model the weights, whose matrices are [out, in]; every one must find its place."""

    def dense(layer: Any, name: str) -> None:
        layer.kernel.assign(weights.pop(f"{name}.weight").T)
        layer.bias.assign(weights.pop(f"{name}.bias"))

    def norm(layer: Any, name: str) -> None:
        layer.gain.assign(weights.pop(f"{name}.gamma"))
        layer.bias.assign(weights.pop(f"{name}.beta"))

    for side, stack in (("encoder", model.encoder), ("decoder", model.decoder)):
        for index, layer in enumerate(stack.layers):
            name = f"{side}.layer_{index}"
            norm(layer.self_attention_norm, f"{name}.self_attention.layer_norm")
            dense(layer.self_attention.projection, f"{name}.self_attention.linear_0")
            dense(layer.self_attention.output_projection, f"{name}.self_attention.linear_1")
            if side == "decoder":
                norm(layer.cross_attention_norm, f"{name}.attention.layer_norm")
                dense(layer.cross_attention.query_projection, f"{name}.attention.linear_0")
                dense(layer.cross_attention.memory_projection, f"{name}.attention.linear_1")
                dense(layer.cross_attention.output_projection, f"{name}.attention.linear_2")
            norm(layer.feed_forward_norm, f"{name}.ffn.layer_norm")
            dense(layer.feed_forward.inner, f"{name}.ffn.linear_0")
            dense(layer.feed_forward.outer, f"{name}.ffn.linear_1")
        norm(stack.final_norm, f"{side}.layer_norm")
    model.source_embedding.table.assign(weights.pop("encoder.embeddings.weight"))
    model.target_embedding.table.assign(weights.pop("decoder.embeddings.weight"))
    model.projection.kernel.assign(weights.pop("decoder.projection.weight").T)
    model.output_bias.assign(weights.pop("decoder.projection.bias"))
    assert not weights


def search(oracle: Oracle, beam_size: int) -> Hypotheses:
    """Searches as the oracle did: EOS is not the first token. Its tokens have their own ids.

    CTranslate2 decodes at least one token by default. It takes EOS out before the softmax, so
    that the others share its probability.
    """

    ids_of_oracle = np.arange(CONFIG.target_size)
    ids_of_oracle[[PAD_ID, UNK_ID, BOS_ID, EOS_ID]] = PAD, UNK, BOS, EOS

    def step(ids, state):
        is_first = state.time == 0
        logits, state = oracle.model.step(tf.gather(ids_of_oracle, ids), state)
        is_eos = tf.range(logits.shape[-1]) == EOS
        logits = tf.where(is_first & is_eos, -1e9, logits)
        return tf.gather(logits, ids_of_oracle, axis=2), state

    @tf.function
    def run(source):
        hypotheses = beam_search(
            step, oracle.model.encode(source, num_hypotheses=beam_size),
            max_lengths=tf.fill([len(oracle.items)], 30), beam_size=beam_size,
            num_translations=beam_size, length_penalty=0.0,
        )  # fmt: skip
        return hypotheses._replace(ids=tf.gather(ids_of_oracle, hypotheses.ids))

    return Hypotheses(*(np.asarray(each) for each in run(tf.constant(oracle.source))))


def spell(oracle: Oracle, ids: np.ndarray) -> str:
    return "".join(oracle.letters[token] for token in ids if token not in (PAD, EOS))


def tokens_of(oracle: Oracle, text: str) -> list[int]:
    return [oracle.letters.index(letter) for letter in text] + [EOS]


def test_forced_log_probabilities_are_the_oracles(oracle):
    forced = [item["forced_tokens"] for item in oracle.items]
    tokens = [[oracle.letters.index(token) for token in tokens] for tokens in forced]
    target = pad([[BOS, *row[:-1]] for row in tokens])
    logits = oracle.model({"source": oracle.source, "target": target})
    log_probs = np.asarray(tf.nn.log_softmax(tf.cast(logits, tf.float64)))
    for row, ids, item in zip(log_probs, tokens, oracle.items, strict=True):
        found = row[np.arange(len(ids)), ids]
        np.testing.assert_allclose(found, item["forced_log_probs"], rtol=0, atol=1e-4)


def test_the_attention_of_the_best_translations_is_the_oracles(oracle):
    best = [tokens_of(oracle, item["beam4"][0][0]) for item in oracle.items]
    target = pad([[BOS, *tokens[:-1]] for tokens in best])
    weights = oracle.model.attention_weights({"source": oracle.source, "target": target})
    ours = np.asarray(weights["cross"][-1][:, 0])
    for item, source, found in zip(oracle.items, oracle.source, ours, strict=True):
        theirs = np.array(item["attention_best"])
        # Not the first rows: beam search's in the oracle are those of no head of any layer.
        found = found[1 : len(theirs), source != PAD]
        np.testing.assert_allclose(found, theirs[1:], rtol=0, atol=1e-4)


def test_beam_search_finds_the_oracles_best_and_its_scores(oracle):
    found, shared = search(oracle, 4), 0
    for ids, scores, item in zip(found.ids, found.scores, oracle.items, strict=True):
        texts = [spell(oracle, row) for row in ids]
        assert texts[0] == item["beam4"][0][0]
        ours, theirs = dict(zip(texts, scores, strict=True)), dict(item["beam4"])
        for text in ours.keys() & theirs.keys():
            assert abs(ours[text] - theirs[text]) < 1e-4
            shared += 1
        # Where the lists differ, ours is the better one, place by place.
        assert (scores >= np.array([score for _, score in item["beam4"]]) - 1e-4).all()
    assert shared > 0.95 * 4 * len(oracle.items)
