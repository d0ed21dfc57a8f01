"""How values stand in the cache: pickles signed with ``SECRET_KEY``, and plain integers, which ``incr`` needs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from django_singleflight import conf
from singleflight_sync import CodecError

if TYPE_CHECKING:
    from collections.abc import Callable

    from singleflight_sync import Codec

UNREADABLE = object()
"""What `SignedSerializer.loads` makes of bytes that we have not signed: the caller takes it for a miss."""

_INTEGER = re.compile(rb"-?[0-9]{1,4300}")  # a longer one Python does not read


class SignedSerializer:
    """A serializer for Django's Redis backend; reads the secrets at each use. Thread-safe."""

    def dumps(self, value: Any) -> bytes | int:
        """Encode ``value``; an exact ``int`` stays one.

        Raises:
            Exception: it cannot be pickled; what pickle raised.
        """
        if type(value) is int:
            return value
        try:
            return conf.signed(*conf.secrets()).dumps(value)
        except CodecError as exc:
            raise (exc.__cause__ or exc) from None

    def loads(self, data: bytes) -> Any:
        """Decode ``data``; `UNREADABLE` if it is neither signed with a secret of ours nor an integer."""
        if _INTEGER.fullmatch(data):
            return int(data)
        try:
            return conf.signed(*conf.secrets()).loads(data)
        except CodecError:
            return UNREADABLE


SIGNED = SignedSerializer()
"""One for all caches, so that their settings compare equal in all threads."""


class SerializerCodec:
    """A serializer of Django's, as the engine wants it: bytes alone, and an error for what cannot be read."""

    def __init__(self, serializer: Any, encode: Callable[[Any], bytes]) -> None:
        """``encode``: how the client makes bytes of what the serializer returns."""
        self._serializer = serializer
        self._encode = encode

    def dumps(self, value: Any, /) -> bytes:
        """Encode ``value`` to the very bytes that ``set`` would write."""
        return bytes(self._encode(self._serializer.dumps(value)))

    def loads(self, data: bytes, /) -> Any:
        """Decode ``data``.

        Raises:
            CodecError: it was not signed with a secret of ours.
            Exception: what a serializer of the user's raised.
        """
        value = self._serializer.loads(data)
        if value is UNREADABLE:
            raise CodecError("not signed with a secret of ours")
        return value


if TYPE_CHECKING:
    _: type[Codec] = SerializerCodec
