"""Makes a tree over the words of a sentence of any text, inside a TensorFlow graph.

Shapes: B sentences, S tokens or words of the longest one, N texts of a sentence; R = B * N texts,
T tokens of the longest one.
"""

import re
from collections.abc import Callable

import tensorflow as tf

from keras_transformer.config import EOS_ID, PAD_ID, WORD_START
from keras_transformer.text.vocabulary import Vocabulary

# Kinds of words, by their characters; 0 pads. `ANY_WORD` could be either of the others.
ANY_WORD, ALPHANUMERIC, PUNCTUATION = 1, 2, 3
_PUNCTUATION = set(',.;:?!"“”…—')


def word_kinds(ids: tf.Tensor, vocabulary: Vocabulary) -> tf.Tensor:
    """Returns the kinds of the words in rows of ids [B, S], then 0: int32 [B, S].

    Each token that begins a word counts as one.
    """
    pieces = vocabulary.pieces(range(vocabulary.size))
    begins = tf.constant([piece.startswith(WORD_START) for piece in pieces])
    begins = tf.gather(begins, ids)  # [B, S]
    order = tf.cumsum(tf.cast(begins, tf.int32), axis=1) - 1  # of the word that a token belongs to
    shape = tf.shape(ids)
    rows = tf.range(shape[0])[:, None]

    def any_of_word(is_so: Callable[[str], bool]) -> tf.Tensor:
        found = tf.constant([is_so(piece.removeprefix(WORD_START)) for piece in pieces])
        # EOS and padding belong to no word.
        found = tf.gather(found, ids) & (order >= 0) & (ids != EOS_ID) & (ids != PAD_ID)
        places = tf.where(found, order + rows * shape[1], -1)  # the sum ignores -1
        counts = tf.math.unsorted_segment_sum(
            tf.ones_like(places), tf.reshape(places, shape), tf.size(ids)
        )
        return tf.reshape(counts, shape) > 0

    # The unknown token, or a byte, may be of any character.
    is_special = re.compile("<.+>").fullmatch
    has_letters = any_of_word(lambda piece: not is_special(piece) and any(map(str.isalnum, piece)))
    has_others = any_of_word(lambda piece: not set(piece) <= _PUNCTUATION)
    kinds = tf.where(has_letters, ALPHANUMERIC, tf.where(has_others, ANY_WORD, PUNCTUATION))
    num_words = tf.math.count_nonzero(begins, axis=1, dtype=tf.int32)
    return tf.where(tf.range(shape[1]) < num_words[:, None], kinds, 0)


def copied_words(ids: tf.Tensor, vocabulary: Vocabulary) -> tuple[tf.Tensor, list[str], list[bool]]:
    """Returns the arguments of `CopiedWords` for rows of ids [B, S] with EOS."""
    pieces = vocabulary.pieces(range(vocabulary.size))
    plain = {WORD_START + "⟨": "(", WORD_START + "⟩": ")", WORD_START + "∕": ""}
    tokens = [plain[piece[:2]] + piece[2:] if piece[:2] in plain else "" for piece in pieces]
    begins_word = [piece.startswith(WORD_START) for piece in pieces]
    return tf.where(ids == EOS_ID, PAD_ID, ids), tokens, begins_word


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
