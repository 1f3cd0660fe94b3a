"""Translation, measured by sacreBLEU (Post 2018)."""

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from keras_transformer.config import option
from keras_transformer.files import Path
from keras_transformer.tasks.task import Metric, Task, register_task, share_equal

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

    from keras_transformer.text import Vocabulary


@register_task
@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationTask(Task):
    """Translation, compared with one reference for each sentence."""

    bleu_tokenize: Literal["13a", "intl", "char", "zh", "none"] = option(
        "13a", "Tokenizer of sacreBLEU; none for text that is tokenized already."
    )
    bleu_lowercase: bool = option(False, "Ignore case in BLEU.")
    remove_bpe: bool = option(
        False,
        'The text is segmented into pieces marked with "@@ ": join them in translations, and '
        "in references before scoring.",
    )

    name = "translation"
    metric = Metric("bleu", "BLEU")

    def postprocess(self, outputs: Sequence[str], sources: Sequence[str]) -> list[str]:
        """Returns the outputs, with their pieces joined if `remove_bpe`."""
        return [join_pieces(text) for text in outputs] if self.remove_bpe else list(outputs)

    def read_answers(self, path: Path) -> list[str]:
        """Returns the lines of a file, with their pieces joined if `remove_bpe`."""
        return self.postprocess(super().read_answers(path), ())

    def check_references(self, references: Sequence[str], vocabulary: "Vocabulary") -> None:
        """Warns also of references that are tokenized, as sacreBLEU does on its own."""
        super().check_references(references, vocabulary)
        count = sum(text.endswith(" .") for text in references)
        if self.bleu_tokenize != "none" and 2 * count > len(references):
            warnings.warn(
                f"{count:,} of {len(references):,} references end in ' .': if they are tokenized, "
                "BLEU does not compare with others'; detokenize them, or give --bleu_tokenize=none",
                stacklevel=2,
            )

    def evaluate(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, Any]:
        """Returns the metrics of a corpus; see `Task.evaluate`.

        "bleu" and "chrf" in 0..100 with "bleu_signature" and "chrf_signature", "length_ratio", the
        tokens of the translations by those of the references, and "exact_match" in 0..1. "bleu" is
        None if no translation has the four words that BLEU needs.
        """
        references = self.postprocess(references, sources)
        bleu, chrf = self._bleu_and_chrf()
        result = bleu.corpus_score(outputs, [references])
        has_four_words = result.totals[-1] > 0
        return {
            "bleu": result.score if has_four_words else None,
            "bleu_signature": str(bleu.get_signature()),
            "chrf": chrf.corpus_score(outputs, [references]).score,
            "chrf_signature": str(chrf.get_signature()),
            "length_ratio": result.sys_len / max(result.ref_len, 1),
            "exact_match": share_equal(outputs, references),
        }

    def intervals(
        self, outputs: Sequence[str], references: Sequence[str], sources: Sequence[str]
    ) -> dict[str, dict[str, float]]:
        """Returns the 95 % interval of "bleu", by sacreBLEU's bootstrap of 1,000 samples.

        An undefined one has none.
        """
        references = self.postprocess(references, sources)
        bleu, _ = self._bleu_and_chrf()
        result = bleu.corpus_score(outputs, [references], n_bootstrap=1000)
        if not result.totals[-1]:
            return {}
        mean, half_width = result._mean, result._ci
        return {"bleu": {"low": mean - half_width, "high": mean + half_width}}

    def _bleu_and_chrf(self) -> tuple["BLEU", "CHRF"]:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF

        bleu = BLEU(lowercase=self.bleu_lowercase, tokenize=self.bleu_tokenize, force=True)
        return bleu, CHRF()

    def compare(
        self,
        systems: Mapping[str, Sequence[str]],
        references: Sequence[str],
        sources: Sequence[str],
    ) -> dict[str, dict[str, Any]]:
        """Returns the metrics of each system, with sacreBLEU's paired bootstrap (Koehn 2004).

        "bleu_p" and "chrf_p" are the p-values of the difference from the first system, None for
        that itself; "bleu_interval" and "chrf_interval" are half of the 95 % confidence intervals.
        Where "bleu" is undefined, so are both.
        """
        from sacrebleu.significance import PairedTest

        results = super().compare(systems, references, sources)
        first = next(iter(results.values()))
        joined = [self.postprocess(references, sources)]
        bleu, chrf = self._bleu_and_chrf()
        test = PairedTest(list(systems.items()), {"bleu": bleu, "chrf": chrf}, joined, "bs")
        signatures, scores = test()
        for name, label in zip(("bleu", "chrf"), signatures, strict=True):
            tested: list[Any] = scores[label]
            for system, result in zip(systems, tested, strict=True):
                values = results[system]
                p_value = None if result.p_value is None else float(result.p_value)
                if values is not first and values[name] == first[name]:
                    p_value = 1.0  # sacreBLEU gives 0.001 for no difference
                if None in (values[name], first[name]):
                    p_value = None
                values |= {
                    f"{name}_interval": None if values[name] is None else float(result.ci),
                    f"{name}_p": p_value,
                    f"{name}_signature": str(signatures[label]),
                }
        return results

    def report(self, results: Mapping[str, Any]) -> dict[str, str]:
        """Returns the metrics with their signatures, by label."""
        bleu = "undefined: no translation has four words; --bleu_tokenize=char counts letters"
        if results["bleu"] is not None:
            bleu = f"{results['bleu']:.2f}   {results['bleu_signature']}"
        return {
            "sacreBLEU": bleu,
            "chrF": f"{results['chrf']:.2f}   {results['chrf_signature']}",
            "exact match": f"{results['exact_match']:.4f}",
        }


def join_pieces(text: str) -> str:
    """Returns text whose words were cut into pieces marked with "@@ ", with whole words.

    Removes a mark at the end of the text, too, where a word was not finished.

    Example:
        >>> join_pieces("un@@ happy dog")
        'unhappy dog'
    """
    return f"{text} ".replace("@@ ", "").removesuffix(" ")
