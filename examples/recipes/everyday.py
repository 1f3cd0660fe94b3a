"""How well a model from English to German takes what people type; prints JSON.

    python examples/recipes/everyday.py en-de data/tatoeba_ende/test > everyday.json

Numbers, addresses, names and words of other scripts must come back as they are, alone and in six
sentences. The test set, TEST.en.gz and TEST.de.gz, is translated as it is, in capitals, without
final punctuation, and both; references are changed alike. Scores are sacreBLEU with its defaults.
"""

import gzip
import json
import sys

from sacrebleu.metrics import BLEU

from keras_transformer import Translator

ITEMS = {
    "numbers": "7 17 42 88 100 365 1984 2024 90210 1234567 3.14 0.5 12,5 1,250 24,999 10:45 23:59 "
    "75% 007 555-1234 2024-11-28 01.02.2003 12/24/1999 6x9 1st 3-2 18-25 1990s A4 B12",
    "addresses": "https://www.wikipedia.org https://keras.io/api http://example.com example.com "
    "www.tatoeba.org github.com/keras-team/keras https://example.org/a/b.html info@example.com "
    "jane.doe@mail.example.org bob_99@uni-berlin.de support@shop.co.uk mail.google.com "
    "https://news.example.com/2024/11/28 ftp.example.net https://docs.python.org/3/",
    "other_scripts": "😀 🙏🏽 ❤ Москва Владимир Ольга Αθήνα 東京 北京 ひらがな 서울 القاهرة "
    "ירושלים Dvořák Łódź Þórr Nguyễn Xhosa Kwame Oyelaran",
}
SENTENCES = (
    "{}",
    "I live near {}.",
    "Tom wrote {} on the paper.",
    "Have you seen {} today?",
    "Please send it to {}",
    "My answer is {}.",
    "She said that {} is fine.",
)


def without_end(text: str) -> str:
    return text.rstrip(" .!?…")


CHANGES = {
    "plain": str,
    "capitals": str.upper,
    "no_punctuation": without_end,
    "capitals_no_punctuation": lambda text: without_end(text).upper(),
}


def share_kept(translator: Translator, items: list[str]) -> float:
    """Returns the share of translations that have the item of their source."""
    pairs = [(sentence.format(item), item) for item in items for sentence in SENTENCES]
    translations = translator.translate([line for line, _ in pairs])
    are_copied = [item in each.text for each, (_, item) in zip(translations, pairs, strict=True)]
    return sum(are_copied) / len(are_copied)


def main(name: str, test: str) -> None:
    translator = Translator.load(name)
    results = {kind: share_kept(translator, items.split()) for kind, items in ITEMS.items()}
    texts = []
    for language in ("en", "de"):
        with gzip.open(f"{test}.{language}.gz", "rt", encoding="utf-8") as file:
            texts.append(file.read().splitlines())
    for kind, change in CHANGES.items():
        source, reference = (list(map(change, text)) for text in texts)
        outputs = [each.text for each in translator.translate(source)]
        results[kind] = BLEU().corpus_score(outputs, [reference]).score
    print(json.dumps(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
