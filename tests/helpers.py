"""What tests of several folders share."""

import collections
import contextlib
import json
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from unittest import mock

import keras

from keras_transformer.config import model
from keras_transformer.outputs import Translation
from keras_transformer.tasks import task

Result = collections.namedtuple("Result", "code out err")  # of a command


def names_in(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def n_best(translations: Sequence[Translation]) -> list[Translation]:
    """Gives the translations of all n-best lists, one after the other."""
    return [each for best in translations for each in (best, *best.alternatives)]


def banning_task(words: Sequence[str]) -> task.Task | None:
    """Makes a task in which a search never finds some target words; None if there are none."""
    if not words:
        return None
    from plain_search import Banned

    from keras_transformer.tasks import TranslationTask

    class BanningTask(TranslationTask):
        def constraints(self, source, vocabularies):
            return [Banned([[word_id for ids in vocabularies[1].encode(words) for word_id in ids]])]

    return BanningTask()


def cluster(ports: Sequence[int]) -> list[str]:
    """Gives the TF_CONFIG of each worker of a cluster on this machine."""
    workers = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    tasks = [{"type": "worker", "index": index} for index in range(len(ports))]
    return [json.dumps({"cluster": workers, "task": task}) for task in tasks]


@contextlib.contextmanager
def user_modules() -> Iterator[Callable[[], None]]:
    """A block in which --user_module begins as in a new process, and which leaves no trace.

    Gives a function that forgets what has been registered until then.
    """
    registries = (model._ARCHITECTURES, task._TASKS, keras.saving.get_custom_objects())
    before = [dict(registry) for registry in registries]

    def forget() -> None:
        for registry in registries[:2]:
            for name, kind in [*registry.items()]:
                if not kind.__module__.startswith("keras_transformer."):
                    del registry[name]
        for name in [name for name in sys.modules if name.startswith("user_module_")]:
            del sys.modules[name]

    with mock.patch.object(sys, "path", [*sys.path]):
        forget()
        try:
            yield forget
        finally:
            forget()
            for registry, content in zip(registries, before, strict=True):
                registry.update(content)
