"""The shortlist of a run, learned from its corpus the first time that it is asked for."""

import contextlib
import pathlib
import tempfile
from collections.abc import Callable

from keras_transformer.data import Shortlist
from keras_transformer.errors import InputError, writing
from keras_transformer.training.corpora import training_corpus
from keras_transformer.training.run_directory import RunDirectory


def load_shortlist(
    run: RunDirectory, progress: Callable[[int], None] = lambda num_pairs: None
) -> Shortlist:
    """Returns the candidates of each source token, which are kept in the run directory.

    Args:
        run: trained on a corpus.
        progress: is called now and then while this is tokenized, see `cached_corpus`.

    Raises:
        InputError: they have to be learned, and the text that the run was trained on is not there,
            or the directory cannot be written to.
    """
    path = run.path / "shortlist.npz"
    if not path.exists():
        configs, vocabularies = run.configs(), run.vocabularies()
        if configs.data is None:
            raise InputError(
                f"{run.path} was imported, without a text to learn a shortlist from; leave "
                "--shortlist out, or train the run further with train --start_from"
            )
        folder = run.path / "tokens"
        with writing(str(path)), contextlib.ExitStack() as stack:
            if not folder.exists():  # they are elsewhere, and are not to lie in two places
                temporary = tempfile.TemporaryDirectory(dir=run.path, prefix=".tokens-")
                folder = pathlib.Path(stack.enter_context(temporary))
            corpus = training_corpus(
                configs.corpora, vocabularies, folder, progress, task=configs.task
            )
            sizes = (vocabulary.size for vocabulary in vocabularies)
            Shortlist.learn(corpus, *sizes).save(path)
    return Shortlist.load(path)
