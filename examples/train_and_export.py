"""From parallel files to a SavedModel that translates, all in Python.

    python examples/train_and_export.py work

writes its text, run and export into the new folder `work`.
"""

import itertools
import pathlib
import random
import sys

from keras_transformer import RunDirectory, SearchConfig, Translator, export, load_exported, train

WORDS = {"a": "ein", "big": "großer", "small": "kleiner", "red": "roter", "dog": "Hund",
         "tree": "Baum", "hat": "Hut", "fish": "Fisch"}  # fmt: skip


def write_text(folder: pathlib.Path) -> None:
    """Writes train and dev files of noun phrases, such as "a small red tree"."""
    adjectives, nouns = ("big", "small", "red"), ("dog", "tree", "hat", "fish")
    phrases = [("a", *of, noun) for k in range(3) for of in itertools.permutations(adjectives, k)
               for noun in nouns]  # fmt: skip
    random.Random(1).shuffle(phrases)
    for split, rows in (("train", phrases[:-8] * 20), ("dev", phrases[-8:])):
        for language, word in (("en", str), ("de", WORDS.get)):
            lines = (" ".join(map(word, row)) + "\n" for row in rows)
            (folder / f"{split}.{language}").write_text("".join(lines), encoding="utf-8")


def main(folder: pathlib.Path) -> None:
    folder.mkdir(parents=True)
    write_text(folder)
    files = {split: (folder / f"{split}.en", folder / f"{split}.de") for split in ("train", "dev")}
    run = RunDirectory.create(
        folder / "run", **files, preset="tiny", num_layers=2, dropout=0.1, vocabulary_kind="word",
        vocabulary_size=30, learning_rate=0.003, warmup_steps=50, train_steps=120,
        checkpoint_steps=60, average_last=2,
    )  # fmt: skip
    model = train(run)
    translator = Translator(model, *run.vocabularies(), SearchConfig(beam_size=4))
    text = (folder / "dev.en").read_text(encoding="utf-8").splitlines()
    version = export(translator, folder / "export", sentences=text)  # as the server will get it
    sentences = ["a small red tree", "a big dog"]
    for source, best in zip(sentences, load_exported(version).translate(sentences), strict=True):
        print(f"{source} -> {best} ({best.score:.2f})")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
