"""Makes a run directory of another toolkit's model: to fine-tune, translate, evaluate or export.

keras-transformer import_model --model=Helsinki-NLP/opus-mt-en-de --run_dir=runs/opus
keras-transformer import_model --model=path/to/opus-mt-en-de --run_dir=runs/opus
keras-transformer import_model --model=model.npz --run_dir=runs/marian \\
    --source_vocabulary=vocab.en.yml --target_vocabulary=vocab.de.yml
keras-transformer import_model --model=ckpt-folder --run_dir=runs/onmt --num_heads=8 \\
    --source_vocabulary=src.vocab --target_vocabulary=tgt.vocab

Formats: transformers (MarianMTModel of Hugging Face), marian, fairseq, opennmt_tf and ctranslate2.
Nothing of those toolkits is needed; PyTorch is for checkpoints of fairseq and pytorch_model.bin.
"""

import pathlib

from absl import flags

from keras_transformer.commands import command_flags, common
from keras_transformer.errors import InputError

_MODEL = command_flags.define_path(
    "model",
    "Folder or file of the model, or its name on the Hugging Face Hub (MarianMTModel), such as "
    "owner/name; owner/name@v1 is a branch, tag or commit.",
    required=True,
)
_RUN_DIR = command_flags.define_path(
    "run_dir", "The run directory to create; it must not exist yet.", required=True
)
_FORMAT = flags.DEFINE_enum(
    "format",
    None,
    ["transformers", "marian", "fairseq", "opennmt_tf", "ctranslate2"],
    "Toolkit of the model. Default: detected from the files.",
)
for _side in ("source", "target"):
    command_flags.define_path(
        f"{_side}_vocabulary", f"Vocabulary of the {_side}, if it is not beside the model."
    )
    command_flags.define_path(
        f"{_side}_spm", f"SentencePiece model of the {_side}, if it is not beside the model."
    )
_NUM_HEADS = flags.DEFINE_integer(
    "num_heads",
    None,
    "Attention heads, if the files do not state them (opennmt_tf).",
    lower_bound=1,
)


def main(arguments: list[str]) -> None:
    common.reject_arguments(arguments)
    vocabularies, spms = map(_pair_of_files, ("vocabulary", "spm"))
    common.load_tensorflow()
    from keras_transformer.interop import import_run, read_model
    from keras_transformer.interop.foreign import ImportOptions
    from keras_transformer.training.run import RunDirectory

    run = RunDirectory(_RUN_DIR.value)
    run.check_is_new()  # before a download
    options = ImportOptions(vocabularies, spms, _NUM_HEADS.value)
    model = read_model(_MODEL.value, _FORMAT.value, options)
    import_run(model, _RUN_DIR.value)
    sizes = " and ".join(f"{vocabulary.size:,}" for vocabulary in model.vocabularies)
    print(f"A model of {model.origin['format']} with {sizes} tokens.")
    for note in model.notes:
        print(note)
    print(f"The run is in {run.path}: fine-tune, translate, evaluate or export it.")


def _pair_of_files(name: str) -> tuple[pathlib.Path, ...]:
    source, target = (flags.FLAGS[f"{side}_{name}"].value for side in ("source", "target"))
    if (source is None) != (target is None):
        raise InputError(f"--source_{name} and --target_{name} go together; one of them is missing")
    return tuple(pathlib.Path(path) for path in (source, target) if path is not None)
