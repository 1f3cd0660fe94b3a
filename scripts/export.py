"""Exports a trained model as a SavedModel that takes sentences and returns translations.

python scripts/export.py --run_dir=runs/numbers --export_dir=exports/numbers
"""

from absl import flags

import common
from keras_transformer.config import SearchConfig

_RUN_DIR = flags.DEFINE_string("run_dir", None, "Directory of a training run.", required=True)
_EXPORT_DIR = flags.DEFINE_string(
    "export_dir", None, "The model's folder, which gets a folder for each version.", required=True
)
_VERSION = flags.DEFINE_integer("version", None, "Version to write. Default: the next one.")
_CHECKPOINT = common.define_checkpoint_flag()
common.define_flags(SearchConfig)


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    search = SearchConfig(**common.given_flags(SearchConfig))
    common.load_tensorflow()
    from keras_transformer.serving import Translator, export
    from keras_transformer.training import RunDirectory

    run = RunDirectory(_RUN_DIR.value)
    checkpoint = run.checkpoints().find(_CHECKPOINT.value)
    translator = Translator(run.load_model(checkpoint), *run.vocabularies(), search)
    path = export(translator, _EXPORT_DIR.value, _VERSION.value)
    print(f"Exported checkpoint {checkpoint} to {path}.")


if __name__ == "__main__":
    common.run(main)
