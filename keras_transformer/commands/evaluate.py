"""Translates a test set and scores it: sacreBLEU with its signature, chrF, exact match.

keras-transformer evaluate --run_dir=runs/numbers
keras-transformer evaluate --run_dir=runs/mine --source=test.en --target=test.de --json
"""

import json
import pathlib
from typing import Any

from absl import flags

from keras_transformer.atomic_files import write_atomically
from keras_transformer.commands import common, config_flags
from keras_transformer.config import DataConfig, SearchConfig
from keras_transformer.errors import InputError

_RUN_DIR = flags.DEFINE_string(
    "run_dir",
    None,
    "Directory of a training run. Several, separated by commas, translate together.",
    required=True,
)
_CHECKPOINT = config_flags.define_checkpoint_flag()
_SOURCE = flags.DEFINE_string(
    "source", None, "File to translate, plain or .gz, in place of the run's test set."
)
_TARGET = flags.DEFINE_string("target", None, "Its reference translation.")
_SPLIT = flags.DEFINE_string(
    "split", "test", "Split of the run's data set, where the run or --source names no test files."
)
_LOWERCASE = flags.DEFINE_boolean(
    "lowercase", None, "Compute BLEU without regard to case. Default: the run's bleu_lowercase."
)
_TOKENIZE = flags.DEFINE_enum(
    "tokenize",
    None,
    ["13a", "intl", "char", "zh", "none"],
    "sacreBLEU's tokenizer; none for text that is tokenized already. Default: the run's "
    "bleu_tokenize.",
)
_REMOVE_BPE = flags.DEFINE_boolean(
    "remove_bpe", None, 'Join pieces marked with "@@ " first. Default: the run\'s remove_bpe.'
)
_OUTPUT = flags.DEFINE_string("output", None, "File for the translations; not written otherwise.")
_JSON = flags.DEFINE_boolean("json", False, "Print one JSON object.")
_BATCH_SIZE = flags.DEFINE_integer("batch_size", 64, "Sentences translated at once.", lower_bound=1)
config_flags.define_flags(
    SearchConfig, set(SearchConfig.__dataclass_fields__) - {"num_translations"}
)


def main(arguments: list[str]) -> None:
    common.refuse_arguments(arguments)
    if (_SOURCE.value is None) != (_TARGET.value is None):
        raise InputError("--source and --target go together; one of them is missing")
    if _OUTPUT.value is not None:
        common.check_output(pathlib.Path(_OUTPUT.value))
    search = SearchConfig(**config_flags.given_flags(SearchConfig))
    common.load_tensorflow(one_dnn=False)
    from keras_transformer.data import read_parallel
    from keras_transformer.inference import Translator
    from keras_transformer.text.scores import join_pieces, score_translations
    from keras_transformer.training import read_test_text

    found = common.find_checkpoints(_RUN_DIR.value, _CHECKPOINT.value)
    data = found[0][0].configs().data
    if _SOURCE.value is not None and _TARGET.value is not None:
        text = read_parallel(_SOURCE.value, _TARGET.value)
    else:
        text = read_test_text(data, _SPLIT.value)
    checkpoint = ",".join(name for _, name in found)
    translator = Translator(*common.load_translator(found), search).precomputed()
    results = translator.translate(text.source, _BATCH_SIZE.value)
    options = _scoring(data)
    translations = [best.text for best, *_ in results]
    if options["remove_bpe"]:
        translations = [join_pieces(text) for text in translations]
    if _OUTPUT.value is not None:
        write_atomically(_OUTPUT.value, "".join(line + "\n" for line in translations))
    scores = score_translations(translations, text.target, **options)
    if _JSON.value:
        print(json.dumps(scores | {"checkpoint": checkpoint}))
        return
    print(f"checkpoint   {checkpoint}")
    print(f"sentences    {scores['sentences']:,}")
    if scores["bleu"] is None:
        print(
            "sacreBLEU    undefined: no translation has four words; --tokenize=char counts letters"
        )
    else:
        print(f"sacreBLEU    {scores['bleu']:.2f}   {scores['bleu_signature']}")
    print(f"chrF         {scores['chrf']:.2f}   {scores['chrf_signature']}")
    print(f"exact match  {scores['exact_match']:.4f}")


def _scoring(data: DataConfig) -> dict[str, Any]:
    """Returns how BLEU is counted: as the run does, where flags do not say otherwise."""
    run = {
        "lowercase": data.bleu_lowercase,
        "tokenize": data.bleu_tokenize,
        "remove_bpe": data.remove_bpe,
    }
    given = {name: flags.FLAGS[name].value for name in run}
    return run | {name: value for name, value in given.items() if value is not None}
