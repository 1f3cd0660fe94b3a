"""The task of pronunciation: error rates, splits and defaults."""

import pytest

from keras_transformer.config import DataConfig
from keras_transformer.errors import InputError
from keras_transformer.tasks import PronunciationTask
from keras_transformer.tasks.pronunciation import count_edits
from keras_transformer.training import make_vocabularies, read_test_text, read_validation_texts


@pytest.fixture
def dictionary(tmp_path):
    """A dictionary of 300 words, every tenth of which has two pronunciations."""
    path = tmp_path / "words.tsv"
    words = ["".join("abcde"[int(digit, 5)] for digit in f"{n:03}" if digit < "5") + str(n)
             for n in range(300)]  # fmt: skip
    lines = [f"{word}\t{' '.join(word)}\n" for word in words]
    lines += [f"{word}\t{' '.join(reversed(word))}\n" for word in words[::10]]
    path.write_text("".join(lines))
    return str(path)


@pytest.mark.parametrize(
    ("answer", "reference", "edits"),
    [("", "", 0), ("", "a b", 2), ("a b", "", 2), ("k i t ə n", "s i t i ŋ", 3),
     ("a b c", "b c", 1), ("b c", "a b c", 1), ("a b c d", "a x c d", 1), ("a b", "b a", 2)],
)  # fmt: skip
def test_edits_are_insertions_deletions_and_substitutions(answer, reference, edits):
    assert count_edits(answer.split(), reference.split()) == edits


def test_a_word_is_right_if_it_is_any_of_its_references_and_edits_are_to_the_nearest():
    sources = ["read", "tomato", "read", "lead"]
    references = ["r ɛ d", "t ə m ɑ t əʊ", "r iː d", "l ɛ d"]
    # The first is its second reference; one edit of six phones; two of three.
    outputs = ["r iː d", "t ə m eɪ t əʊ", "r iː d", "l"]
    rates = PronunciationTask().evaluate(outputs, references, sources)
    assert rates == {
        "wer": pytest.approx(100 * 2 / 3), "per": pytest.approx(100 * 3 / 12), "words": 3,
    }  # fmt: skip
    assert PronunciationTask().report(rates) == {
        "words": "3", "word error rate": "66.67 %", "phone error rate": "25.00 %",
    }  # fmt: skip


def test_of_references_as_near_the_longest_counts():
    rates = PronunciationTask().evaluate(["a b"] * 2, ["a", "a b c d e"], ["x", "x"])
    assert rates["per"] == 100.0
    rates = PronunciationTask().evaluate(["a b"] * 2, ["a", "a b c"], ["x", "x"])
    assert rates["per"] == pytest.approx(100 / 3)


def test_an_n_best_list_is_as_good_as_its_best_answer():
    n_best = [["a b", "a c"], ["a", "b d"]]
    rates = PronunciationTask().evaluate_n_best(n_best, ["a c", "b c"], ["x", "y"])
    assert rates == {"wer": 50.0, "per": 25.0, "words": 2}
    best = PronunciationTask().evaluate([first for first, _ in n_best], ["a c", "b c"], ["x", "y"])
    assert best == {"wer": 100.0, "per": 75.0, "words": 2}


def test_without_a_dev_set_words_of_the_dictionary_are_held_out_for_dev_and_test(dictionary):
    task = PronunciationTask(held_out=0.1)
    data = DataConfig(train_file=dictionary, **task.default_data)
    splits = [
        {word for source in task.pair_sources(data, split) for word, _ in source}
        for split in ("train", "validation", "test")
    ]
    assert len(set.union(*splits)) == sum(map(len, splits)) == 300
    assert all(15 < len(words) < 50 for words in splits[1:])
    assert set(read_validation_texts(data, task)[0].source) == splits[1]
    assert set(read_test_text(data, task=task).source) == splits[2]
    with pytest.raises(InputError, match="split must be one of train, validation, test, got 'x'"):
        read_test_text(data, "x", task)
    # A test set of its own changes nothing about the training.
    named = data.replace(test_file=dictionary)
    assert len(read_test_text(named, task=task).source) == 330
    assert {word for source in task.pair_sources(named, "train") for word, _ in source} == splits[0]


def test_where_a_dev_set_is_named_all_of_the_dictionary_is_trained_on(dictionary):
    task = PronunciationTask()
    data = DataConfig(train_file=dictionary, dev_file=dictionary, **task.default_data)
    for split in ("train", "validation"):
        assert sum(len(list(source)) for source in task.pair_sources(data, split)) == 330
    with pytest.raises(InputError, match="names no test files"):
        read_test_text(data, task=task)


def test_tokens_are_characters_of_words_with_spaces_and_whole_phones(tmp_path):
    path = tmp_path / "vie.tsv"
    path.write_text("an giang\tʔ aː n ˧˧ z aː ŋ ˧˧\nan\tʔ aː n ˧˧\n")
    task = PronunciationTask()
    data = DataConfig(train_file=str(path), dev_file=str(path), **task.default_data)
    source, target = make_vocabularies(data, task)
    [ids] = source.encode(["an giang"])
    assert source.pieces(ids) == list("▁an▁giang")
    [ids] = target.encode(["ʔ aː n ˧˧"])
    assert target.pieces(ids) == ["▁ʔ", "▁aː", "▁n", "▁˧˧"]


def test_answers_are_compared_as_the_dictionary_is_read(tmp_path):
    path = tmp_path / "answers.txt"
    path.write_text("K  AE1 T\ne\u0301\n", encoding="utf-8")
    assert PronunciationTask().read_answers(path) == ["K AE1 T", "é"]
    assert PronunciationTask(keep_stress=False).read_answers(path) == ["K AE T", "é"]


def test_parallel_files_need_a_dev_set():
    data = DataConfig(train_source="a", train_target="b")
    with pytest.raises(InputError, match="held out of dictionaries only: give --dev_file"):
        PronunciationTask().check_data(data)
    PronunciationTask().check_data(data.replace(dev_file="c"))


@pytest.mark.parametrize("share", [0.0, 0.5, -1.0])
def test_a_share_out_of_range_is_refused(share):
    with pytest.raises(InputError, match=r"held_out must be above 0 and below 0\.5, got"):
        PronunciationTask(held_out=share)
