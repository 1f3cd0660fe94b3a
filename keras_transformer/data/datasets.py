"""Parallel text from TensorFlow Datasets, by name, read as a stream.

TensorFlow Datasets takes long to import, so that happens inside the functions.
"""

import contextlib
import dataclasses
import difflib
import io
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
        builder = self._with_split()[0]
        return {
            "kind": "data set",
            "name": builder.info.full_name,
            "split": self.split,
            "reverse": self.reverse,
            "files": list(map(file_identity, sorted(builder.info.splits[self.split].filepaths))),
        }

    def has_split(self) -> bool:
        """Whether the data set has this split; errors as in iteration."""
        builder, _ = self._prepared()
        return self._is_in(builder)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        builder, (source, target) = self._with_split()
        if self.reverse:
            source, target = target, source
        batches = builder.as_dataset(split=self.split).batch(_READ_EXAMPLES)
        for examples in batches.as_numpy_iterator():
            for pair in zip(examples[source], examples[target], strict=True):
                yield pair[0].decode("utf-8"), pair[1].decode("utf-8")

    def _with_split(self) -> tuple[Any, tuple[str, str]]:
        """Returns the builder and languages; raises where the data set lacks the split."""
        builder, languages = self._prepared()
        if not self._is_in(builder):
            known = ", ".join(builder.info.splits)
            raise InputError(f"{self.name} has no split {self.split!r}; choose one of {known}")
        return builder, languages

    def _prepared(self) -> tuple[Any, tuple[str, str]]:
        """Downloads and prepares the data set if need be; returns it and its two languages."""
        builder = _find_builder(self.name, self.data_dir)
        languages = _languages(builder, self.name)  # raises before anything is downloaded
        _prepare(builder, self.name)
        return builder, languages

    def _is_in(self, builder: Any) -> bool:
        try:
            builder.info.splits[self.split]
        except (KeyError, ValueError):
            return False
        return True


def _find_builder(name: str, data_dir: str | os.PathLike[str] | None) -> Any:
    with needs_extra("datasets"):
        import tensorflow_datasets as tfds

        from keras_transformer.data import number_names  # noqa: F401 (registers itself)

    try:
        return tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        known = tfds.list_builders(with_community_datasets=False)
        close = difflib.get_close_matches(name.split("/")[0], known, n=5) or ["number_names"]
        raise InputError(
            f"there is no data set {name!r}; close names: {', '.join(close)}"
        ) from error
    except (ValueError, AssertionError, ImportError) as error:
        if "BuilderConfig" not in str(error):  # a malformed name, or a version that is not there
            # TensorFlow Datasets puts the arguments of the constructor before the cause.
            cause = str(error).rpartition('}": ')[2]
            raise InputError(f"data set {name!r} cannot be opened: {one_line(cause)}") from error
        configs = tfds.builder_cls(name.split("/")[0]).builder_configs
        raise InputError(
            f"there is no config {name!r}; configs: {', '.join(configs) or 'none'} "
            "(reverse swaps source and target)"
        ) from error


def _languages(builder: Any, name: str) -> tuple[str, str]:
    """Returns the source's and the target's key in the examples."""
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


def _prepare(builder: Any, name: str) -> None:
    import tensorflow_datasets as tfds

    download = tfds.download.DownloadConfig(try_download_gcs=False)
    try:
        with contextlib.ExitStack() as stack:
            if not sys.stderr.isatty() and not builder.is_prepared():
                # One line instead of TensorFlow Datasets' bars and long lines.
                print(f"Preparing {name} in {builder.data_dir} ...", file=sys.stderr)
                stack.enter_context(contextlib.redirect_stdout(io.StringIO()))
                tfds.disable_progress_bar()
                stack.callback(tfds.enable_progress_bar)
            builder.download_and_prepare(download_config=download)
    except ImportError as error:
        raise InputError(
            f"{name} needs a package that is missing ({error}); install it with pip"
        ) from error
    except (OSError, AssertionError, tfds.download.DownloadError) as error:
        raise InputError(
            f"{name} could not be downloaded and prepared ({one_line(error)}); check the "
            f"network, or prepare it elsewhere and copy it to {builder.data_dir}"
        ) from error
