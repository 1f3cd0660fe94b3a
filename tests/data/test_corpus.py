"""Packing token ids into flat arrays."""

import numpy as np
import pytest

from keras_transformer.config import EOS_ID
from keras_transformer.data.corpus import TokenizedCorpus, gather_rows, pad_ids
from keras_transformer.errors import InputError


def test_sources_get_eos_and_targets_do_not():
    corpus = TokenizedCorpus.from_ids([[5, 6], [7]], [[8], [9, 10, 11]])
    assert corpus.source_ids.tolist() == [5, 6, EOS_ID, 7, EOS_ID]
    assert corpus.source_offsets.tolist() == [0, 3, 5]
    assert corpus.target_ids.tolist() == [8, 9, 10, 11]
    assert corpus.target_offsets.tolist() == [0, 1, 4]
    assert corpus.source_ids.dtype == corpus.target_ids.dtype == np.int32
    assert corpus.source_lengths.tolist() == [3, 2]  # with EOS on both sides
    assert corpus.target_lengths.tolist() == [2, 4]
    assert corpus.part_offsets.tolist() == [0, 2]
    assert len(corpus) == 2


def test_empty_and_long_pairs_are_dropped_and_counted():
    corpus = TokenizedCorpus.from_ids(
        [[5], [], [6, 6], [7] * 3, [8], [9] * 3], [[5], [5], [6, 6], [7], [], []], max_length=2
    )
    assert corpus.dropped == {"empty": 3, "too long": 1, "length ratio": 0}
    assert corpus.source_ids.tolist() == [5, EOS_ID, 6, 6, EOS_ID]
    assert corpus.target_ids.tolist() == [5, 6, 6]


def test_pairs_of_very_different_length_are_dropped_on_request():
    corpus = TokenizedCorpus.from_ids(
        [[5] * 4, [6] * 2, [7]], [[5], [6] * 4, [7] * 3], max_length_ratio=2
    )
    assert corpus.dropped == {"empty": 0, "too long": 0, "length ratio": 2}
    assert corpus.source_ids.tolist() == [6, 6, EOS_ID]


def test_corpus_without_usable_pairs_is_an_error():
    with pytest.raises(InputError, match="no pair of sentences is left of 2: 1 have an empty side"):
        TokenizedCorpus.from_ids([[], [5, 5]], [[5], [5]], max_length=1)


def test_sides_of_different_length_are_an_error():
    with pytest.raises(InputError, match="got 1 and 2 sentences"):
        TokenizedCorpus.from_ids([[5]], [[5], [6]])


def test_pad_ids_pads_on_the_right():
    assert pad_ids([[4], [], [5, 6]]).tolist() == [[4, 0], [0, 0], [5, 6]]
    assert pad_ids([]).shape == (0, 0)


def test_gather_rows_keeps_order_and_pads():
    ids = np.array([4, 5, 6, 65_535], np.uint16)
    rows = gather_rows(ids, np.array([0, 1, 4]), np.array([1, 0]), (3, 4))
    assert rows.tolist() == [[5, 6, 65_535, 0], [4, 0, 0, 0], [0, 0, 0, 0]]
    assert rows.dtype == np.int32
