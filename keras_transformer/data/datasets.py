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
        builder = self._builder()
        return {
            "kind": "data set",
            "name": builder.info.full_name,
            "split": self.split,
            "reverse": self.reverse,
            "files": list(map(file_identity, sorted(builder.info.splits[self.split].filepaths))),
        }

    def has_split(self) -> bool:
        """Whether the data set has a split of this name; errors as in iteration."""
        return self.split in self._builder(needs_split=False).info.splits

    def __iter__(self) -> Iterator[tuple[str, str]]:
        builder = self._builder()
        keys = builder.info.supervised_keys
        if not keys:  # "en-de": in the order of the name
            config = builder.builder_config.name if builder.builder_config else ""
            keys = sorted(builder.info.features, key=config.find)
        source, target = reversed(keys) if self.reverse else keys
        batches = builder.as_dataset(split=self.split).batch(_READ_EXAMPLES)
        for examples in batches.as_numpy_iterator():
            for pair in zip(examples[source], examples[target], strict=True):
                yield pair[0].decode("utf-8"), pair[1].decode("utf-8")

    def _builder(self, needs_split: bool = True) -> Any:
        """Returns the builder; downloads and prepares the data set first if need be."""
        with needs_extra("datasets"):
            import tensorflow_datasets as tfds

            import keras_transformer.data.number_names  # noqa: F401 (registers itself)
        download = tfds.download.DownloadConfig(try_download_gcs=False)
        failures = (ImportError, LookupError, OSError, ValueError, AssertionError)
        try:
            builder = tfds.builder(self.name, data_dir=self.data_dir)
            features = builder.info.features
            if not isinstance(features, tfds.features.Translation) or len(features) != 2:
                raise ValueError(f"{list(features or ())} is not text in two languages")
            if not sys.stderr.isatty():  # no bars in a log
                tfds.disable_progress_bar()
            with contextlib.redirect_stdout(sys.stderr):
                builder.download_and_prepare(download_config=download)
            if needs_split:
                builder.info.splits[self.split]
        except (*failures, tfds.download.DownloadError) as error:
            # TensorFlow Datasets puts the arguments of the constructor before the cause.
            reason = one_line(str(error).rpartition('}": ')[2])
            if reason.startswith("BuilderConfig "):
                configs = tfds.builder_cls(self.name.split("/")[0]).builder_configs
                reason = f"its configs are {', '.join(configs)}; reverse swaps source and target"
            raise InputError(f"{self} cannot be read: {reason}") from error
        return builder
