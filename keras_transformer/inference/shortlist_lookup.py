"""The target tokens that a batch of sentences may be translated with, looked up in the graph.

Shapes: B sentences, S source length, U source vocabulary, M candidates of a token, V target
vocabulary, C tokens chosen.
"""

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from keras_transformer.config import SearchConfig
from keras_transformer.data import Shortlist
from keras_transformer.decoding import DecodingState, Tensor, VocabularySubset
from keras_transformer.errors import InputError


class ShortlistLookup(tf.Module):
    """A shortlist as variables, which an export saves.

    Args:
        shortlist: for a model's vocabularies.
        target_size: V.
    """

    def __init__(self, shortlist: Shortlist, target_size: int) -> None:
        super().__init__(name="shortlist")
        self.candidates = tf.Variable(shortlist.candidates, trainable=False)  # [U, M]
        is_common = np.isin(np.arange(target_size), shortlist.common)
        self.is_common = tf.Variable(is_common, trainable=False)  # [V]

    def restrict(
        self, state: DecodingState, source: Tensor, forced: Sequence[Tensor]
    ) -> tuple[DecodingState, VocabularySubset]:
        """Returns a state whose steps give logits of the subset's C tokens only, and the subset."""
        subset = self.subset(source, forced)
        projection = tf.nest.map_structure(
            lambda leaf: tf.gather(leaf, subset.ids, axis=-1), state.projection
        )
        return state._replace(projection=projection), subset

    def subset(self, source: Tensor, forced: Sequence[Tensor] = ()) -> VocabularySubset:
        """Returns the tokens that any of the sentences may have.

        Args:
            source: int32 [B, S].
            forced: more of them, int32 of any shape.
        """
        ids = [tf.gather(self.candidates, source), *forced]
        ids = tf.concat([tf.reshape(each, [-1]) for each in ids], axis=0)
        is_chosen = tf.tensor_scatter_nd_update(
            tf.convert_to_tensor(self.is_common), ids[:, None], tf.ones_like(ids, tf.bool)
        )  # [V]
        chosen = tf.cast(tf.where(is_chosen)[:, 0], tf.int32)  # [C]
        places = tf.cumsum(tf.cast(is_chosen, tf.int32), exclusive=True)
        return VocabularySubset(chosen, tf.where(is_chosen, places, tf.size(chosen)))


def make_lookup(
    shortlist: Shortlist | None, search: SearchConfig, target_size: int, has_xla: bool
) -> ShortlistLookup | None:
    """Returns the lookup that a search needs, None if it uses no shortlist.

    Raises:
        InputError: the shortlist is missing, or cannot be combined with XLA's fixed shapes.
    """
    if not search.shortlist:
        return None
    if shortlist is None or has_xla:
        problem = "cannot be combined with XLA" if has_xla else "needs a learned shortlist"
        raise InputError(f"shortlist={search.shortlist} {problem}; set it to 0")
    return ShortlistLookup(shortlist.first(search.shortlist), target_size)
