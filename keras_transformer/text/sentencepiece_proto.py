"""The files of SentencePiece models, as protocol buffers that can be read, changed and written.

The classes that ship with sentencepiece reject older protobuf libraries, such as those that
TensorFlow requires on some Python versions. The classes here declare the fields that this package
uses, and preserve all others.
"""

import functools
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Types of pieces.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)

_FIELD = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "bool": _FIELD.TYPE_BOOL,
    "bytes": _FIELD.TYPE_BYTES,
    "float": _FIELD.TYPE_FLOAT,
    "int": _FIELD.TYPE_INT32,
    "string": _FIELD.TYPE_STRING,
}
# By message: the names of fields with number and type, and the default where it is not 0.
_MESSAGES: dict[str, dict[str, tuple[int, str] | tuple[int, str, str]]] = {
    "Piece": {"piece": (1, "string"), "score": (2, "float"), "type": (3, "int", "1")},
    "TrainerSpec": {
        "model_type": (3, "int", "1"),  # 1 unigram, 2 BPE, 3 words, 4 characters
        "vocab_size": (4, "int"),
        "unk_id": (40, "int"),
        "bos_id": (41, "int", "1"),
        "eos_id": (42, "int", "2"),
        "pad_id": (43, "int", "-1"),
        "unk_surface": (44, "string"),
        "unk_piece": (45, "string"),
        "bos_piece": (46, "string"),
        "eos_piece": (47, "string"),
        "pad_piece": (48, "string"),
    },
    "NormalizerSpec": {
        "name": (1, "string"),
        "precompiled_charsmap": (2, "bytes"),
        "add_dummy_prefix": (3, "bool", "true"),
        "remove_extra_whitespaces": (4, "bool", "true"),
        "escape_whitespaces": (5, "bool", "true"),
        "normalization_rule_tsv": (6, "string"),  # the file that the rules came from
    },
    "Model": {
        "pieces": (1, "Piece"),
        "trainer_spec": (2, "TrainerSpec"),
        "normalizer_spec": (3, "NormalizerSpec"),
        "self_test_data": (4, "bytes"),
        # Ours, where SentencePiece leaves room for extensions: see `Vocabulary`.
        "num_tokens": (200, "int"),
        "cuts_words_apart": (201, "bool"),
    },
}


@functools.cache
def model_message() -> Any:
    """Returns the class of a SentencePiece model's protocol buffer."""
    file = descriptor_pb2.FileDescriptorProto(
        name="keras_transformer_sentencepiece.proto", package="keras_transformer_sentencepiece"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind, *default) in fields.items():
            field = message.field.add(name=field_name, number=number, label=_FIELD.LABEL_OPTIONAL)
            if kind in _KINDS:
                field.type = _KINDS[kind]
            else:
                field.type, field.type_name = _FIELD.TYPE_MESSAGE, f".{file.package}.{kind}"
            if default:
                field.default_value = default[0]
            if field_name == "pieces":
                field.label = _FIELD.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.Model"))
