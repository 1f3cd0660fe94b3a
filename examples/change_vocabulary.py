"""Gives a run another vocabulary, to train on with it: here one that knows capitals and digits.

    python examples/change_vocabulary.py runs/en-de-1 runs/en-de-wide

The new vocabulary is learned from the run's training text and altered copies of its pairs
(--augment). A piece that both vocabularies have keeps its row of the embeddings. Another one gets
the mean of the rows of the old pieces that spell it in lower case. The model must share one
vocabulary and one table between both sides.
"""

import sys

import numpy as np

from keras_transformer import RunDirectory, build_model
from keras_transformer.training.prepare import make_vocabularies


def main(old_path: str, new_path: str) -> None:
    run = RunDirectory(old_path)
    configs, model, (old, _) = run.configs(), run.load_model(), run.vocabularies()
    if configs.data is None or configs.model.share_embeddings != "all":
        sys.exit(f"{old_path} must be a trained run whose embeddings are one table")
    # What is rarer than the last 0.002 % of the characters stays unknown, and is copied.
    data = configs.data.replace(augment=0.5, character_coverage=0.99998)
    new, _ = make_vocabularies(data, configs.task)
    row_of = {piece: row for row, piece in enumerate(old.pieces(range(old.size)))}
    table = np.asarray(model.source_embedding.table)
    pieces, rows = new.pieces(range(new.size)), []
    for piece in pieces:
        spelled = old.encode([piece.lower().replace("▁", " ")])[0] or [row_of["<unk>"]]
        rows.append(table[row_of[piece]] if piece in row_of else table[spelled].mean(axis=0))
    changed = build_model(configs.model.replace(vocabulary_size=new.size))
    for weight, before in zip(changed.weights, model.weights, strict=True):
        is_table = weight.path == changed.source_embedding.table.path
        weight.assign(np.stack(rows) if is_table else before)
    configs = configs._replace(model=changed.config, data=data)
    RunDirectory(new_path).write(configs, new, new, changed)
    print(
        f"{sum(piece in row_of for piece in new.pieces(range(new.size)))} of {new.size} rows kept."
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
