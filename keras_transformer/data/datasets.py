"""Parallel text from TensorFlow Datasets, by name, read as a stream.

TensorFlow Datasets takes long to import, so that happens inside the functions.
"""

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from typing import Any

from keras_transformer.errors import InputError, needs_extra, one_line
from keras_transformer.files import file_identity

_READ_EXAMPLES = 1024  # examples to convert at a time


@dataclasses.dataclass(frozen=True, kw_only=True)
class DatasetSplit:
    """One split of a translation data set, which is downloaded and prepared the first time.

    Iteration yields pairs of source and target in the data set's order, and raises
    `InputError` where there is no such data set, config or split, it is not parallel text, or it
    cannot be downloaded. (Without a network the downloader first retries for minutes.)

    Attributes:
        name: of a data set and its config, such as "wmt14_translate/de-en" or
            "number_names/en-de". The first language is the source.
        split: such as "train" or "train[:1000]".
        data_dir: where prepared data sets are kept; None is ~/tensorflow_datasets.
        reverse: whether to swap source and target.

    Example:
        >>> next(iter(DatasetSplit(name="number_names/en-de", split="test")))  # doctest: +SKIP
        ('seven', 'sieben')
    """

    name: str
    split: str
    data_dir: str | os.PathLike[str] | None = None
    reverse: bool = False

    def __str__(self) -> str:
        return f"data set {self.name}, split {self.split}"

    @property
    def identity(self) -> dict[str, Any]:
        """Kind, full name with the version, split, direction, and of each file `file_identity`.

        The data set is prepared first: one that was built anew, or lies in another `data_dir`,
        may have other sentences under the same name and version.
        """
        builder = self._with_split()
        return {
            "kind": "data set",
            "name": builder.info.full_name,
            "split": self.split,
            "reverse": self.reverse,
            "files": list(map(file_identity, sorted(builder.info.splits[self.split].filepaths))),
        }

    def has_split(self) -> bool:
        """Whether the data set has this split; errors as in iteration."""
        return self._is_in(self._prepared())

    def __iter__(self) -> Iterator[tuple[str, str]]:
        builder = self._with_split()
        source, target = languages_of(builder, self.name)
        if self.reverse:
            source, target = target, source
        batches = builder.as_dataset(split=self.split).batch(_READ_EXAMPLES)
        for examples in batches.as_numpy_iterator():
            for pair in zip(examples[source], examples[target], strict=True):
                yield pair[0].decode("utf-8"), pair[1].decode("utf-8")

    def _with_split(self) -> Any:
        """Returns the builder; raises where the data set lacks the split."""
        builder = self._prepared()
        if not self._is_in(builder):
            known = ", ".join(builder.info.splits)
            raise InputError(f"{self.name} has no split {self.split!r}; choose one of {known}")
        return builder

    def _is_in(self, builder: Any) -> bool:
        try:
            builder.info.splits[self.split]
        except (KeyError, ValueError):
            return False
        return True

    def _prepared(self) -> Any:
        """Returns the builder; downloads and prepares the data set first if need be."""
        builder = find_builder(self.name, self.data_dir)
        languages_of(builder, self.name)  # raises before anything is downloaded
        import tensorflow_datasets as tfds

        download = tfds.download.DownloadConfig(try_download_gcs=False)
        try:
            if not sys.stderr.isatty():  # no bars in a log
                tfds.disable_progress_bar()
            with contextlib.redirect_stdout(sys.stderr):
                builder.download_and_prepare(download_config=download)
        except (ImportError, OSError, AssertionError, tfds.download.DownloadError) as error:
            raise InputError(f"{self.name} cannot be prepared: {one_line(error)}") from error
        return builder


def find_builder(name: str, data_dir: str | os.PathLike[str] | None = None) -> Any:
    """Returns the builder of a data set of TensorFlow Datasets, or of `number_names`."""
    with needs_extra("datasets"):
        import tensorflow_datasets as tfds

        import keras_transformer.data.number_names  # noqa: F401 (registers itself)

    try:
        return tfds.builder(name, data_dir=data_dir)
    except (ValueError, AssertionError, ImportError) as error:
        # TensorFlow Datasets puts the arguments of the constructor before the cause.
        cause = str(error).rpartition('}": ')[2].partition("\n")[0]
        if cause.startswith("BuilderConfig"):
            configs = tfds.builder_cls(name.split("/")[0]).builder_configs
            cause = f"its configs are {', '.join(configs)}; reverse swaps source and target"
        raise InputError(f"there is no data set {name!r}: {cause}") from error


def languages_of(builder: Any, name: str) -> tuple[str, str]:
    """Returns the source's and the target's key in the examples.

    Raises:
        InputError: it is no data set of sentences in two languages.
    """
    import tensorflow_datasets as tfds

    features = builder.info.features
    if not isinstance(features, tfds.features.Translation) or len(features) != 2:
        raise InputError(
            f"{name} is not a data set of sentences in two languages, it has features "
            f"{', '.join(features or ()) or 'unknown'}; choose one like wmt14_translate/de-en"
        )
    if builder.info.supervised_keys:
        source, target = builder.info.supervised_keys
        return source, target
    config = builder.builder_config.name if builder.builder_config else ""
    source, target = sorted(features, key=config.find)  # "en-de": in the order of the name
    return source, target
