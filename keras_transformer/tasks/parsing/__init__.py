"""Constituency parsing as in Vinyals et al. 2015, measured as EVALB measures it.

A model reads a sentence and generates its tree from left to right, words as their part of speech:
"(S (NP DT NN )NP (VP VBZ )VP )S". The way there and back:

- trees.py reads bracketed trees, linearizes them, and compares them with a reference,
- constraint.py restricts a search to trees over the words of the sentence, and puts these words
  into the output in the exported graph: "(S (NP (DT the) (NN dog)) (VP (VBZ barks)))".
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer.config import WORD_START, DataConfig, option
from keras_transformer.errors import InputError
from keras_transformer.files import Path, iterate_lines
from keras_transformer.tasks.parsing import trees
from keras_transformer.tasks.task import Metric, Task, register_task

if TYPE_CHECKING:  # tasks load without TensorFlow
    from keras_transformer.data.corpus import PairSource
    from keras_transformer.text import Vocabulary


@register_task
@dataclasses.dataclass(frozen=True, kw_only=True)
class ParsingTask(Task):
    """Constituency parsing."""

    copy_words: bool = option(
        False,
        "Also generate each word, before its tag, so that the model keeps its place in the "
        "sentence; max_extra_length must leave room for them.",
        is_learned=True,
    )

    name = "parsing"
    metric = Metric("f1", "F1")
    # Vaswani et al. 2017, section 6.3.
    default_search = {  # noqa: RUF012
        "beam_size": 21,
        "length_penalty": 0.3,
        "max_extra_length": 300,
        "replace_unknowns": False,
    }
    dev_search = {"beam_size": 1}  # noqa: RUF012
    default_data = {"target_level": "word", "vocabulary_normalization": "identity"}  # noqa: RUF012

    def check_data(self, data: DataConfig) -> None:
        if data.reverse:
            raise InputError("trees contain their sentences: parsing has no reverse; remove it")
        if data.train_source or data.dev_source or data.test_source:
            raise InputError(
                "trees contain their sentences: give train_file, dev_file and test_file instead of "
                "sources and targets"
            )
        source, target = data.kinds
        if self.copy_words:
            if source != "bpe" or not data.shares_vocabulary:
                raise InputError(
                    "copy_words needs one vocabulary, in which a word always has the same tokens: "
                    "give target_level bpe"
                )
        elif source == "word" or target != "word":
            raise InputError(
                f"parsing needs the target_level word and a source_level that is not word, got "
                f"{target} and {source}; unknown words in a row could not be counted"
            )

    def read_file(self, path: Path) -> "PairSource":
        """Returns the sentences and trees of a file of bracketed trees."""
        return trees.TreeFile(path)

    def target_text(self, reference: str) -> str:
        tree = trees.clean(trees.parse_tree(reference))
        return trees.linearize(tree, copy_words=self.copy_words)

    def symbols(self, sources: "Sequence[PairSource]") -> list[str]:
        """Returns the brackets and tags of a text with words among them."""
        marks = tuple(trees.MARKS.values())
        words = {word for source in sources for _, text in source for word in text.split(" ")}
        return sorted(word for word in words if word.startswith(marks))

    def constraints(
        self, source: Any, vocabularies: "tuple[Vocabulary, Vocabulary]"
    ) -> Sequence[Any]:
        """Returns the constraint that allows trees over the words of the source only."""
        from keras_transformer.tasks.parsing.constraint import (
            BalancedBrackets,
            CopiedWords,
            copied_words,
            word_kinds,
        )
        from keras_transformer.text.sentencepiece_model import RESERVED_IDS

        target = vocabularies[1]
        if self.copy_words:
            ids, labels, begins_word = copied_words(source, target)
            words = word_kinds(source, target)
            return [CopiedWords(ids, words, labels, begins_word, trees.PUNCTUATION_TAGS)]
        tokens = [token.removeprefix(WORD_START) for token in target.pieces(range(target.size))]
        kinds = word_kinds(source, vocabularies[0])
        return [BalancedBrackets(kinds, tokens, RESERVED_IDS, trees.PUNCTUATION_TAGS)]

    def read_text(self, sources: Any) -> Any:
        """Returns texts with spaces for other white space, which vocabularies keep in words."""
        import tensorflow as tf

        return tf.strings.regex_replace(sources, r"[\s\v]+", " ")

    def finish(self, outputs: Any, sources: Any) -> Any:
        """Returns trees in brackets over the words of the sources; see `write_trees`."""
        from keras_transformer.tasks.parsing.constraint import drop_words, write_trees

        return write_trees(drop_words(outputs) if self.copy_words else outputs, sources)

    def read_answers(self, path: Path) -> list[str]:
        """Returns the trees of a file, each on one line; empty for "(())", a parser's failure."""
        answers, first_line = [], 1
        lines = iterate_lines(path)
        for is_failure, group in itertools.groupby(lines, lambda line: line.strip() == "(())"):
            part = list(group)
            if is_failure:
                answers += [""] * len(part)
            else:
                numbered = trees.read_trees(part, str(path), first_line)
                answers += [trees.to_text(tree) for _, tree in numbered]
            first_line += len(part)
        return answers

    def check_references(self, references: Sequence[str], vocabulary: "Vocabulary") -> None:
        """Warns of nothing: the words of an output are those of its source."""

    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns "f1", 0..100, and EVALB's summary, "evalb".

        EVALB ignores sentences whose trees have different words, even if only because their tags
        mark different tokens as punctuation; "f1" counts such outputs as having no brackets.
        """
        scores = self._scores(outputs, references)
        valid = [score for score in scores if score.status == "ok"]
        missed = []
        for score, text in zip(scores, references, strict=True):
            if score.status != "ok":  # a treebank's root is no bracket here either
                tree = trees.with_comparable_root(trees.parse_tree(text), [f"({trees.ROOT}"])
                missed.append(trees.score_tree(tree, tree).reference)
        brackets = sum(score.reference + score.output for score in valid) + sum(missed)
        matched = sum(score.matched for score in valid)
        f1 = 200 * matched / brackets if brackets else None
        return {"f1": f1, "evalb": trees.summarize(scores)}

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns "f1", and EVALB's summary (COLLINS.prm)."""
        f1 = "undefined" if results["f1"] is None else f"{results['f1']:.2f}"
        return {"F1, errors counted": f1} | {
            f"EVALB {name.replace('_', ' ')}": (
                f"{value:.2f}" if isinstance(value, float) else f"{value:,}"
            )
            for name, value in results["evalb"].items()
        }

    def _scores(
        self, outputs: Sequence[str], references: Sequence[str]
    ) -> list[trees.SentenceScore]:
        scores = []
        for text, reference_text in zip(outputs, references, strict=True):
            pair = (trees.parse_tree(text) if text else [], trees.parse_tree(reference_text))
            output, reference = map(trees.with_comparable_root, pair, reversed(pair))
            scores.append(trees.score_tree(output, reference))
        return scores
