"""Translates files, or standard input, to standard output: one sentence a line, in order.

echo "two hundred and five" | python scripts/translate.py --run_dir=runs/numbers
python scripts/translate.py --saved_model=exports/numbers/1 input.en > output.de
python scripts/translate.py --run_dir=runs/numbers --references=output.de input.en > scores.tsv
"""

import sys
from typing import TYPE_CHECKING, Any

from absl import flags

import common
from keras_transformer.config import SearchConfig
from keras_transformer.errors import InputError

if TYPE_CHECKING:
    from keras_transformer.serving import LocalTranslator, Translation

_RUN_DIR = flags.DEFINE_string(
    "run_dir",
    None,
    "Directory of a training run. Several, separated by commas, translate together.",
)
_SAVED_MODEL = flags.DEFINE_string(
    "saved_model", None, "An exported version to translate with, in place of --run_dir."
)
_CHECKPOINT = common.define_checkpoint_flag()
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences translated at once.", lower_bound=1)
_SCORES = flags.DEFINE_boolean(
    "scores",
    False,
    "Write line number, score and translation, tab-separated; so it is for n-best lists anyway.",
)
_REFERENCES = flags.DEFINE_string(
    "references",
    None,
    "A file with a translation of each line, to be scored: writes line number, log-probability "
    "and the log-probability of each symbol, tab-separated.",
)
_PREFIXES = flags.DEFINE_string(
    "prefixes", None, "A file with what the translation of each line must begin with."
)
_ALIGNMENTS = flags.DEFINE_boolean(
    "alignments",
    False,
    "Write behind each best translation, or reference, a tab and its word alignment: pairs of "
    "source and target word, numbered from 0, by the model's attention.",
)
_REMOVE_BPE = flags.DEFINE_boolean(
    "remove_bpe",
    None,
    'Join pieces marked with "@@ " in the translations. Default: the run\'s remove_bpe.',
)
common.define_flags(SearchConfig)


def main(arguments: list[str]) -> None:
    if (_RUN_DIR.value is None) == (_SAVED_MODEL.value is None):
        raise InputError("give --run_dir or --saved_model, one of the two")
    given = common.given_flags(SearchConfig)
    if _REFERENCES.value is not None and (given or _PREFIXES.value is not None):
        raise InputError("--references scores what is there already; leave options of search out")
    search = SearchConfig(**given)  # so that a wrong value is told at once
    wishes = {} if _RUN_DIR.value is not None else _wishes(given)
    common.load_tensorflow()

    lines = common.read_input(arguments)  # opened before the model, for the same reason
    join = _REMOVE_BPE.value
    if _RUN_DIR.value is not None:
        model = _load_run(_RUN_DIR.value, search)
        join = _run_joins(_RUN_DIR.value) if join is None else join
    else:
        model = _load_export(_SAVED_MODEL.value or "")
    at_once = common.lines_at_once(arguments)
    number = 0
    beside = _REFERENCES.value or _PREFIXES.value
    for sentences, partners in common.read_together(lines, beside, at_once):
        if _REFERENCES.value is not None:
            _score(model, sentences, partners, number)
        else:
            if _PREFIXES.value is not None:
                wishes["prefix"] = partners
            _translate(model, sentences, wishes, number, bool(join))
        number += len(sentences)
        sys.stdout.flush()


def _translate(
    model: "LocalTranslator", sentences: list[str], wishes: dict[str, Any], number: int, join: bool
) -> None:
    """Translates and writes some sentences; `number` lines came before them."""
    results = model.translate(sentences, _BATCH_SIZE.value, **wishes)
    endings = [""] * len(sentences)
    if _ALIGNMENTS.value:
        endings = _alignments(model, sentences, [best.text for best, *_ in results])
    rows = zip(results, endings, strict=True)
    for line, (translations, ending) in enumerate(rows, start=number + 1):
        _write(line, translations, ending, join)


def _score(
    model: "LocalTranslator", sentences: list[str], references: list[str], number: int
) -> None:
    endings = [""] * len(sentences)
    if _ALIGNMENTS.value:
        endings = _alignments(model, sentences, references)
    rows = zip(model.score(sentences, references, _BATCH_SIZE.value), endings, strict=True)
    for line, (score, ending) in enumerate(rows, start=number + 1):
        symbols = "\t".join(f"{each:.4f}" for each in score.token_scores)
        sys.stdout.write(f"{line}\t{score.score:.4f}\t{symbols}{ending}\n")


def _alignments(
    model: "LocalTranslator", sentences: list[str], translations: list[str]
) -> list[str]:
    """Returns what stands behind each translation."""
    return [
        "\t" + " ".join(f"{source}-{target}" for source, target in pairs)
        for pairs in model.align(sentences, translations, _BATCH_SIZE.value)
    ]


def _write(number: int, translations: "list[Translation]", ending: str, join: bool) -> None:
    """Writes the translations of one sentence, the ending behind the best one."""
    from keras_transformer.text.scores import join_pieces

    with_scores = _SCORES.value or len(translations) > 1
    for text, score in translations:
        start = f"{number}\t{score:.4f}\t" if with_scores else ""
        sys.stdout.write(f"{start}{join_pieces(text) if join else text}{ending}\n")
        ending = ""


def _load_run(run_dirs: str, search: SearchConfig) -> "LocalTranslator":
    from keras_transformer.serving import Translator

    return Translator(*common.load_translator(run_dirs, _CHECKPOINT.value), search).local


def _run_joins(run_dirs: str) -> bool:
    from keras_transformer.training import RunDirectory

    return RunDirectory(run_dirs.split(",")[0]).configs()[1].remove_bpe


def _load_export(version: str) -> "LocalTranslator":
    from keras_transformer.serving import load_exported

    return load_exported(version)


def _wishes(given: dict[str, Any]) -> dict[str, Any]:
    """Returns flags as wishes that an export grants, if it can: for all sentences the same."""
    fixed = {"method", "beam_size", "beam_groups", "num_translations", "max_source_length"}
    if refused := sorted(fixed & set(given)):
        raise InputError(
            f"--{refused[0]} was fixed when {_SAVED_MODEL.value} was exported; leave it out, or "
            "translate with --run_dir"
        )
    return {
        name: "\n".join(value) if isinstance(value, list) else value
        for name, value in given.items()
    }


if __name__ == "__main__":
    common.run(main)
