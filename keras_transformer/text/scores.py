"""How good translations are, measured by sacreBLEU (Post 2018)."""

from collections.abc import Sequence
from typing import Any

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF


def score_translations(
    translations: Sequence[str],
    references: Sequence[str],
    *,
    lowercase: bool = False,
    tokenize: str = "13a",
    remove_bpe: bool = False,
) -> dict[str, Any]:
    """Compares translations with one reference each.

    Args:
        translations: detokenized text.
        references: as many sentences, in the same order.
        lowercase: whether BLEU ignores case.
        tokenize: sacreBLEU's tokenizer; "none" for text that is tokenized already.
        remove_bpe: whether both sides are cut into pieces, which are joined first.

    Returns:
        "bleu" and "chrf" in 0..100 with their "bleu_signature" and "chrf_signature",
        "exact_match" in 0..1, and the number of "sentences". "bleu" is None where no translation
        has the four words that BLEU needs.
    """
    if remove_bpe:
        translations = [join_pieces(text) for text in translations]
        references = [join_pieces(text) for text in references]
    bleu, chrf = BLEU(lowercase=lowercase, tokenize=tokenize, force=True), CHRF()
    pairs = list(zip(translations, references, strict=True))
    result = bleu.corpus_score(translations, [references])
    has_four_words = result.totals[-1] > 0
    return {
        "bleu": result.score if has_four_words else None,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(translations, [references]).score,
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": sum(ours == theirs for ours, theirs in pairs) / len(pairs),
        "sentences": len(pairs),
    }


def join_pieces(text: str) -> str:
    """Returns text with the words whole that were cut into pieces marked with "@@ ".

    A mark at the end of the text, of a word that was not finished, is removed too.

    Example:
        >>> join_pieces("un@@ happy dog")
        'unhappy dog'
    """
    return f"{text} ".replace("@@ ", "").removesuffix(" ")
