"""Views of a small trained model."""

import pytest

from keras_transformer.config import SearchConfig
from keras_transformer.explorer.views import look_into_model
from keras_transformer.tasks import TranslationTask

SEARCH = dict(beam_size=4, max_source_length=12, max_extra_length=5)


@pytest.fixture(scope="session")
def make_look(trained):
    model, *vocabularies = trained

    def make(name="runs/words", model=model, **changes):
        search = SearchConfig(**SEARCH | changes)
        return look_into_model(name, model, tuple(vocabularies), TranslationTask(), search)

    return make


@pytest.fixture(scope="session")
def look(make_look):
    return make_look()


@pytest.fixture(scope="session")
def view(look):
    return look("hello two cat")
