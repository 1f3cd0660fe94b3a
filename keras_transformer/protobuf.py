"""Classes of protocol buffers, declared in Python by the fields that this package uses.

The classes that others publish need TensorFlow (TensorFlow Serving's) or an older protobuf than
TensorFlow's (SentencePiece's). Messages keep the fields that are not declared.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# By name: number, type and, where it is not zero or empty, the default. A type is a scalar one of
# protocol buffers or another message; a * after it marks a repeated field. A map is a repeated
# message of key and value, and an enumeration an int32.
Fields = Mapping[str, tuple[int, str] | tuple[int, str, str]]


def message_classes(package: str, messages: Mapping[str, Fields]) -> dict[str, Any]:
    """Returns the class of each message by name; `package` names them in errors."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package)
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field_name, (number, kind, *default) in fields.items():
            field = message.field.add(name=field_name, number=number)
            field.label = field.LABEL_REPEATED if kind.endswith("*") else field.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            if kind in messages:
                field.type, field.type_name = field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = field.Type.Value(f"TYPE_{kind.upper()}")
            if default:
                field.default_value = default[0]
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }
