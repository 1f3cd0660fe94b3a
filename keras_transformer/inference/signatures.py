"""What an exported model answers: a function of the graph for each signature.

serving_default     text to its translations
translate_options   text, and what each sentence constraints, to its translations
score               text and a translation of it to the translation's log-probability
tokens              tokens to the tokens of their translations
attention           text and a translation of it to what the decoder attends to

Dimension 0 of every input and output is the batch, as servers that merge requests need it, and
what a row gets does not depend on the others; more columns may stand behind it as padding.

Shapes: B sentences, S source length, T target length, both with EOS; N translations a sentence,
L their longest length, V vocabulary.
"""

import functools
from typing import Any

import tensorflow as tf

from keras_transformer.client.alignment import WORD_START
from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from keras_transformer.decoding import Tensor
from keras_transformer.inference.translator import Translator, with_eos
from keras_transformer.text import Tokenizer, Vocabulary

# Of a request to `score` at once: half a gigabyte. The attention of many long rows may take more.
_MOST_LOGITS = 1 << 27


def make_signatures(translator: Translator) -> dict[str, Any]:
    """Returns the functions to export, traced, by name; `inputs_of` tells what they take.

    They use the translator's variables: a SavedModel of them must have the translator as root.

    Example:
        >>> score = make_signatures(translator)["score"]
        >>> score(source=tf.constant(["two"]), target=tf.constant(["zwei"]))["scores"]  # [B]
    """
    names = ["serving_default", "translate_options", "score", "tokens"]
    if _shows_attention(translator):
        names.append("attention")
    return {name: make_signature(translator, name) for name in names}


def make_signature(translator: Translator, name: str) -> Any:
    """Returns one of the functions of `make_signatures`, traced.

    Raises:
        KeyError: there is none of this name.
    """
    if name == "attention" and not _shows_attention(translator):
        raise KeyError(name)
    pair = {side: _text(side) for side in ("source", "target")}
    ids = tf.TensorSpec([None, None], tf.int32, name="source")
    if name == "serving_default":
        return translator.__call__.get_concrete_function()
    answer, inputs = {
        "translate_options": (
            translator.translate_options,
            {"text": _text("text"), **translator.option_inputs()},
        ),
        "score": (functools.partial(score, translator), pair),
        "tokens": (functools.partial(translate_tokens, translator), {"source": ids}),
        "attention": (functools.partial(attention, translator), pair),
    }[name]
    return tf.function(answer, autograph=False).get_concrete_function(**inputs)


def _shows_attention(translator: Translator) -> bool:
    return hasattr(translator.model, "attention")  # not every kind of model has one to show


def inputs_of(function: Any) -> dict[str, tf.TensorSpec]:
    """Returns what one of these functions takes, by name."""
    positional, keywords = function.structured_input_signature
    return {spec.name: spec for spec in [*positional, *keywords.values()]}


def score(translator: Translator, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Returns how probable the translations `target` of the sentences `source` are.

    Both are text [B]. Of each only as many tokens are read as a translator reads and writes.

    Returns:
        "token_scores", float32 [B, T], the natural logarithms of the probabilities of the
        target's tokens, EOS included, then 0; "scores", float32 [B], their sums; "lengths",
        int32 [B], tokens with EOS.
    """
    inputs, labels = _read_pair(translator, source, target)
    model = translator.model
    num_rows, length = tf.unstack(tf.shape(labels))
    vocabulary_size = translator.target_tokenizer.vocabulary.size
    at_once = tf.maximum(_MOST_LOGITS // (tf.maximum(length, 1) * vocabulary_size), 1)

    def go_on(first: Tensor, token_scores: Tensor) -> tuple[Tensor, Tensor]:
        rows = slice(first, first + at_once)
        logits = model.call({name: ids[rows] for name, ids in inputs.items()}, training=False)
        # The logarithm of the softmax at the labels only: [B, T, V] is written once less.
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels[rows], tf.cast(logits, tf.float32)
        )
        return first + at_once, tf.concat([token_scores, -losses], axis=0)

    _, token_scores = tf.while_loop(
        lambda first, _: first < num_rows,
        go_on,
        (tf.constant(0), tf.zeros([0, length])),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
    )
    is_real = labels != PAD_ID
    token_scores = tf.where(is_real, token_scores, 0.0)  # [B, T]
    return {
        "scores": tf.reduce_sum(token_scores, axis=1),
        "token_scores": token_scores,
        "lengths": tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1),
    }


def attention(translator: Translator, source: Tensor, target: Tensor) -> dict[str, Tensor]:
    """Returns which source tokens each token of the translations `target` is made from.

    Returns:
        "attention", float32 [B, T, S]: row t has the weights with which the decoder's last
        layer, in the mean of its heads, reads the source to predict the target's token t;
        they add up to 1, or to 0 behind the target's end. "source_pieces", string [B, S], and
        "target_pieces", string [B, T]: the tokens as text, then "".
    """
    inputs, labels = _read_pair(translator, source, target)
    model: Any = translator.model  # one that shows it
    weights = model.attention(inputs)  # [B, T, S]
    is_real = (labels != PAD_ID)[:, :, None]
    return {
        "attention": tf.where(is_real, tf.cast(weights, tf.float32), 0.0),
        "source_pieces": _pieces(translator.source_tokenizer.vocabulary, inputs["source"]),
        "target_pieces": _pieces(translator.target_tokenizer.vocabulary, labels),
    }


def translate_tokens(translator: Translator, source: Tensor) -> dict[str, Tensor]:
    """Translates ids [B, S] of the source's vocabulary, EOS at the end of each row.

    What follows a row's first EOS is not read. So any padding will do: a server that merges
    requests of different lengths fills rows up with copies of the first id. No row is refused,
    since it may share its batch with those of others: one without EOS, of which it cannot be told
    from its padding, is not translated, and an id outside the vocabulary is the unknown token.

    Returns:
        "ids", int32 [B, N, L], of the target's vocabulary, best translation first, EOS
        included, then PAD; "lengths", int32 [B, N], tokens with EOS; "scores", float32
        [B, N]. A row without EOS, or of nothing else, has translations of length 0 and score 0.
    """
    content = _content(source, translator.source_tokenizer.vocabulary.size)
    tokens = content[:, : translator.search.max_source_length]
    hypotheses = translator.search_tokens(tokens)
    is_blank = (tokens.row_lengths() == 0)[:, None]  # [B, 1]
    return {
        "ids": tf.where(is_blank[:, :, None], PAD_ID, hypotheses.ids),
        "lengths": tf.where(is_blank, 0, hypotheses.lengths),
        "scores": tf.where(is_blank, 0.0, hypotheses.scores),
    }


def _text(name: str) -> tf.TensorSpec:
    return tf.TensorSpec([None], tf.string, name=name)


def _read_pair(
    translator: Translator, source: Tensor, target: Tensor
) -> tuple[dict[str, Tensor], Tensor]:
    """Returns a model's inputs, "source" [B, S] and "target" [B, T], and the labels [B, T]."""
    search = translator.search
    is_paired = tf.debugging.Assert(
        tf.size(source) == tf.size(target), ["source and target must have as many rows"]
    )
    with tf.control_dependencies([is_paired]):
        source_ids = _tokenize(translator.source_tokenizer, source, search.max_source_length)
        # No limit of its own, but that of the longest translation of the longest source.
        limit = search.max_source_length + search.max_extra_length
        labels = _tokenize(translator.target_tokenizer, target, limit)
    starts = tf.fill([tf.shape(labels)[0], 1], BOS_ID)
    shifted = tf.concat([starts, labels], axis=1)[:, :-1]
    return {"source": source_ids, "target": shifted}, labels


def _tokenize(tokenizer: Tokenizer, text: Tensor, limit: int) -> Tensor:
    """Returns the ids of text [B], at most `limit` a sentence, EOS and padding: int32 [B, S]."""
    return with_eos(tokenizer.tokenize(text)[:, :limit])


def _content(source: Tensor, vocabulary_size: int) -> tf.RaggedTensor:
    """Returns the ids of each row of a source [B, S] before its EOS, int32 [B, (length)].

    None where there is no EOS: it does not show where the padding begins.
    """
    is_eos = source == EOS_ID
    has_eos = tf.reduce_any(is_eos, axis=1, keepdims=True)  # [B, 1]
    is_read = has_eos & (tf.cumsum(tf.cast(is_eos, tf.int32), axis=1) == 0)  # [B, S]
    is_known = (source > PAD_ID) & (source < vocabulary_size)
    lengths = tf.reduce_sum(tf.cast(is_read, tf.int32), axis=1)  # [B]
    return tf.RaggedTensor.from_tensor(tf.where(is_known, source, UNK_ID), lengths)


def _pieces(vocabulary: Vocabulary, ids: Tensor) -> Tensor:
    """Returns the tokens with these ids as text, of any shape; padding is the empty string.

    Where all tokens are words, the unknown one begins a word as well.
    """
    pieces = vocabulary.pieces(range(vocabulary.size))
    pieces[PAD_ID] = ""
    if all(piece.startswith(WORD_START) for piece in pieces[EOS_ID + 1 :]):
        pieces[UNK_ID] = WORD_START + pieces[UNK_ID]
    return tf.gather(tf.constant(pieces), ids)
