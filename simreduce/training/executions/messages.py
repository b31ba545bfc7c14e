"""The messages of Chakra's schema that are read or written, from their published field numbers.

protobuf skips what is not declared.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from simreduce.errors import InputError

_PACKAGE = "ChakraProtoMsg"
_SCALARS = {
    "double": 3,
    "float": 5,
    "int32": 7,
    "int64": 9,
    "uint32": 11,
    "uint64": 13,
    "sint32": 15,
    "sint64": 17,
    "fixed32": 19,
    "fixed64": 21,
    "sfixed32": 23,
    "sfixed64": 25,
    "bool": 27,
    "string": 29,
    "bytes": 31,
}
"""Numbers of an attribute's values by type; the lists between them are not read."""


def node_type() -> Any:
    """The class of a node's message."""
    return _types()["Node"]


def attribute_type() -> Any:
    """The class of an attribute's message."""
    return _types()["AttributeProto"]


def metadata_type() -> Any:
    """The class of the first message of a file."""
    return _types()["GlobalMetadata"]


@cache
def _types() -> dict[str, Any]:
    try:
        from google.protobuf import (  # noqa: PLC0415 - an extra
            descriptor_pb2,
            descriptor_pool,
            message_factory,
        )
    except ImportError:
        raise InputError("Chakra's traces need protobuf: pip install 'simreduce[chakra]'") from None
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="simreduce/chakra.proto", package=_PACKAGE, syntax="proto3"
    )

    def add(message: Any, name: str, number: int, kind: int, **more: Any) -> None:
        more.setdefault("label", field.LABEL_OPTIONAL)
        message.field.add(name=name, number=number, type=kind, **more)

    attribute = file.message_type.add(name="AttributeProto")
    add(attribute, "name", 1, field.TYPE_STRING)
    attribute.oneof_decl.add(name="value")
    for name, number in _SCALARS.items():
        kind = getattr(field, f"TYPE_{name.upper()}")
        add(attribute, f"{name}_val", number, kind, oneof_index=0)
    head = file.message_type.add(name="GlobalMetadata")
    add(head, "version", 1, field.TYPE_STRING)
    node = file.message_type.add(name="Node")
    add(node, "id", 1, field.TYPE_UINT64)
    add(node, "name", 2, field.TYPE_STRING)
    add(node, "type", 3, field.TYPE_INT32)  # an enumeration on the wire
    add(node, "ctrl_deps", 4, field.TYPE_UINT64, label=field.LABEL_REPEATED)
    add(node, "data_deps", 5, field.TYPE_UINT64, label=field.LABEL_REPEATED)
    add(node, "start_time_micros", 6, field.TYPE_UINT64)
    add(node, "duration_micros", 7, field.TYPE_UINT64)
    add(
        node,
        "attr",
        10,
        field.TYPE_MESSAGE,
        label=field.LABEL_REPEATED,
        type_name=f".{_PACKAGE}.AttributeProto",
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    names = "AttributeProto", "GlobalMetadata", "Node"
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
        for name in names
    }
