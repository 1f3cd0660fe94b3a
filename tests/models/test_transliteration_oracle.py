"""A really trained Transformer, whose answers another engine (CTranslate2) has written down.

500 Arabic words with forced log-probabilities, attention, and translations into Latin letters by a
beam of 4. Its weights are written as CTranslate2 writes them, and imported.
"""

import json
import struct

import numpy as np
import pytest
import tensorflow as tf
from samples import pad

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID
from keras_transformer.interop import read_model
from keras_transformer.search import beam_search

OPTIONS = {f"{side}/num_heads": np.int16(8) for side in ("encoder", "decoder")}


class Oracle:
    """The model with the trained weights, and what is expected of each word."""

    def __init__(self, foreign, items):
        self.model, self.items = foreign.to_model(), items
        self.letters = [foreign.target.tokens[id_ or 0] for id_ in foreign.target.order]
        letters = [foreign.source.tokens[id_ or 0] for id_ in foreign.source.order]
        self.source = pad([list(map(letters.index, item["src"])) for item in items])  # [500, S]

    def ids_of(self, tokens):
        return [EOS_ID if token == "</s>" else self.letters.index(token) for token in tokens]

    def inputs(self, rows):
        target = pad([[BOS_ID, *row[:-1]] for row in rows])
        return {"source": self.source, "target": target}


def write_model(path, arrays):
    """Writes model.bin: version, name, revision; name, shape, type and bytes of each array."""

    def text(value):
        return struct.pack("<H", len(value) + 1) + value.encode() + b"\0"

    content = struct.pack("<I", 6) + text("TransformerSpec") + struct.pack("<2I", 7, len(arrays))
    for name, array in arrays.items():
        kind = {"float32": 0, "int16": 2}[array.dtype.name]
        content += text(name) + struct.pack(f"<B{array.ndim}I", array.ndim, *array.shape)
        content += struct.pack("<BI", kind, array.nbytes) + array.tobytes()
    path.write_bytes(content + struct.pack("<I", 0))  # no aliases


@pytest.fixture(scope="module")
def oracle(sample_model, tmp_path_factory) -> Oracle:
    sample, folder = sample_model("transliteration"), tmp_path_factory.mktemp("transliteration")
    with np.load(sample / "weights_float32.npz") as file:
        weights = {name.replace(".", "/"): file[name] for name in file}
    weights["encoder/embeddings_0/weight"] = weights.pop("encoder/embeddings/weight")
    write_model(folder / "model.bin", weights | OPTIONS)
    (folder / "config.json").write_text("{}")
    for side in ("source", "target"):
        tokens = (sample / f"{side}_vocabulary.txt").read_text("utf-8").splitlines()
        (folder / f"{side}_vocabulary.json").write_text(json.dumps([*tokens, "<unk>"]))
    items = json.loads((sample / "oracle.json").read_text("utf-8"))["items"]
    return Oracle(read_model(folder), items)


def test_forced_log_probabilities_are_the_oracles(oracle):
    rows = [oracle.ids_of(item["forced_tokens"]) for item in oracle.items]
    log_probs = np.asarray(tf.nn.log_softmax(oracle.model(oracle.inputs(rows))))
    for found, ids, item in zip(log_probs, rows, oracle.items, strict=True):
        found = found[np.arange(len(ids)), ids]
        np.testing.assert_allclose(found, item["forced_log_probs"], rtol=0, atol=1e-4)


def test_the_attention_of_the_best_translations_is_the_oracles(oracle):
    best = [oracle.ids_of([*item["beam4"][0][0], "</s>"]) for item in oracle.items]
    weights = oracle.model.attention_weights(oracle.inputs(best))
    ours = np.asarray(weights["cross"][-1][:, 0])
    for item, source, found in zip(oracle.items, oracle.source, ours, strict=True):
        theirs = np.array(item["attention_best"])
        # Not the first rows: beam search's in the oracle are those of no head of any layer.
        found = found[1 : len(theirs), source != PAD_ID]
        np.testing.assert_allclose(found, theirs[1:], rtol=0, atol=1e-4)


def test_beam_search_finds_the_oracles_best_and_its_scores(oracle):
    def step(ids, state):
        """CTranslate2 takes EOS out before the first softmax: others share its probability."""
        is_first = state.time == 0
        logits, state = oracle.model.step(ids, state)
        is_eos = tf.range(logits.shape[-1]) == EOS_ID
        return tf.where(is_first & is_eos, -1e9, logits), state

    @tf.function
    def search(source):
        state = oracle.model.encode(source, num_hypotheses=4)
        lengths = tf.fill([len(oracle.items)], 30)
        options = dict(beam_size=4, num_translations=4, length_penalty=0.0)
        return beam_search(step, state, max_lengths=lengths, **options)

    found, shared = search(tf.constant(oracle.source)), 0
    for rows, scores, item in zip(
        found.ids.numpy(), found.scores.numpy(), oracle.items, strict=True
    ):
        texts = ["".join(oracle.letters[id_] for id_ in row if id_ > EOS_ID) for row in rows]
        assert texts[0] == item["beam4"][0][0]
        ours, theirs = dict(zip(texts, scores, strict=True)), dict(item["beam4"])
        for text in ours.keys() & theirs.keys():
            assert abs(ours[text] - theirs[text]) < 1e-4
            shared += 1
        # Where the lists differ, ours is the better one, place by place.
        assert (scores >= np.array([score for _, score in item["beam4"]]) - 1e-4).all()
    assert shared > 0.95 * 4 * len(oracle.items)
