"""Views of a small trained model."""

import pytest
from helpers import banning_task

from keras_transformer.config import SearchConfig
from keras_transformer.explorer.views import inspect_model
from keras_transformer.tasks import TranslationTask

SEARCH = dict(beam_size=4, max_source_length=12, max_extra_length=5)


@pytest.fixture(scope="session")
def make_inspector(trained):
    model, *vocabularies = trained

    def make(name="runs/words", model=model, banned=(), **changes):
        search = SearchConfig(**SEARCH | changes)
        task = banning_task(banned) or TranslationTask()
        return inspect_model(name, model, tuple(vocabularies), task, search)

    return make


@pytest.fixture(scope="session")
def inspect(make_inspector):
    return make_inspector()


@pytest.fixture(scope="session")
def view(inspect):
    return inspect("hello two cat")
