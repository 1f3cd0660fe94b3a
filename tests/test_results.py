"""Results from the outputs of a signature."""

from keras_transformer.decoding import NO_SCORE
from keras_transformer.results import Translation, read_translations


def test_empty_places_of_an_n_best_list_are_dropped():
    answer = dict(
        translations=[["a", "b", ""], ["", "", ""], ["", "c", "d"]],
        scores=[[-1.0, -2.0, NO_SCORE], [NO_SCORE] * 3, [-0.5, -1.0, -3.0]],
    )
    assert read_translations(answer) == [
        [Translation("a", -1.0), Translation("b", -2.0)],
        [Translation("", NO_SCORE)],  # nothing was found
        [Translation("", -0.5), Translation("c", -1.0), Translation("d", -3.0)],
    ]
