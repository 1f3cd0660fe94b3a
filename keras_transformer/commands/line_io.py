"""Lines of text in, lines out: shared by `translate` and `serve_client`.

Each line of the input is translated, or a given translation of it is scored. The results are
written in the order of the input, to standard output, or to a file once all are there.
"""

import contextlib
import dataclasses
import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

from keras_transformer.client import ServingError
from keras_transformer.commands.common import LineRemarks
from keras_transformer.config import JsonConfig, option
from keras_transformer.errors import InputError
from keras_transformer.files import atomic_file, iterate_lines, replace_control_characters
from keras_transformer.paragraphs import SplitParagraphs
from keras_transformer.sentences import SentenceTranslator
from keras_transformer.tasks import Task

_LINES_AT_ONCE = 10_000  # sorted by length together
_READ_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job(JsonConfig):
    """What to do with each line of an input: flags of a command.

    Raises:
        InputError: options contradict each other.
    """

    scores: bool = option(
        False,
        "Write line number, score and translation, tab-separated; n-best lists are always "
        "written so.",
    )
    alignments: bool = option(
        False,
        "Append to each best translation, or reference, a tab and its word alignment by "
        "attention: pairs of source and target word, both numbered from 0 in the lines as they "
        "are read and written.",
    )
    references: str | None = option(
        None,
        "File with a translation of each line, to be scored: writes line number, "
        "log-probability of the line, and log-probability of each token, tab-separated.",
        is_path=True,
    )
    split_sentences: str | None = option(
        None,
        "Translate each sentence of a line by itself and join the translations; the value is "
        "the language of the input, for example en.",
    )
    output: str | None = option(
        None,
        "Write to this file, which appears once it is complete. Default: standard output.",
        is_path=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        excluded = {
            "references": ["scores"],
            "split_sentences": ["references", "scores", "alignments"],
        }
        for name, others in excluded.items():
            for other in others:
                if getattr(self, name) and getattr(self, other):
                    raise InputError(f"--{other} cannot be combined with --{name}")
        if self.split_sentences:
            SplitParagraphs([], self.split_sentences)  # reports a wrong language now


def check_search(job: Job, search: Iterable[str]) -> None:
    """Raises `InputError` for a search option without effect on the job."""
    for name in search:
        is_limit = name in ("max_source_length", "max_extra_length")
        if job.references and not is_limit:
            raise InputError(f"--{name} cannot be combined with --references; remove it")
        if job.split_sentences and name == "num_translations":
            raise InputError(f"--{name} cannot be combined with --split_sentences; remove it")


def answer_lines(
    job: Job, model: SentenceTranslator, files: Sequence[str], search: dict[str, Any], task: Task
) -> None:
    """Writes the translations of all lines, or the scores of references, in the lines' order.

    Reports at the end which lines the model did not take as they are; without files the input is
    standard input. The task completes translations, and makes of references what the model has
    learned.

    Raises:
        InputError: the input is wrong, or the model rejects some lines.
    """
    answers = _Answers(job, model, search, task, LineRemarks(model))
    first = 1
    with _open_output(job.output) as stream:
        for lines, references in _with_references(read_groups(files), job.references):
            for row in answers.rows(lines, references, first):
                stream.write("\t".join(map(replace_control_characters, row)) + "\n")
            stream.flush()
            first += len(lines)
    answers.remarks.report()


def read_groups(files: Sequence[str]) -> Iterator[list[str]]:
    """Yields the lines of files, or of standard input, in groups that are answered together."""
    if files:
        lines = itertools.chain.from_iterable(map(iterate_lines, files))
        while group := list(itertools.islice(lines, _LINES_AT_ONCE)):
            yield group
    else:
        yield from _standard_input()


def _standard_input() -> Iterator[list[str]]:
    """Yields the lines of standard input as they arrive: a program may wait for the answers."""
    if sys.stdin.isatty():
        print("Type sentences, one a line; Ctrl-D ends.", file=sys.stderr)
    number, rest, is_open = 1, b"", True
    while is_open:
        read = os.read(sys.stdin.fileno(), _READ_BYTES)
        is_open = bool(read)
        *lines, rest = (rest + read).split(b"\n")
        if rest and not is_open:
            lines.append(rest)
        text = b"\n".join(lines)
        try:
            group = [line.removesuffix("\r") for line in text.decode("utf-8").split("\n")]
        except UnicodeDecodeError as error:
            line = number + text.count(b"\n", 0, error.start)
            raise InputError(
                f"standard input, line {line} is not UTF-8: {error.reason}; convert it first"
            ) from error
        if lines:
            if number == 1:
                group[0] = group[0].removeprefix("\ufeff")
            yield group
        number += len(lines)


@contextlib.contextmanager
def _open_output(path: str | None) -> Iterator[TextIO]:
    """Yields standard output, or a file that gets its name when the block ends without an error."""
    if path is None:
        yield sys.stdout
        return
    with atomic_file(path) as file, io.TextIOWrapper(file, "utf-8", newline="\n") as stream:
        yield stream


def _with_references(
    groups: Iterable[list[str]], path: str | None
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields groups of lines with those of a file; raises `InputError` unless it has as many."""
    others = iter(()) if path is None else iterate_lines(path)
    for group in groups:
        references = list(itertools.islice(others, len(group)))
        if path is not None and len(references) < len(group):
            raise InputError(f"{path} has fewer lines than the input; give one for each")
        yield group, references
    if next(others, None) is not None:
        raise InputError(f"{path} has more lines than the input; give one for each")


@dataclasses.dataclass(frozen=True)
class _Answers:
    """Answers groups of lines; the attributes are arguments of `answer_lines`."""

    job: Job
    model: SentenceTranslator
    search: dict[str, Any]
    task: Task
    remarks: LineRemarks

    def rows(self, lines: list[str], references: list[str], first: int) -> list[list[str]]:
        """Returns the columns of each row of output; `first` is the number of the first line."""
        split = None
        sentences, numbers = lines, list(range(first, first + len(lines)))  # lines of sentences
        if self.job.split_sentences:
            split = SplitParagraphs(lines, self.job.split_sentences, self.model.known_codes)
            sentences, numbers = split.sentences, [numbers[row] for row in split.rows]
        self.remarks.numbers = numbers
        try:
            if self.job.references is not None:
                return self._score(lines, list(map(self.task.target_text, references)), numbers)
            results = self.model.translate(sentences, **self.search)
            if split is None:
                return self._write(lines, results, numbers)
        except ServingError as error:
            if not error.rows:
                raise
            wrong = sorted({numbers[row] for row in error.rows})
            shown = ", ".join(map(str, wrong[:3])) + ", ..." * (len(wrong) > 3)
            raise InputError(f"line {shown}: {error}") from error
        texts = self.task.postprocess(split.join(list(map(str, results))), lines)
        return [text.split("\t") for text in texts]  # tabs of the paragraph are kept

    def _score(
        self, sentences: list[str], references: list[str], numbers: Sequence[int]
    ) -> list[list[str]]:
        rows = []
        for number, score in zip(numbers, self.model.score(sentences, references), strict=True):
            values = (score.score, *score.token_scores)
            rows.append([str(number), *(f"{value:.4f}" for value in values)])
        if self.job.alignments:
            for row, pairs in zip(rows, self.model.align(sentences, references), strict=True):
                row.append(" ".join(f"{source}-{target}" for source, target in pairs))
        return rows

    def _write(
        self, sentences: list[str], results: list[Any], numbers: Sequence[int]
    ) -> list[list[str]]:
        alignments: list[Any] = [None] * len(sentences)
        if self.job.alignments:
            alignments = self.model.align(sentences, [best.text for best in results])
        # A sentence may have fewer translations than others, but rows have the same columns.
        has_scores = self.job.scores or self.model.num_translations > 1
        rows = []
        for number, sentence, best, pairs in zip(
            numbers, sentences, results, alignments, strict=True
        ):
            for translation in (best, *best.alternatives):
                scores = [str(number), f"{translation.score:.4f}"] if has_scores else []
                rows.append([*scores, *self.task.postprocess([translation.text], [sentence])])
                if pairs is not None and translation is best:
                    rows[-1].append(self._in_written_words(pairs, sentence, best.text))
        return rows

    def _in_written_words(
        self, pairs: Sequence[tuple[int, int]], sentence: str, translation: str
    ) -> str:
        """Returns an alignment with words numbered as in the postprocessed translation.

        A word that is joined from several has the pairs of all of them, each pair once.
        """
        words, written = translation.split(), []
        for source, target in pairs:
            (so_far,) = self.task.postprocess([" ".join(words[: target + 1])], [sentence])
            written.append(f"{source}-{max(len(so_far.split()) - 1, 0)}")
        return " ".join(dict.fromkeys(written))
