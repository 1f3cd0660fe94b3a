"""Begins a student with what it shares with `en-de` of the package, as a run to start from.

    python examples/recipes/first_student.py runs/first-student

Embeddings and encoder are the teacher's, and of its first and last decoder layers all but
self-attention, in whose place a student has an SSRU: only those and their norms start at random.
"""

import sys

from keras_transformer.config import TransformerConfig
from keras_transformer.loading import open_model
from keras_transformer.models import Transformer
from keras_transformer.training.run import RunDirectory

SHARED = ("cross_attention", "cross_attention_norm", "feed_forward", "feed_forward_norm")


def main(run_dir: str) -> None:
    named = open_model("en-de")
    teacher, vocabularies = named.build("float32"), named.vocabularies
    student = Transformer(
        TransformerConfig.preset("tiny-student", vocabulary_size=vocabularies[0].size)
    )
    pairs = [
        (getattr(student, name), getattr(teacher, name)) for name in ("source_embedding", "encoder")
    ]
    layers = teacher.decoder.layers
    for ours, theirs in zip(student.decoder.layers, (layers[0], layers[-1]), strict=True):
        pairs += [(getattr(ours, name), getattr(theirs, name)) for name in SHARED]
    for ours, theirs in pairs:
        ours.set_weights(theirs.get_weights())
    configs = named.configs._replace(model=student.config, origin={"model": "parts of en-de"})
    RunDirectory(run_dir).write(configs, *vocabularies, student)


if __name__ == "__main__":
    main(*sys.argv[1:])
