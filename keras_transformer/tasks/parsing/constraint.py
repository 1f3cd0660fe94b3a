"""Outputs that are trees over the words of the sentence: constraints of a search, and the text.

`forbid` of a constraint forbids tokens at each step of a search; the state counts open brackets
and words. `write_trees` puts the words into the output, inside a TensorFlow graph.

Shapes: B sentences, W hypotheses of a sentence, S source length or words of the longest sentence,
V vocabulary, D open brackets; N texts of a sentence, R = B * N texts, T tokens of the longest one.
"""

import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from keras_transformer.config import BOS_ID, EOS_ID, PAD_ID, UNK_ID, WORD_START
from keras_transformer.decoding import IMPOSSIBLE, Tensor
from keras_transformer.search.constraints import Constraint, OpenHypotheses
from keras_transformer.text.vocabulary import Vocabulary

MAX_OPEN_BRACKETS = 100  # D
# Brackets of a tree over n words: at most 2 n + 5, so that a model that has learned little does not
# open them up to the longest length. Trees of the GUM corpus have at most 1.5 n + 3.
BRACKETS_PER_WORD, FURTHER_BRACKETS = 2, 5
# Kinds of words, by their characters; 0 pads. `ANY_WORD` could be either of the others.
ANY_WORD, ALPHANUMERIC, PUNCTUATION = 1, 2, 3
_PUNCTUATION = set(',.;:?!"“”…—')
# Tags of superfluous punctuation, hyphens and symbols, which some treebanks have.
SYMBOL_TAGS = ("NFP", "HYPH", "SYM")


class OpenBrackets(NamedTuple):
    """The state of each hypothesis.

    Attributes:
        stack: int32 [B, W, D], the tokens of the open brackets, then 0.
        depth: int32 [B, W], the number of open brackets.
        num_brackets: int32 [B, W], open and closed ones.
        is_empty: bool [B, W], whether the innermost one is still empty.
        words_left: int32 [B, W], words of the sentence that must still come.
    """

    stack: Tensor
    depth: Tensor
    num_brackets: Tensor
    is_empty: Tensor
    words_left: Tensor


class BalancedBrackets(Constraint):
    """The output is one bracket "(X ... )X" of brackets and words, none of them empty.

    It has as many words as the sentence, and the constraint keeps room for them: if the maximum
    length suffices for one bracket around them, every hypothesis can be completed.

    Args:
        words: int32 [B, S], the kind of each word of a sentence, see `word_kinds`: tokens of
            punctuation may stand for words of PUNCTUATION and ANY_WORD only, others for all but
            PUNCTUATION; `SYMBOL_TAGS` for all.
        tokens: the target vocabulary, V texts: "(X" opens a bracket, ")X" closes it, and each other
            token stands for a word.
        special_ids: forbidden tokens, such as the unknown one.
        punctuation: the tokens of punctuation; if none of them is in the vocabulary, any word
            token may stand for any word.
    """

    def __init__(
        self,
        words: Tensor,
        tokens: Sequence[str],
        special_ids: Collection[int],
        punctuation: Collection[str] = (),
    ) -> None:
        words = tf.cast(words, tf.int32)
        has_punctuation = not set(punctuation).isdisjoint(tokens)
        self.inputs = words if has_punctuation else tf.minimum(words, ANY_WORD)
        self._is_punctuation = [token in punctuation for token in tokens]
        self._fits_all = [token in SYMBOL_TAGS for token in tokens]
        ids = {token: number for number, token in enumerate(tokens) if number not in special_ids}
        # The bracket that each token opens or closes, named by its opening token; 0 for words.
        opened, closed, stands_for_word = [], [], []
        for number, token in enumerate(tokens):
            known = ids.get(token) == number  # neither special nor a duplicate
            opens, closes = token.startswith("("), token.startswith(")")
            partner = ids.get((")" if opens else "(") + token[1:], 0)
            opened.append(number if known and opens and partner else 0)
            closed.append(partner if known and closes else 0)
            stands_for_word.append(known and not opens and not closes)
        self._opened, self._closed, self._stands_for_word = opened, closed, stands_for_word

    def initial_state(self, inputs: Any, num_hypotheses: int) -> Any:
        num_words = tf.math.count_nonzero(inputs, axis=1, dtype=tf.int32, keepdims=True)
        words_left = tf.repeat(num_words, num_hypotheses, axis=1)  # [B, W]
        none = tf.zeros_like(words_left)
        stack = tf.zeros([*tf.unstack(tf.shape(none)), MAX_OPEN_BRACKETS], tf.int32)
        return OpenBrackets(stack, none, none, is_empty=none > 0, words_left=words_left)

    def update(self, state: Any, ids: Tensor, inputs: Any) -> Any:
        opens = tf.gather(tf.constant(self._opened), ids) > 0  # [B, W]
        closes = tf.gather(tf.constant(self._closed), ids) > 0
        stands_for_word = tf.gather(tf.constant(self._stands_for_word), ids)
        is_next = tf.range(MAX_OPEN_BRACKETS) == state.depth[..., None]
        return OpenBrackets(
            # Only the first `depth` entries mean anything: closed brackets are overwritten.
            stack=tf.where(is_next & opens[..., None], ids[..., None], state.stack),
            depth=state.depth + tf.cast(opens, tf.int32) - tf.cast(closes, tf.int32),
            num_brackets=state.num_brackets + tf.cast(opens, tf.int32),
            is_empty=opens,
            words_left=state.words_left - tf.cast(stands_for_word, tf.int32),
        )

    def forbid(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        words_left, may_read = hypotheses.state.words_left, self._may_read(hypotheses)
        may_come = self._may_come(hypotheses, words_left, may_read)
        return tf.where(may_come, logits, IMPOSSIBLE)

    def _may_come(
        self, hypotheses: OpenHypotheses, tokens_left: Tensor, may_read: Tensor
    ) -> Tensor:
        """Returns which tokens may come, bool [B, W, V].

        Args:
            hypotheses: with the state `OpenBrackets`.
            tokens_left: int32 [B, W], tokens other than brackets that must still come.
            may_read: bool [B, W, V], which tokens may stand for the next word.
        """
        stack, depth, num_brackets, is_empty, words_left = hypotheses.state
        is_top = tf.range(MAX_OPEN_BRACKETS) == depth[..., None] - 1
        top = tf.reduce_sum(tf.where(is_top, stack, 0), axis=-1)  # [B, W]; 0 where none is open
        has_words, is_open = words_left > 0, depth > 0
        room = hypotheses.max_lengths[:, None] - hypotheses.time
        num_words = tf.math.count_nonzero(hypotheses.inputs, 1, dtype=tf.int32, keepdims=True)
        may_open = has_words & (depth < MAX_OPEN_BRACKETS) & (room >= depth + tokens_left + 2)
        may_open &= num_brackets < BRACKETS_PER_WORD * num_words + FURTHER_BRACKETS
        may_open &= is_open | (hypotheses.time == 0)
        may_close = ~is_empty & ((depth > 1) | ~has_words)
        closed = tf.constant(self._closed)
        may_come = (
            (may_open[..., None] & (tf.constant(self._opened) > 0))
            | (may_close[..., None] & (closed > 0) & (closed == top[..., None]))
            | ((has_words & is_open)[..., None] & may_read)
        )  # [B, W, V]
        is_eos = tf.range(len(self._stands_for_word)) == EOS_ID
        return may_come | ((~has_words & ~is_open)[..., None] & is_eos)

    def _may_read(self, hypotheses: OpenHypotheses) -> Tensor:
        """Returns which tokens may stand for the next word, bool [B, W, V]."""
        words, words_left = hypotheses.inputs, hypotheses.state.words_left
        num_words = tf.math.count_nonzero(words, axis=1, dtype=tf.int32, keepdims=True)
        place = tf.clip_by_value(num_words - words_left, 0, tf.shape(words)[1] - 1)
        kind = tf.gather(words, place, batch_dims=1)[..., None]
        fits = (kind <= ANY_WORD) | tf.equal(kind == PUNCTUATION, self._is_punctuation)
        fits |= tf.constant(self._fits_all)
        return fits & tf.constant(self._stands_for_word)


class Copying(NamedTuple):
    """The state of each hypothesis that copies words.

    Attributes:
        brackets: the state of the brackets around them.
        num_read: int32 [B, W], tokens of the sentence that were copied.
        is_reading: bool [B, W], whether the last token was one of these.
    """

    brackets: OpenBrackets
    num_read: Tensor
    is_reading: Tensor


class CopiedWords(BalancedBrackets):
    """Like `BalancedBrackets`, but each word comes as its own tokens, then a tag.

    Args:
        ids: int32 [B, S], the tokens of each sentence without EOS, then PAD at least once.
        words: as in `BalancedBrackets`, as many as tokens of `ids` begin a word.
        tokens: the vocabulary of sentences and output, V texts: "(X" opens a bracket, ")X" closes
            it, others are tags; empty for the tokens of words.
        begins_word: [V], which tokens begin a word.
        punctuation: the tags of punctuation.
    """

    def __init__(
        self,
        ids: Tensor,
        words: Tensor,
        tokens: Sequence[str],
        begins_word: Sequence[bool],
        punctuation: Collection[str] = (),
    ) -> None:
        word_tokens = [number for number, token in enumerate(tokens) if not token]
        super().__init__(words, tokens, word_tokens, punctuation)
        self._is_of_word = [not token for token in tokens]
        for special_id in (PAD_ID, BOS_ID, EOS_ID):
            self._is_of_word[special_id] = False
        begins = tf.gather(tf.constant(begins_word), ids)
        # Brackets and tags within a sentence become the unknown token.
        ids = tf.where(tf.gather(tf.constant([not token for token in tokens]), ids), ids, UNK_ID)
        self.inputs = (ids, begins, self.inputs)

    def initial_state(self, inputs: Any, num_hypotheses: int) -> Any:
        brackets = super().initial_state(inputs[2], num_hypotheses)
        none = tf.zeros_like(brackets.depth)
        return Copying(brackets, none, none > 0)

    def update(self, state: Any, ids: Tensor, inputs: Any) -> Any:
        is_label = tf.cast(tf.stack([self._opened, self._closed, self._stands_for_word]), tf.bool)
        is_reading = ~tf.gather(tf.reduce_any(is_label, axis=0), ids)
        brackets = super().update(state.brackets, ids, inputs)
        return Copying(brackets, state.num_read + tf.cast(is_reading, tf.int32), is_reading)

    def adjust(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        """Gives the sentence's next token the probability of all tokens of words together.

        Otherwise a model that is wrong about the next word could only go on with brackets.
        """
        is_next, _ = self._next_tokens(hypotheses)
        is_of_word = tf.constant(self._is_of_word) & tf.reduce_any(is_next, -1, keepdims=True)
        word_logits = tf.where(is_of_word, logits, IMPOSSIBLE)
        total = tf.reduce_logsumexp(word_logits, axis=-1, keepdims=True)
        return tf.where(is_next, total, tf.where(is_of_word, IMPOSSIBLE, logits))

    def forbid(self, logits: Tensor, hypotheses: OpenHypotheses) -> Tensor:
        ids, _, words = hypotheses.inputs
        brackets, num_read, is_reading = hypotheses.state
        bracket_hypotheses = hypotheses._replace(inputs=words, state=brackets)
        copies, is_within_word = self._next_tokens(hypotheses)
        length = tf.math.count_nonzero(ids, axis=1, dtype=tf.int32, keepdims=True)
        tokens_left = brackets.words_left + length - num_read
        may_come = tf.where(
            is_reading[..., None],
            self._may_read(bracket_hypotheses),
            self._may_come(bracket_hypotheses, tokens_left, copies),
        )
        may_come = tf.where(is_reading[..., None] & is_within_word, copies, may_come)
        return tf.where(may_come, logits, IMPOSSIBLE)

    def _next_tokens(self, hypotheses: OpenHypotheses) -> tuple[Tensor, Tensor]:
        """Returns the sentence's next token one-hot, and whether it continues a word.

        bool [B, W, V], all False at the end of the sentence, and bool [B, W, 1].
        """
        ids, begins_word, _ = hypotheses.inputs
        place = tf.minimum(hypotheses.state.num_read, tf.shape(ids)[1] - 1)
        next_id = tf.gather(ids, place, batch_dims=1)[..., None]  # [B, W, 1]
        is_there = next_id != PAD_ID
        begins = tf.gather(begins_word, place, batch_dims=1)[..., None]
        return (next_id == tf.range(len(self._stands_for_word))) & is_there, is_there & ~begins


# The arguments of the constraints, from token ids.


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
        fits = tf.constant([is_so(piece.removeprefix(WORD_START)) for piece in pieces])
        # EOS and padding belong to no word.
        fits = tf.gather(fits, ids) & (order >= 0) & (ids != EOS_ID) & (ids != PAD_ID)
        places = tf.where(fits, order + rows * shape[1], -1)  # the sum ignores -1
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


def write_trees(texts: tf.Tensor, sentences: tf.Tensor) -> tf.Tensor:
    """Returns trees in brackets, with the words of the sentences beside their tags.

    In a tree such as "(S (NP DT NN )NP (VP XX )VP )S" each tag gets its word; words beyond its
    tags, which the model did not read, follow at its end. Any other text, for example of a search
    that reached the longest length, becomes the flat "(TOP (XX the) (XX dog) (XX barks))".

    Args:
        texts: string [B, N].
        sentences: string [B], words separated by spaces.

    Returns:
        string [B, N], "(S (NP (DT the) (NN dog)) (VP (XX barks)))" with parentheses as -LRB- and
        -RRB-; empty for a sentence without words.
    """
    shape = tf.shape(texts)
    tokens = tf.strings.split(tf.reshape(texts, [-1])).to_tensor("")
    tokens = tf.pad(tokens, [[0, 0], [0, 1]], constant_values="")  # [R, T]
    words = tf.repeat(_words(sentences), shape[1], axis=0)  # [R, S]
    num_words = tf.math.count_nonzero(words != "", axis=1, dtype=tf.int32)
    opens, closes, is_tag = (
        tf.strings.regex_full_match(tokens, pattern)
        for pattern in (r"\([^()]+", r"\)[^()]+", r"[^()]+")
    )
    num_tags = tf.cumsum(tf.cast(is_tag, tf.int32), axis=1)  # so far
    depth = tf.cumsum(tf.cast(opens, tf.int32) - tf.cast(closes, tf.int32), axis=1)
    is_last = tf.cumsum(tf.cast(tokens != "", tf.int32), axis=1, reverse=True) == 1
    # A bracket is open after each token but the last, and has a tag.
    is_right = (opens | closes | is_tag) & tf.not_equal(depth > 0, is_last)
    is_tree = tf.reduce_all(is_right | (tokens == ""), axis=1) & opens[:, 0]
    is_tree &= ~tf.reduce_any(opens[:, :-1] & closes[:, 1:], axis=1)
    is_tree &= num_tags[:, -1] <= num_words

    place = tf.clip_by_value(num_tags - 1, 0, tf.shape(words)[1])
    read = tf.gather(tf.pad(words, [[0, 0], [0, 1]]), place, batch_dims=1)
    pieces = tf.where(opens, tf.strings.join([" ", tokens]), ")")
    pieces = tf.where(is_tag, tf.strings.join([" (", tokens, " ", read, ")"]), pieces)
    pieces = tf.where(is_last | (tokens == ""), "", pieces)
    plain = tf.where(words == "", "", tf.strings.join([" (XX ", words, ")"]))
    unread = tf.where(tf.range(tf.shape(words)[1]) < num_tags[:, -1:], "", plain)
    inside, rest, flat = (tf.strings.reduce_join(each, axis=1) for each in (pieces, unread, plain))
    trees = tf.where(
        is_tree,
        tf.strings.strip(tf.strings.join([inside, rest, ")"])),
        tf.strings.join(["(TOP", flat, ")"]),
    )
    return tf.reshape(tf.where(num_words == 0, "", trees), shape)


def drop_words(texts: tf.Tensor) -> tf.Tensor:
    """Returns "(NP DT NN )NP" for "⟨NP the ∕DT dog ∕NN ⟩NP": texts of any shape, see `MARKS`."""
    texts = tf.strings.regex_replace(tf.strings.join([" ", texts]), " [^⟨⟩∕ ][^ ]*", "")
    for mark, plain in (("⟨", "("), ("⟩", ")"), ("∕", "")):
        texts = tf.strings.regex_replace(texts, f" {mark}", f" {plain}")
    return tf.strings.strip(texts)


def _words(sentences: tf.Tensor) -> tf.Tensor:
    """Returns the words of sentences [B] as a tree has them, string [B, S]."""
    for pattern, escaped in ((WORD_START, " "), (r"\(", "-LRB-"), (r"\)", "-RRB-")):
        sentences = tf.strings.regex_replace(sentences, pattern, escaped)
    return tf.strings.split(sentences).to_tensor("")
