"""Any number of sentences through the signatures of a model: translate, score, align.

`SentenceTranslator` reads sentences and options, and makes results of the answers. `Client` sends
its batches to a model server, `Translator` computes them in this process.
"""

import abc
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, overload

from keras_transformer.config import SearchConfig, check_options
from keras_transformer.config.search import REQUEST_OPTIONS
from keras_transformer.errors import InputError, as_text, check_sentences, check_unicode
from keras_transformer.outputs import (
    Attention,
    Result,
    Score,
    Translation,
    read_alignments,
    read_attention,
    read_scores,
    read_translations,
)

# Outputs, bool [B], of inference/model_functions.py: they mark sentences that a model did not take
# as they are. Exports have all but "best_cut".
REMARKS = {
    "code_unknown": "the vocabulary lacks the language code that begins the text",
    "source_cut": "longer than the model reads (max_source_length); the end is not read",
    "options_ignored": "an option is not kept as it is: the vocabulary lacks characters of the "
    "prefix, it is too long, or a number is too large",
    "best_cut": "the translation has as many tokens as it may have (max_extra_length, max_length); "
    "it had to end",
    "is_cut": "the translation is longer than the model can generate (max_source_length and "
    "max_extra_length together); its end is not scored",
}


class SentenceWarning(UserWarning):
    """A model did not take some sentences of a call as they are.

    Attributes:
        remark: the reason, a key of `REMARKS`.
        rows: the indices of the sentences.
    """

    def __init__(self, remark: str, rows: Sequence[int], count: int) -> None:
        super().__init__(f"{len(rows)} of {count} sentences: {REMARKS[remark]}")
        self.remark = remark
        self.rows = rows


# By name, the inputs of a signature as lists with a value for each sentence: text, floats or ints;
# and its outputs as nested lists.
Columns = Mapping[str, list[Any]]
UNSET: dict[type, Any] = {str: "", float: -1.0, int: -1}  # of an option that is not given, by type
Answer = Mapping[str, Any]


class SentenceTranslator(abc.ABC):
    """Translates, scores and aligns any number of sentences by the signatures of a model.

    Attributes:
        batch_size: the most sentences of a batch.
        num_translations: the most that the model returns of a sentence, as its answers to
            `translate` show; 1 before the first.
        report: takes each `SentenceWarning` in place of the user, if it is set.
    """

    batch_size: int = 64
    num_translations: int = 1
    report: Callable[[SentenceWarning], None] | None = None

    @overload
    def translate(self, sentences: str, **options: Any) -> Translation: ...

    @overload
    def translate(self, sentences: Sequence[str], **options: Any) -> list[Translation]: ...

    def translate(self, sentences: str | Sequence[str], **options: Any) -> Any:
        """Translates a sentence or a list of sentences.

        Gives a `SentenceWarning` where the model cuts a sentence or cannot keep one of its options.

        Args:
            sentences: one string, or any number of them.
            **options: search options that differ from the model's own, such as length_penalty,
                max_length, temperature or prefix: the fields of `SearchConfig` that may differ
                between sentences. Each is one value for all sentences or a list with one for each,
                where None means the model's own.

        Returns:
            The best translation of the string, or of each sentence of the list; the others of an
            n-best list are its `alternatives`.

        Raises:
            InputError: a sentence or an option is invalid.
            ServingError: a server gives no answer, or rejects a request.
        """
        texts = [sentences] if isinstance(sentences, str) else sentences
        columns: dict[str, list[Any]] = {"text": text_input("sentences", texts)}
        signature = "serving_default"
        if options:
            signature = "translate_options"
            names = self._input_names(signature)
            columns |= option_inputs(options, names, len(columns["text"]))

        def read(answer: Answer) -> list[Any]:
            # The alternatives may be fewer, since empty places are dropped.
            self.num_translations = len(answer["translations"][0])
            return read_translations(answer)

        results = self._read_rows(signature, columns, read)
        return results[0] if isinstance(sentences, str) else results

    def known_codes(self, codes: Sequence[str]) -> list[str]:
        """Returns which of some language codes, such as ">>deu<<", the model has."""

        def read(answer: Answer) -> list[bool]:
            # A model without any codes has no such output.
            return [not row for row in answer.get("code_unknown", [True] * len(answer["scores"]))]

        pairs = pair_inputs(codes, [""] * len(codes))  # `score` reads them without a search
        are_known = self._run("score", pairs, read) if codes else []
        return [code for code, is_known in zip(codes, are_known, strict=True) if is_known]

    def score(self, source: Sequence[str], target: Sequence[str]) -> list[Score]:
        """Returns the log-probability of each of the translations `target`.

        Gives a `SentenceWarning` where the model cuts a sentence, or a translation that is longer
        than any that it can generate.

        Raises:
            InputError: the numbers of sentences differ, or one is invalid.
            ServingError: as in `translate`.
        """
        return self._read_rows("score", pair_inputs(source, target), read_scores)

    def align(self, source: Sequence[str], target: Sequence[str]) -> list[list[tuple[int, int]]]:
        """Finds the source word to which each target word attends most; needs NumPy.

        Words are what stands between spaces in the texts as they are given. The list of a sentence
        is empty where its words cannot be told apart in its tokens: a vocabulary of whole words
        reads several unknown words in a row as one.

        Returns:
            For each sentence pairs (index of the source word, index of the target word).

        Raises:
            InputError: as in `score`, or the model has no attention.
            ServingError: as in `translate`.
        """
        return self._read_rows("attention", pair_inputs(source, target), read_alignments)

    def attention(self, source: Sequence[str], target: Sequence[str]) -> list[Attention]:
        """Returns the attention that `align` reads: a Transformer's is its last layer's mean head.

        Raises:
            InputError, ServingError: as in `align`.
        """
        return self._read_rows("attention", pair_inputs(source, target), read_attention)

    def _read_rows(
        self,
        signature: str,
        columns: Columns,
        read: Callable[..., list[Result]],
    ) -> list[Result]:
        """Returns the result of each row of a signature's inputs, and warns of what answers remark.

        `read` makes them of an answer, and raises as the functions of outputs.py do.
        """

        def read_batch(answer: Answer) -> list[tuple[Result, set[str]]]:
            results = read(answer)
            flags = {name: answer[name] for name in REMARKS if name in answer}
            return [
                (result, {name for name in flags if flags[name][row]})
                for row, result in enumerate(results)
            ]

        rows = self._run(signature, columns, read_batch)
        for name in REMARKS:
            if marked := [row for row, (_, remarks) in enumerate(rows) if name in remarks]:
                warning = SentenceWarning(name, marked, len(rows))
                if self.report is not None:
                    self.report(warning)
                else:
                    warnings.warn(warning, stacklevel=3)  # at the call of the public method
        return [result for result, _ in rows]

    @abc.abstractmethod
    def _input_names(self, signature: str) -> Collection[str]:
        """Returns the inputs of a signature."""

    @abc.abstractmethod
    def _run(
        self, signature: str, columns: Columns, read: Callable[[Answer], list[Result]]
    ) -> list[Result]:
        """Answers the rows of a signature's inputs in batches.

        Returns the result of each row, in their order: those that `read` makes of an answer.
        """


# Inputs of a request.


def text_input(name: str, texts: Sequence[str]) -> list[str]:
    """Returns sentences as an input: a list, or an array or eager tensor of strings.

    Raises:
        InputError: it is one string, a dictionary or a set instead of a list, or an element is not
            text.
    """
    if hasattr(texts, "graph"):
        raise InputError(
            f"{name} must be a list of sentences, got a tensor of a graph: translate outside of "
            "tf.function and Dataset.map; inside, call a signature of the exported model"
        )
    if hasattr(texts, "numpy"):
        texts = texts.numpy().tolist()
    check_sentences(name, texts)
    values = [as_text(text, name) for text in texts]
    for text in values:
        check_unicode(name, text)
    return values


def pair_inputs(source: Sequence[str], target: Sequence[str]) -> dict[str, list[str]]:
    """Returns sentences and their translations as inputs.

    Raises:
        InputError: their numbers differ, or as in `text_input`.
    """
    columns = {"source": text_input("source", source), "target": text_input("target", target)}
    sizes = [len(column) for column in columns.values()]
    if sizes[0] != sizes[1]:
        raise InputError(
            f"source and target must have as many sentences, got {sizes[0]} and {sizes[1]}"
        )
    return columns


def option_inputs(
    options: Mapping[str, Any], inputs: Collection[str], count: int
) -> dict[str, list[Any]]:
    """Checks options, and makes an input of each one that the model has, given or not.

    An option has one value for all sentences, or a sequence of `count` values.

    Raises:
        InputError: the model has no such option, or a value is invalid.
    """
    known = [name for name in REQUEST_OPTIONS if name in inputs]
    unknown = sorted(set(options) - set(known))
    if unknown:
        advice = ""
        if set(unknown) <= set(SearchConfig.fields_with()):  # of the whole search
            advice = "; give it to Translator.load, or to Translator in a SearchConfig"
        raise InputError(
            f"the model has no option {', '.join(unknown)} that can change from sentence to "
            f"sentence; it has {', '.join(sorted(known)) or 'none'}{advice}"
        )
    values = {name: _spread(name, options.get(name), count) for name in known}
    # A model would silently use other values instead of invalid ones.
    for row in {repr(row): row for row in zip(*values.values(), strict=True)}.values():
        given = {name: value for name, value in zip(known, row, strict=True) if value is not None}
        prefix = given.pop("prefix", "")
        if not isinstance(prefix, str):
            raise InputError(f"prefix must be text, got {prefix!r}")
        check_options(given)
        check_unicode("prefix", prefix)
    return {
        name: [UNSET[kind] if value is None else kind(value) for value in values[name]]
        for name, (kind, _) in REQUEST_OPTIONS.items()
        if name in known
    }


def _spread(name: str, value: Any, count: int) -> list[Any]:
    """Makes a value for each sentence: a number, text, or None."""
    if hasattr(value, "numpy") and not hasattr(value, "graph"):
        value = value.numpy()
    if hasattr(value, "tolist"):  # NumPy's numbers and arrays
        value = value.tolist()
    values = value if isinstance(value, list | tuple) else [value] * count
    if len(values) != count:
        raise InputError(
            f"{name} must be one value for all sentences or a list with one for each, got "
            f"{len(values)} for {count} sentences"
        )
    return list(values)


# Batches of rows of similar length, and their results back in the order of the rows.


def batches_by_length(
    lengths: Sequence[int], batch_size: int, max_padded_length: int | None = None
) -> list[list[int]]:
    """Returns the indices of rows in batches, the longest rows first.

    Rows of similar length share a batch, so that little of it is padding.

    Args:
        lengths: of each row.
        batch_size: the most rows of a batch.
        max_padded_length: the largest product of a batch's rows and its longest length; a longer
            row has its own batch. None for no limit.

    Raises:
        InputError: `batch_size` is below 1.
    """
    if batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    order = sorted(range(len(lengths)), key=lambda row: -lengths[row])
    batches = []
    first = 0
    while first < len(order):
        size = batch_size
        if max_padded_length is not None:
            size = min(size, max(max_padded_length // max(lengths[order[first]], 1), 1))
        batches.append(order[first : first + size])
        first += size
    return batches


def select_rows(columns: Columns, rows: Sequence[int]) -> dict[str, list[Any]]:
    """Returns the inputs of some rows."""
    return {name: [column[row] for row in rows] for name, column in columns.items()}


def in_row_order(
    batches: Sequence[Sequence[int]], results: Iterable[Sequence[Result]]
) -> list[Result]:
    """Returns the result of each row, given the results of each of `batches_by_length`."""
    by_row: dict[int, Result] = {}
    for batch, some in zip(batches, results, strict=True):
        by_row.update(zip(batch, some, strict=True))
    return [by_row[row] for row in range(len(by_row))]
