"""Turns any output into a tree over the words of its sentence, inside a TensorFlow graph.

Shapes: B sentences, S words of the longest one, N texts of a sentence; R = B * N texts,
T tokens of the longest one.
"""

import tensorflow as tf

from keras_transformer.config import WORD_START


def repair_trees(texts: tf.Tensor, sentences: tf.Tensor) -> tf.Tensor:
    """Returns trees in brackets, with the words of the sentences beside their tags.

    In a tree such as "(S (NP DT NN )NP (VP XX )VP )S" each tag gets its word. Any other text is
    repaired from left to right: a closing bracket closes the innermost open one with its label, and
    all inside it; unmatched closing brackets and surplus words are dropped. Missing words go into
    the innermost bracket that is open at the end, where all open ones are closed. The first bracket
    encloses the rest, and is "(TOP" if the text does not begin with a bracket; empty brackets are
    dropped.

    Args:
        texts: string [B, N].
        sentences: string [B], words separated by spaces.

    Returns:
        string [B, N], "(S (NP (DT the) (NN dog)) (VP (XX barks)))" with parentheses as -LRB- and
        -RRB-; empty for a sentence without words.
    """
    shape = tf.shape(texts)
    tokens = _tokens(tf.reshape(texts, [-1]))  # [R, T]
    words = tf.repeat(_words(sentences), shape[1], axis=0)  # [R, S]
    num_words = tf.math.count_nonzero(words != "", axis=1, dtype=tf.int32)
    opens = tf.strings.regex_full_match(tokens, r"\(.*")
    closes = tf.strings.regex_full_match(tokens, r"\).*")
    labels = tf.strings.regex_replace(tokens, "^[()]", "")
    numbers = tf.reshape(tf.unique(tf.reshape(labels, [-1])).idx, tf.shape(tokens))
    is_word = ~(opens | closes) & (tokens != "")
    # Words beyond those of the sentence are dropped.
    order = tf.cumsum(tf.cast(is_word, tf.int32), axis=1)
    is_word &= order <= num_words[:, None]
    num_closed, depth = _match_brackets(opens, closes, numbers)
    read = tf.gather(tf.pad(words, [[0, 0], [0, 1]]), tf.where(is_word, order - 1, 0), batch_dims=1)
    pieces = tf.where(
        is_word,
        tf.strings.join([" (", tokens, " ", read, ")"]),
        tf.where(opens, tf.strings.join([" ", tokens]), _brackets(num_closed)),
    )
    is_missing = tf.range(tf.shape(words)[1]) >= tf.reduce_max(
        tf.where(is_word, order, 0), axis=1, keepdims=True
    )
    is_missing &= words != ""
    missing = tf.where(is_missing, tf.strings.join([" (XX ", words, ")"]), "")
    parts = [tf.strings.reduce_join(part, axis=1) for part in (pieces, missing)]
    trees = _without_empty_brackets(tf.strings.join([*parts, _brackets(depth)]))
    return tf.reshape(tf.strings.regex_replace(trees, "^ ", ""), shape)


def drop_words(texts: tf.Tensor) -> tf.Tensor:
    """Returns "(NP DT NN )NP" for "⟨NP the ∕DT dog ∕NN ⟩NP": texts of any shape, see `MARKS`."""
    texts = tf.strings.regex_replace(tf.strings.join([" ", texts]), " [^⟨⟩∕ ][^ ]*", "")
    for mark, plain in (("⟨", "("), ("⟩", ")"), ("∕", "")):
        texts = tf.strings.regex_replace(texts, f" {mark}", f" {plain}")
    return tf.strings.strip(texts)


def _tokens(texts: tf.Tensor) -> tf.Tensor:
    """Returns the tokens of texts [R], the first an opening bracket: string [R, T]."""
    # A bracket without a label, or within a token, would not be a bracket of the answer.
    texts = tf.strings.regex_replace(tf.strings.join([" ", texts, " "]), r"[()]+( |$)", " ")
    texts = tf.strings.regex_replace(texts, r"([^ ()])[()]+", r"\1")
    texts = tf.strings.strip(texts)
    has_root = tf.strings.regex_full_match(texts, r"\([^()]+.*")
    texts = tf.where(has_root, texts, tf.strings.join(["(TOP ", texts]))
    return tf.strings.split(texts).to_tensor("")


def _words(sentences: tf.Tensor) -> tf.Tensor:
    """Returns the words of sentences [B] as a tree has them, string [B, S]."""
    for pattern, escaped in ((WORD_START, " "), (r"\(", "-LRB-"), (r"\)", "-RRB-")):
        sentences = tf.strings.regex_replace(sentences, pattern, escaped)
    return tf.strings.split(sentences).to_tensor("")


def _match_brackets(
    opens: tf.Tensor, closes: tf.Tensor, labels: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns how many brackets each token closes [R, T], and how many are open at the end [R]."""
    num_rows, length = tf.unstack(tf.shape(labels))
    places = tf.range(length)

    def read(
        time: tf.Tensor, stack: tf.Tensor, depth: tf.Tensor, closed: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        label = labels[:, time]
        is_partner = (stack == label[:, None]) & (places < depth[:, None])
        # The first bracket stays open until the end: everything belongs into it.
        partner = tf.reduce_max(tf.where(is_partner & (places > 0), places, 0), axis=1)
        count = tf.where(closes[:, time] & (partner > 0), depth - partner, 0)
        is_new = opens[:, time][:, None] & (places == depth[:, None])
        stack = tf.where(is_new, label[:, None], stack)
        depth += tf.cast(opens[:, time], tf.int32) - count
        return time + 1, stack, depth, tf.where(places == time, count[:, None], closed)

    none = tf.zeros([num_rows, length], tf.int32)
    first = (tf.constant(0), none, none[:, 0], none)
    *_, depth, closed = tf.while_loop(lambda time, *_: time < length, read, first)
    return closed, depth


def _brackets(counts: tf.Tensor) -> tf.Tensor:
    """Returns as many closing brackets, as text."""
    longest = tf.strings.reduce_join(tf.fill([tf.maximum(tf.reduce_max(counts), 0)], ")"))
    return tf.strings.substr(tf.fill(tf.shape(counts), longest), tf.zeros_like(counts), counts)


def _without_empty_brackets(trees: tf.Tensor) -> tf.Tensor:
    """Removes " (X)" until there is none."""
    pattern = r" \([^ ()]+\)"
    return tf.while_loop(
        lambda trees: tf.reduce_any(tf.strings.regex_full_match(trees, f".*{pattern}.*")),
        lambda trees: (tf.strings.regex_replace(trees, pattern, ""),),
        (trees,),
    )[0]
