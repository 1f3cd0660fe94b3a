"""Lines of text in, lines out: shared by `translate` and `serve_client`.

Each line of the input is translated, or a given translation of it is scored; the results are
written in the order of the input, to standard output or to a file, which a job that was killed
continues: while it runs, its output is FILE.part, renamed to FILE at the end. FILE.part.json beside
it says which job it is and how far it has come. It is replaced after each step, when the step's
output is on the disk, so what follows in FILE.part belongs to a step that did not end, and is
dropped.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import pathlib
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TextIO, TypeAlias

from absl import flags

from keras_transformer.client import FailedRowsError
from keras_transformer.commands import common
from keras_transformer.errors import InputError, writing
from keras_transformer.files import (
    Path,
    iterate_lines,
    replace_control_characters,
    sync,
    write_atomically,
)
from keras_transformer.markup import SplitMarkup
from keras_transformer.paragraphs import SplitParagraphs
from keras_transformer.results import DetailedTranslation, Translation

if TYPE_CHECKING:
    from keras_transformer.client import Client
    from keras_transformer.inference import BatchTranslator

flags.disclaim_key_flags()  # these are flags of the command that defines them through here

Postprocess: TypeAlias = Callable[[Sequence[str], Sequence[str]], list[str]]

_LINES_AT_ONCE = 10_000
_LINES_PER_STEP = 1_000  # of a job with --output, which loses the last step when it is killed
_PROMPT = "> "


def define_line_flags() -> None:
    """Defines the flags of what is given with each line and what is written for it."""
    flags.DEFINE_boolean(
        "scores",
        False,
        "Write line number, score and translation, tab-separated, as is always done for n-best "
        "lists.",
    )
    flags.DEFINE_string(
        "references",
        None,
        "A file with a translation of each line, to be scored: writes line number, "
        "log-probability and the log-probability of each token, tab-separated.",
    )
    flags.DEFINE_string(
        "prefixes", None, "A file with the text that the translation of each line must begin with."
    )
    flags.DEFINE_boolean(
        "alignments",
        False,
        "Write after each best translation, or reference, a tab and its word alignment: pairs of "
        "source and target word, numbered from 0 in the lines as they are read and written, by "
        "the model's attention.",
    )
    flags.DEFINE_boolean(
        "details",
        False,
        "Write each translation as a line of JSON: number of its line, text, score, tokens and the "
        "log-probability of each, word alignment, and whether source or output was cut. An export "
        "needs the same flag.",
    )
    flags.DEFINE_string(
        "split_sentences",
        None,
        "The language of the input, for example en: translate each sentence of a line by itself "
        "and join the translations.",
    )
    flags.DEFINE_enum(
        "markup",
        None,
        ["html"],
        "The input has HTML tags and entities, and placeholders such as {name} or %s: translate "
        "the text without them, and put them back by the model's attention.",
    )
    flags.DEFINE_string(
        "output",
        None,
        "Write to this file instead of standard output. It is complete when it appears; until then "
        "it is FILE.part, from which the same command continues after the process was killed.",
    )
    flags.DEFINE_boolean("restart", False, "Start anew where FILE.part of --output exists.")


def check_output(inputs: Sequence[str]) -> None:
    """Raises `InputError`, before anything is loaded, where --output could not be written to.

    Args:
        inputs: the files to translate.
    """
    if flags.FLAGS.output is not None:
        inputs = [*inputs, flags.FLAGS.references, flags.FLAGS.prefixes]
        common.check_output(pathlib.Path(flags.FLAGS.output), inputs)
    elif flags.FLAGS.restart:
        raise InputError("--restart starts the job of --output anew; add --output, or remove it")


def describe_job(module: str, model: Mapping[str, Any], without: Collection[str]) -> dict[str, Any]:
    """Returns what the output of a command depends on beside its input, as JSON values.

    Args:
        module: that defines the flags.
        model: identifies the model.
        without: flags that make no difference.
    """
    own = flags.FLAGS.get_key_flags_for_module(module)
    dropped = {"output", "restart", *without}
    given = {f"--{each.name}": each.value for each in own if each.name not in dropped}
    return {**{name: value for name, value in given.items() if value is not None}, **model}


def check_flags(search_flags: Mapping[str, Any]) -> None:
    """Raises `InputError` if translations are to be scored and searched for at the same time."""
    if flags.FLAGS.references is not None and (search_flags or flags.FLAGS.prefixes is not None):
        raise InputError(
            "--references scores given translations and cannot be combined with search options; "
            "remove them"
        )
    useless = {
        "details": ["references", "scores", "alignments", "split_sentences", "markup"],
        "markup": ["references", "scores", "alignments", "num_translations"],
        "split_sentences": ["references", "scores", "alignments", "prefixes", "num_translations"],
    }
    for name, others in useless.items():
        for other in others:
            is_given = other in flags.FLAGS and flags.FLAGS[other].present
            if is_given and flags.FLAGS[name].value:
                raise InputError(f"--{other} cannot be combined with --{name}; remove one of them")
    split_lines([])  # reports a wrong language now


def split_lines(lines: Sequence[str]) -> SplitMarkup | SplitParagraphs | None:
    """Returns the sentences that are translated for lines with --markup or --split_sentences."""
    language = flags.FLAGS.split_sentences
    if flags.FLAGS.markup:
        return SplitMarkup(lines, language)
    return SplitParagraphs(lines, language) if language else None


def lines_at_once(paths: list[str], output: str | None = None) -> int:
    """Returns how many lines to answer together: one if a person types them.

    Args:
        paths: of the input; none for standard input.
        output: the file that a job writes; None for standard output.
    """
    if not paths and sys.stdin and sys.stdin.isatty():
        print("Type sentences, one a line; Ctrl-D ends.", file=sys.stderr)
        return 1
    return _LINES_AT_ONCE if output is None else _LINES_PER_STEP


def read_input(paths: list[str]) -> Iterator[str]:
    """Returns the lines of files, one file after the other, or of standard input.

    Raises:
        InputError: at once where a file does not exist; later where text is not UTF-8.
    """
    if not paths:
        return _standard_input()
    for path in paths:
        if not os.path.exists(path):
            raise InputError(
                f"the file {path} does not exist; name files, or give sentences on standard input"
            )
    return itertools.chain.from_iterable(map(iterate_lines, paths))


def _standard_input() -> Iterator[str]:
    if sys.stdin is None:
        raise InputError("standard input is closed; name files, or give sentences there")
    for number in itertools.count(1):
        if sys.stdin.isatty():
            print(_PROMPT, end="", file=sys.stderr, flush=True)
        line = sys.stdin.buffer.readline()
        if not line:
            return
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            yield text.removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError as error:
            raise InputError(
                f"standard input, line {number} is not UTF-8: {error.reason}; convert it first"
            ) from error


def _as_is(outputs: Sequence[str], sources: Sequence[str]) -> list[str]:
    return list(outputs)


def answer_lines(
    model: Any,
    lines: Iterator[str],
    search_options: Mapping[str, Any],
    *,
    job: Mapping[str, Any],
    at_once: int = _LINES_AT_ONCE,
    num_translations: int = 1,
    postprocess: Postprocess = _as_is,
    **options: Any,
) -> None:
    """Writes the translations of all lines, or the scores of references, in the lines' order.

    Args:
        model: a `BatchTranslator` or a `Client`, which translates, scores and aligns.
        lines: the input.
        search_options: for all sentences.
        job: by `describe_job`.
        at_once: lines that are sorted by length together; their answers come out together.
        num_translations: as many as the model returns of a line, if that is known.
        postprocess: what is done to translations before they are written, see `Task.postprocess`.
        **options: for each call of the model's methods.

    Raises:
        InputError: at the end where the model rejects lines, which are reported on standard error
            and whose output is empty; at once for anything else that is wrong.
    """
    if split_lines([]) is not None:
        model = _OfSentences(model)
    # A paragraph or a text with markup is made of the best translations of its sentences.
    is_whole = not isinstance(model, _OfSentences)
    has_scores = is_whole and (flags.FLAGS.scores or num_translations > 1)
    arguments = (model, lines, search_options, at_once, has_scores, postprocess, options)
    if flags.FLAGS.output is None:
        num_failed = _write_answers(None, *arguments)
    else:
        with open_part(flags.FLAGS.output, job, restart=flags.FLAGS.restart) as output:
            num_failed = _write_answers(output, *arguments)
    if num_failed:
        raise InputError(f"{num_failed:,} lines failed and are empty in the output; see above")


def _write_answers(
    output: "PartFile | None",
    model: Any,
    lines: Iterator[str],
    search_options: Mapping[str, Any],
    at_once: int,
    has_scores: bool,
    postprocess: Postprocess,
    options: Mapping[str, Any],
) -> int:
    """Does what `answer_lines` does; returns how many lines failed."""
    references, prefixes = flags.FLAGS.references, flags.FLAGS.prefixes
    if at_once == 1 and references is None:
        model.translate(["a"], **options, **search_options)  # the first search takes seconds more
    steps = _read_together(lines, references or prefixes, at_once)
    is_split = isinstance(model, _OfSentences)
    stream, digest = sys.stdout, hashlib.sha256()
    progress = Progress(has_scores=has_scores)
    if output is not None:
        stream = output.stream
        if output.progress.num_lines:
            progress = dataclasses.replace(output.progress)
            _skip_lines(steps, output, digest)
    for sentences, partners in steps:
        numbers = range(progress.num_lines + 1, progress.num_lines + 1 + len(sentences))
        failed: set[int] = set()
        if references is not None:
            found = _attempt(failed, numbers, model.score, sentences, partners, **options)
            scored = [
                None if each is None else text for each, text in zip(found, partners, strict=True)
            ]
            alignments = _alignments(failed, numbers, model, sentences, scored, options, _as_is)
            for each, alignment, number in zip(found, alignments, numbers, strict=True):
                scores = [] if each is None else [each.score, *each.token_scores]
                columns = [f"{score:.4f}" for score in scores]
                write_row(str(number), *columns, *alignment, stream=stream)
        else:
            wanted = dict(search_options)
            if prefixes is not None:
                wanted["prefix"] = partners
            if flags.FLAGS.details:
                wanted["details"] = True
            results = _attempt(failed, numbers, model.translate, sentences, **options, **wanted)
            best = [None if each is None else each[0].text for each in results]
            alignments = _alignments(failed, numbers, model, sentences, best, options, postprocess)
            # A sentence may have fewer translations than others, but rows have the same columns.
            if any(each is not None and len(each) > 1 for each in results):
                progress.has_scores = True
            rows = zip(sentences, results, alignments, numbers, strict=True)
            for sentence, translations, alignment, number in rows:
                if flags.FLAGS.details:
                    for each in translations or [None]:
                        write_row(_in_json(number, sentence, each, postprocess), stream=stream)
                    continue
                if translations is None:
                    columns = [str(number), ""] if progress.has_scores else []
                    write_row(*columns, "", stream=stream)
                    continue
                for text, score in translations:
                    columns = [str(number), f"{score:.4f}"] if progress.has_scores else []
                    columns += postprocess([text], [sentence])
                    if is_split:  # the only column; a tab is a space between sentences
                        columns = columns[0].split("\t")
                    write_row(*columns, *alignment, stream=stream)
                    alignment = []  # only the best translation has one
        progress.num_lines += len(sentences)
        progress.num_failed += len(failed)
        if output is None:
            stream.flush()
        else:
            _add_lines(digest, sentences, partners)
            progress.input_sha256 = digest.hexdigest()
            output.end_step(dataclasses.replace(progress))
    return progress.num_failed


def _skip_lines(
    steps: Iterator[tuple[list[str], list[str]]], output: "PartFile", digest: "hashlib._Hash"
) -> None:
    """Skips the input whose output exists; raises `InputError` if it was another input."""
    num_lines = 0
    while num_lines < output.progress.num_lines and (step := next(steps, None)):
        num_lines += len(step[0])
        _add_lines(digest, *step)
    if (num_lines, digest.hexdigest()) != (
        output.progress.num_lines,
        output.progress.input_sha256,
    ):
        raise InputError(
            f"{output.path} was begun with another input; repeat the command that began it, or add "
            "--restart to start anew"
        )
    print(f"Continuing {output.path} after {num_lines:,} lines.", file=sys.stderr)


def _add_lines(digest: "hashlib._Hash", *columns: list[str]) -> None:
    digest.update(json.dumps(columns).encode())


def _attempt(
    failed: set[int],
    numbers: Sequence[int],
    method: Callable[..., list[Any]],
    *columns: Sequence[Any],
    **options: Any,
) -> list[Any]:
    """Returns the answers of a model to rows, None for those that it rejects.

    These are reported on standard error, and the numbers of their lines are added to `failed`.
    """
    try:
        return method(*columns, **options)
    except FailedRowsError as error:
        for row, failure in error.failures.items():
            print(f"line {numbers[row]}: {failure}", file=sys.stderr)
            failed.add(numbers[row])
        return list(error.results)


def write_row(*columns: str, stream: TextIO | None = None) -> None:
    """Writes one line, by default to standard output; control characters are replaced."""
    row = "\t".join(map(replace_control_characters, columns)) + "\n"
    (stream or sys.stdout).write(row)


def _alignments(
    failed: set[int],
    numbers: Sequence[int],
    model: "BatchTranslator | Client",
    sentences: list[str],
    translations: Sequence[str | None],
    options: Mapping[str, Any],
    postprocess: Postprocess,
) -> list[list[str]]:
    """Returns a column with the alignment of each translation, none unless it is asked for.

    Words are numbered as in the postprocessed translation: one that is joined from several has the
    pairs of all of them, each pair once. The column is empty where there is no translation.
    """
    if not flags.FLAGS.alignments:
        return [[] for _ in sentences]
    columns = [[""] for _ in sentences]
    rows = [row for row, text in enumerate(translations) if text is not None]
    sources, targets = ([texts[row] for row in rows] for texts in (sentences, translations))
    lines = [numbers[row] for row in rows]
    found = _attempt(failed, lines, model.align, sources, targets, **options)
    for row, sentence, translation, pairs in zip(rows, sources, targets, found, strict=True):
        text = str(translation)
        columns[row] = [_in_written_words(pairs or [], str(sentence), text, postprocess)]
    return columns


def _in_written_words(
    pairs: Sequence[tuple[int, int]], sentence: str, translation: str, postprocess: Postprocess
) -> str:
    """Returns an alignment with words numbered as in the postprocessed translation."""
    words, written = translation.split(), []
    for source, target in pairs:
        (so_far,) = postprocess([" ".join(words[: target + 1])], [sentence])
        written.append(f"{source}-{max(len(so_far.split()) - 1, 0)}")
    return " ".join(dict.fromkeys(written))


def _in_json(
    number: int, sentence: str, translation: DetailedTranslation | None, postprocess: Postprocess
) -> str:
    """Returns a translation with its details, for a line of output; only the number if it failed.

    The attention is left out: it has a number for each pair of tokens.
    """
    values: dict[str, Any] = {"line": number}
    if translation is not None:
        (text,) = postprocess([translation.text], [sentence])
        alignment = _in_written_words(
            translation.alignment, sentence, translation.text, postprocess
        )
        values |= translation._asdict() | {
            "text": text,
            "score": round(translation.score, 4),
            "token_scores": [round(score, 4) for score in translation.token_scores],
            "alignment": alignment,
        }
        del values["attention"]
    return json.dumps(values, ensure_ascii=False)


class _OfSentences:
    """A model that translates the sentences of lines, for --markup and --split_sentences."""

    def __init__(self, model: "BatchTranslator | Client") -> None:
        self._model = model

    def translate(self, lines: list[str], **options: Any) -> list[list[Translation]]:
        """Returns one translation of each line, without a score."""
        split: Any = split_lines(lines)
        failures: dict[int, Any] = {}

        def answers(method: Callable[..., Any], *columns: Sequence[str], **options: Any) -> Any:
            try:
                return method(*columns, **options)
            except FailedRowsError as error:
                failures.update({split.rows[i]: each for i, each in error.failures.items()})
                return error.results

        results = answers(self._model.translate, split.sentences, **options)
        columns = [["" if each is None else each[0].text for each in results]]
        if flags.FLAGS.markup:
            batch_size = {name: options[name] for name in ("batch_size",) if name in options}
            links = answers(self._model.align, split.sentences, *columns, **batch_size)
            columns.append([each or [] for each in links])
        found = [[Translation(text, 0.0)] for text in split.join(*columns)]
        if failures:
            answered = [None if row in failures else each for row, each in enumerate(found)]
            raise FailedRowsError(answered, failures)
        return found


def _read_together(
    lines: Iterator[str], beside: str | None, at_once: int
) -> Iterator[tuple[list[str], list[str]]]:
    """Yields some lines at a time, with the lines of the file `beside` that belong to them.

    Raises:
        InputError: the file `beside` has fewer lines, or more.
    """
    others = iter(()) if beside is None else read_input([beside])
    number = 0
    while sentences := list(itertools.islice(lines, at_once)):
        partners = list(itertools.islice(others, len(sentences)))
        if beside is not None and len(partners) < len(sentences):
            raise InputError(f"{beside} has {number + len(partners)} lines, the input has more")
        number += len(sentences)
        yield sentences, partners
    if next(others, None) is not None:
        raise InputError(f"{beside} has more lines than the {number} of the input")


@dataclasses.dataclass
class Progress:
    """How far a job has come.

    Attributes:
        num_lines: lines of the input that are done.
        input_sha256: a hash of these lines.
        num_failed: how many of them failed.
        has_scores: whether rows have scores, see `answer_lines`.
        num_bytes: the size of their output.
    """

    num_lines: int = 0
    input_sha256: str = ""
    num_failed: int = 0
    has_scores: bool = False
    num_bytes: int = 0


class PartFile:
    """The output of a job while it is written; made by `open_part`.

    Attributes:
        stream: where to write lines; each is flushed.
        progress: of the last step that ended.
        path: of the unfinished output, for messages.
    """

    def __init__(self, path: pathlib.Path, stream: TextIO, job: Any, progress: Progress) -> None:
        self.path = path
        self.stream = stream
        self.progress = progress
        self._job = job

    def end_step(self, progress: Progress) -> None:
        """Records how far the job has come: it continues from here if it is killed later."""
        os.fsync(self.stream.fileno())
        progress.num_bytes = os.fstat(self.stream.fileno()).st_size
        content = {"job": self._job, "progress": dataclasses.asdict(progress)}
        write_atomically(_record(self.path), json.dumps(content, indent=2) + "\n")
        self.progress = progress


@contextlib.contextmanager
def open_part(path: Path, job: Mapping[str, Any], *, restart: bool) -> Iterator[PartFile]:
    """Yields the output of a job, renamed to its final name when the block ends without an error.

    Args:
        path: the final name.
        job: JSON values that differ between jobs with different output.
        restart: whether to start anew, whatever there is of an unfinished job.

    Raises:
        InputError: there is the unfinished output of another job, or another process writes it, or
            it cannot be written.
    """
    target = pathlib.Path(os.path.realpath(path))
    common.check_output(target)
    if target.exists() and not target.is_file():
        raise InputError(f"{path} is no file; give the name of one, or use standard output")
    part = target.with_name(f"{target.name}.part")
    with writing(str(part)), part.open("a", buffering=1, encoding="utf-8", newline="\n") as stream:
        _lock(stream, part)
        job = json.loads(json.dumps(job))  # as it is read again
        progress = Progress() if restart else _read_progress(part, job)
        stream.truncate(progress.num_bytes)
        unfinished = PartFile(part, stream, job, progress)
        unfinished.end_step(progress)
        try:
            yield unfinished
        except BaseException:
            if not unfinished.progress.num_lines:
                part.unlink()
                _record(part).unlink()
            raise
        os.fsync(stream.fileno())
        part.replace(target)
        sync(target.parent)
        _record(part).unlink()


def _record(part: pathlib.Path) -> pathlib.Path:
    return part.with_name(f"{part.name}.json")


def _lock(stream: TextIO, part: pathlib.Path) -> None:
    """Raises `InputError` if another process writes the file, or has just finished it."""
    is_free = True
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        is_free = part.exists() and os.path.samestat(os.fstat(stream.fileno()), part.stat())
    except BlockingIOError:
        is_free = False
    except OSError:
        pass  # a file system without locks
    if not is_free:
        raise InputError(f"{part} is written by another process; wait for it, or end it first")


def _read_progress(part: pathlib.Path, job: Any) -> Progress:
    """Returns how far a job has come; raises `InputError` if another one has written the file."""
    size = part.stat().st_size
    advice = "repeat the command that began it, or add --restart to start anew"
    try:
        content = json.loads(_record(part).read_text(encoding="utf-8"))
        begun, progress = dict(content["job"]), Progress(**content["progress"])
    except FileNotFoundError:
        if size:
            raise InputError(f"{part} has no {_record(part).name} beside it; {advice}") from None
        return Progress()
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{_record(part)} is damaged; {advice}") from error
    if not progress.num_lines or not size:  # `size` is 0 if it was killed after renaming its output
        return Progress()
    if size < progress.num_bytes:
        raise InputError(f"{part} is shorter than it was; {advice}")
    if differing := [key for key in {**begun, **job} if begun.get(key) != job.get(key)]:
        raise InputError(
            f"{part} was begun by a job with other values of {', '.join(differing)}; {advice}"
        )
    return progress
