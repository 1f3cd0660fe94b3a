"""The choice of batch shapes."""

import gzip

import numpy as np
import pytest

from keras_transformer.data.buckets import choose_buckets
from keras_transformer.data.epoch_layout import Bucket, assign_leftovers
from keras_transformer.errors import InputError


def some_lengths(pairs=20_000):
    """Lengths of an invented corpus: log-normal, the sides correlated."""
    random = np.random.default_rng(7)
    source = np.exp(random.normal(2.7, 0.6, pairs))
    target = source * np.exp(random.normal(0.1, 0.2, pairs))
    return [np.clip(side, 1, 150).astype(np.int64) + 1 for side in (source, target)]


def test_two_lengths_get_two_exact_shapes():
    lengths = np.array([4] * 16 + [8] * 8)
    bucketing = choose_buckets(lengths, lengths, batch_tokens=64)
    assert bucketing.buckets == (Bucket(16, 4, 4), Bucket(8, 8, 8))
    assert bucketing.buckets_of(slice(None)).tolist() == [0] * 16 + [1] * 8
    assert bucketing.batches == (1, 1)
    assert bucketing.real_share == 1.0


def test_every_pair_fits_its_bucket_and_every_bucket_the_bound():
    source, target = some_lengths()
    bucketing = choose_buckets(source, target, batch_tokens=1000)
    shapes = np.array(bucketing.buckets)[bucketing.buckets_of(slice(None))]
    assert (source <= shapes[:, 1]).all()
    assert (target <= shapes[:, 2]).all()
    for rows, source_length, target_length in bucketing.buckets:
        assert 1 <= rows <= 1000 // max(source_length, target_length)
        assert rows < 8 or rows % 8 == 0  # so 2, 4 or 8 replicas get equal parts


def test_leftovers_only_move_to_buckets_that_hold_them():
    source, target = some_lengths()
    bucketing = choose_buckets(source, target, batch_tokens=2048)
    moved = [(a, b) for a, b in enumerate(bucketing.windows[0].leftovers_to) if a != b]
    assert moved
    for number, home in moved:
        smaller, larger = bucketing.buckets[number], bucketing.buckets[home]
        assert home > number
        assert larger.source_length >= smaller.source_length
        assert larger.target_length >= smaller.target_length


def test_leftovers_move_on_where_that_is_cheaper_than_empty_rows():
    buckets = [Bucket(10, 4, 4), Bucket(8, 5, 5)]
    # 3 * 10 cells, not 10 * 8
    assert assign_leftovers(buckets, [13, 5]) == ((10, 8), (1, 1), (1, 1))
    # 9 * 10 cells, not 10 * 8
    assert assign_leftovers(buckets, [19, 5]) == ((19, 5), (2, 1), (0, 1))


def test_a_bucket_has_no_more_rows_than_its_batches_need():
    lengths = np.full(33, 4)
    bucketing = choose_buckets(lengths, lengths, batch_tokens=128)  # 32 rows would fit
    assert bucketing.buckets == (Bucket(24, 4, 4),)
    assert bucketing.batches == (2,)
    assert bucketing.real_share == 33 / 48


def test_the_last_batch_of_a_bucket_is_never_empty():
    for pairs in range(1, 200):
        lengths = np.full(pairs, 4)
        bucketing = choose_buckets(lengths, lengths, batch_tokens=160)
        assert -(-pairs // bucketing.buckets[0].rows) == bucketing.batches[0]


def test_memory_grows_with_rows_logits_and_attention():
    assert Bucket(8, 16, 32).memory > Bucket(8, 32, 16).memory  # each target token has logits
    assert Bucket(8, 256, 256).memory > 8 * Bucket(16, 16, 16).memory  # the same rows * lengths
    assert Bucket(16, 9, 9).memory == 2 * Bucket(8, 9, 9).memory


def test_an_epoch_of_mixed_corpora_is_laid_out_for_their_weights():
    source = np.array([4] * 80 + [8] * 20)
    bucketing = choose_buckets(
        source, source, batch_tokens=64, part_offsets=np.array([0, 80, 100]), mix_weights=[1, 3]
    )
    assert bucketing.buckets == (Bucket(16, 4, 4), Bucket(8, 8, 8))
    assert bucketing.windows[0].draws.tolist() == [[25, 0], [0, 75]]
    assert bucketing.batches == (2, 10) or bucketing.windows[0].leftovers_to[0] == 1
    assert bucketing.real_share > 0.9


def test_ten_times_the_pairs_take_hardly_more_work_to_bucket(count_lines, lengths_of):
    few, many = (
        count_lines(choose_buckets, *lengths_of(pairs), batch_tokens=2048)
        for pairs in (50_000, 500_000)
    )
    assert many < 1.5 * few  # the lengths that occur decide, and a few more do


def test_a_smaller_number_of_shapes_is_kept_to():
    bucketing = choose_buckets(*some_lengths(), batch_tokens=2048, max_buckets=5)
    assert len(bucketing.buckets) <= 5


def test_no_more_shapes_are_taken_than_needed():
    few = choose_buckets(*some_lengths(), batch_tokens=2048, enough_share=0.8)
    many = choose_buckets(*some_lengths(), batch_tokens=2048, enough_share=0.92)
    assert 0.8 <= few.real_share < 0.88
    assert many.real_share >= 0.92
    assert len(few.buckets) < len(many.buckets) <= 96


def test_a_sentence_beyond_the_batch_is_refused():
    with pytest.raises(InputError, match=r"batch_tokens 63 has no room .* \(64 tokens\)"):
        choose_buckets(np.array([64]), np.array([3]), batch_tokens=63)


def test_a_single_pair_makes_a_batch():
    bucketing = choose_buckets(np.array([5]), np.array([7]), batch_tokens=7)
    assert bucketing.buckets == (Bucket(1, 5, 7),)
    assert bucketing.batches == (1,)


@pytest.mark.parametrize("batch_tokens", [2048, 8192, 25_000])
@pytest.mark.parametrize(
    ("name", "source_file", "target_file", "tokens_per_word"),
    [
        ("multi30k_bpe", "train.en", "train.de", 1),  # already cut into subwords
        ("tatoeba_ende", "train.en.gz", "train.de.gz", 1.4),
        ("canlaws_enfr", "train.en.gz", "train.fr.gz", 1.4),
    ],
)
def test_real_corpora_waste_little_on_padding(
    shared_data, name, source_file, target_file, tokens_per_word, batch_tokens
):
    source, target = (
        np.minimum(_word_counts(shared_data(name) / file) * tokens_per_word, 255).astype(int) + 1
        for file in (source_file, target_file)
    )
    bucketing = choose_buckets(source, target, batch_tokens=batch_tokens)
    assert bucketing.real_share >= 0.92
    assert len(bucketing.buckets) <= 96


_CACHE: dict = {}


def _word_counts(path):
    if path not in _CACHE:
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rb") as lines:
            _CACHE[path] = np.array([line.count(b" ") + 1 for line in lines])
    return _CACHE[path]
