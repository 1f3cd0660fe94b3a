"""The messages of TensorFlow Serving that the client sends and reads over gRPC.

Names and numbers of the fields are those of its protocol buffers. The package that has all of them,
tensorflow-serving-api, needs TensorFlow.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# For each message its fields: number and type. Those with * are repeated; a map is a repeated
# message of key and value, and an enumeration a number.
_FIELDS: dict[str, dict[str, tuple[int, str]]] = {
    "Int64Value": {"value": (1, "int64")},
    "ModelSpec": {
        "name": (1, "string"),
        "version": (2, "Int64Value"),
        "signature_name": (3, "string"),
        "version_label": (4, "string"),
    },
    "Dim": {"size": (1, "int64")},
    "TensorShape": {"dim": (2, "Dim*")},
    "Tensor": {
        "dtype": (1, "int32"),
        "tensor_shape": (2, "TensorShape"),
        "tensor_content": (4, "bytes"),
        "float_val": (5, "float*"),
        "int_val": (7, "int32*"),
        "string_val": (8, "bytes*"),
        "int64_val": (10, "int64*"),
        "bool_val": (11, "bool*"),
    },
    "NamedTensor": {"key": (1, "string"), "value": (2, "Tensor")},
    "PredictRequest": {"model_spec": (1, "ModelSpec"), "inputs": (2, "NamedTensor*")},
    "PredictResponse": {"outputs": (1, "NamedTensor*")},
    "GetModelMetadataRequest": {"model_spec": (1, "ModelSpec"), "metadata_field": (2, "string*")},
    "GetModelMetadataResponse": {"metadata": (2, "Metadata*")},
    "Metadata": {"key": (1, "string"), "value": (2, "Any")},
    "Any": {"value": (2, "SignatureMap")},  # of the metadata "signature_def"
    "SignatureMap": {"signature_def": (1, "NamedSignature*")},
    "NamedSignature": {"key": (1, "string"), "value": (2, "Signature")},
    "Signature": {"inputs": (1, "NamedInfo*")},
    "NamedInfo": {"key": (1, "string"), "value": (2, "TensorInfo")},
    "TensorInfo": {"dtype": (2, "int32")},
}


def _make_classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="serving.proto", package="p", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind) in fields.items():
            field = message.field.add(name=field_name, number=number, label=kinds.LABEL_OPTIONAL)
            if kind.endswith("*"):
                field.label = kinds.LABEL_REPEATED
            kind = kind.rstrip("*")
            if kind in _FIELDS:
                field.type, field.type_name = kinds.TYPE_MESSAGE, f".p.{kind}"
            else:
                field.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"p.{name}"))
        for name in _FIELDS
    }


MESSAGES = _make_classes()
