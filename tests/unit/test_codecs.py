"""Codecs: what they give back, what they refuse, what they never do."""

from __future__ import annotations

import contextlib
import datetime as dt
import decimal
import enum
import pickle
import sys
import threading
import tracemalloc
import uuid
from collections import OrderedDict, namedtuple
from collections.abc import Iterator
from fractions import Fraction
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from singleflight_sync.codecs import CBORCodec, Codec, JSONCodec, PickleCodec, is_immutable
from singleflight_sync.errors import CodecError, ConfigurationError

UTC = dt.timezone.utc
CODECS: list[Codec] = [JSONCodec(), CBORCodec(), PickleCodec("secret")]
EVERY_CODEC = pytest.mark.parametrize("codec", CODECS, ids=lambda codec: type(codec).__name__)


class Size(enum.IntEnum):
    ONE = 1


class Word(str, enum.Enum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Number(float):
    __slots__ = ()


Point = namedtuple("Point", "x y")  # noqa: PYI024 - an old-style one


def same(value: Any, copy: Any) -> bool:
    """Compare types too, down to the last part, and the texts, which show signs and time zones."""
    if type(value) is not type(copy):
        return False
    if isinstance(value, (list, tuple)):
        return len(value) == len(copy) and all(map(same, value, copy))
    if isinstance(value, dict):
        return same(list(value.items()), list(copy.items()))
    if isinstance(value, (set, frozenset)):
        return len(value) == len(copy) and all(any(same(one, other) for other in copy) for one in value)
    if isinstance(value, (str, bytes, int)):
        return bool(value == copy)
    return repr(value) == repr(copy)


def cyclic() -> list[Any]:
    value: list[Any] = [1, {"a": 2}]
    value[1]["b"] = value
    return value


def nested(depth: int, of: Any = list) -> Any:
    value: Any = of()
    for _ in range(depth):
        value = {"a": value} if of is dict else of([value])
    return value


# What every codec gives back


@EVERY_CODEC
@pytest.mark.parametrize(
    "value",
    [
        *(None, True, False, 0, -1, 1, 2**63, -(2**64), 2**200, 0.0, -0.0, 1.0, 1e300, 5e-324, 0.1),
        *("", "a", "é\u4e00\U0001f600", "\x00", "j", "b", "s", b"", b"\x00\xff", b"j{}", b"s"),
        *([], {}, [[]], [{}], {"": []}, {"a": [1, "b", None, 2.5, True]}, [0.0, -0.0], {"é\u4e00": "\u2028"}),
    ],
    ids=repr,
)
def test_plain_values_come_back_as_they_were(codec: Codec, value: object) -> None:
    assert same(value, codec.loads(codec.dumps(value)))


@EVERY_CODEC
@pytest.mark.parametrize("number", [10**5000, -(10**5000) + 7], ids=["positive", "negative"])
def test_an_integer_longer_than_python_prints_comes_back(codec: Codec, number: int) -> None:
    for value in (number, [number], {"a": [1.5, {"b": number}, "c", None, True]}):
        assert codec.loads(codec.dumps(value)) == value


@EVERY_CODEC
def test_equal_bytes_give_a_fresh_object_each_time(codec: Codec) -> None:
    data = codec.dumps({"a": [1]})
    first, second = codec.loads(data), codec.loads(data)

    assert first == second
    assert first is not second
    assert first["a"] is not second["a"]


@EVERY_CODEC
@pytest.mark.parametrize("value", [None, False, 0, "", b"", []], ids=repr)
def test_a_value_that_is_false_is_told_from_no_value(codec: Codec, value: object) -> None:
    assert codec.dumps(value) != b""
    assert same(value, codec.loads(codec.dumps(value)))


SIGNED = "50210ab909fab2679d3591f4f8e8f49760505516d7bbdaf8d44e304e2a74dde5b580059509000000000000004b018c01619486942e"


@pytest.mark.parametrize(
    ("codec", "data", "value"),
    [
        (CODECS[0], b"sabc", "abc"),
        (CODECS[0], b"babc", b"abc"),
        (CODECS[0], b'j{"a":[1,2.5,null,true,"\xc3\xa9"]}', {"a": [1, 2.5, None, True, "é"]}),
        (CODECS[1], b"\xd9\xd9\xf7\xa1aa\x84\x01\xfb@\x04\0\0\0\0\0\0\xf6Ax", {"a": [1, 2.5, None, b"x"]}),
        (CODECS[2], bytes.fromhex(SIGNED), (1, "a")),
    ],
    ids=["text", "bytes", "json", "cbor", "pickle"],
)
def test_releases_read_and_write_the_same_bytes(codec: Codec, data: bytes, value: object) -> None:
    assert codec.dumps(value) == data
    assert same(value, codec.loads(data))


KEYS = st.text(max_size=3)
PLAIN = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)),
        st.text(st.characters(exclude_categories=[])),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
ATOMS = st.one_of(
    *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(st.characters(exclude_categories=[])), st.binary()),
    *(st.dates(), st.datetimes(), st.datetimes(timezones=st.timezones()), st.times(), st.timedeltas()),
    *(st.datetimes(timezones=st.just(UTC)), st.decimals(allow_nan=False), st.uuids(), st.fractions()),
    st.sampled_from([Size.ONE, Word.RED, Text("a"), Number(1.5), Point(1, 2), NotImplemented, decimal.Decimal("NaN")]),
)
HASHABLE = st.recursive(ATOMS, lambda inner: st.tuples(inner) | st.frozensets(inner, max_size=2), max_leaves=3)
ANYTHING = st.recursive(
    ATOMS | st.sampled_from([OrderedDict(a=1), decimal.Decimal("sNaN")]),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.sets(HASHABLE, max_size=3),
        st.dictionaries(HASHABLE, inner, max_size=3),
    ),
    max_leaves=6,
)


@given(PLAIN)
def test_json_takes_every_value_of_its_own_types(value: object) -> None:
    assert same(value, CODECS[0].loads(CODECS[0].dumps(value)))


@EVERY_CODEC
@given(value=ANYTHING)
def test_any_value_comes_back_as_it_was_or_is_refused(codec: Codec, value: object) -> None:
    try:
        copy = codec.loads(codec.dumps(value))
    except CodecError as error:
        copy = error.value

    assert copy is value or same(value, copy)


# What JSON refuses


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rows": [1, 2, 3, (4,)]}, "a tuple at `$.rows[3]` would come back as a list: return a list, or use "),
        ((1, 2), "a tuple at `$` would come back as a list"),
        ({1: 2}, "an int key at `$` would come back as a str: use str keys"),
        ({1: 2, "1": 3}, "an int key at `$` would come back as a str"),
        ({"a": [{None: 1}]}, "a NoneType key at `$.a[0]` would come back as a str"),
        ({True: 1}, "a bool key at `$` would come back as a str"),
        ({"b": {1.5: 1}}, "a float key at `$.b` would come back as a str"),
        ({(1, 2): 3}, "a dict at `$` cannot be encoded"),
        ({Text("a"): 1}, "a Text key at `$` would come back as a str"),
        ({"a": Size.ONE}, "a Size at `$.a` would come back as an int"),
        ([Word.RED], "a Word at `$[0]` would come back as a str"),
        (Text("a"), "a Text at `$` would come back as a str"),
        ([Number(1.5)], "a Number at `$[0]` would come back as a float"),
        (Point(1, 2), "a Point at `$` would come back as a list"),
        ({"a b": OrderedDict(x=1)}, "an OrderedDict at `$['a b']` would come back as a dict"),
        ([float("nan")], "a float at `$[0]` cannot be encoded"),
        (float("inf"), "a float at `$` cannot be encoded"),
        ({"a": {1, 2}}, "a set at `$.a` cannot be encoded"),
        ([b"x"], "a bytes at `$[0]` cannot be encoded"),
        (bytearray(b"x"), "a bytearray at `$` cannot be encoded"),
        ({"day": dt.date(2026, 1, 2)}, "a date at `$.day` cannot be encoded"),
        (decimal.Decimal(1), "a Decimal at `$` cannot be encoded"),
        (NotImplemented, "a NotImplementedType at `$` cannot be encoded"),
        ([1, [2, object()]], "an object at `$[1][1]` cannot be encoded"),
    ],
)
def test_json_refuses_what_it_would_change_naming_place_and_remedy(value: object, message: str) -> None:
    with pytest.raises(CodecError) as caught:
        JSONCodec().dumps(value)

    assert str(caught.value).startswith(message)
    assert str(caught.value).endswith("or use `CBORCodec` or `PickleCodec`")
    assert caught.value.value is value


@pytest.mark.parametrize("text", ["\ud83d\ude00", "\udc80", "a\ud800"], ids=ascii)
def test_lone_surrogates_survive_json(text: str) -> None:
    codec = JSONCodec()

    for value in (text, [text], {text: 1}):
        assert codec.loads(codec.dumps(value)) == value


@EVERY_CODEC
@pytest.mark.parametrize("of", [list, dict, tuple])
def test_a_value_nested_too_deeply_is_a_codec_error(codec: Codec, of: Any) -> None:
    value = nested(100_000, of)
    with pytest.raises(CodecError):
        codec.dumps(value)


@pytest.mark.parametrize("codec", CODECS[:2], ids=["JSONCodec", "CBORCodec"])
def test_a_value_that_contains_itself_is_a_codec_error(codec: Codec) -> None:
    with pytest.raises(CodecError, match="contains itself"):
        codec.dumps(cyclic())


@pytest.mark.parametrize("codec", CODECS[:2], ids=["JSONCodec", "CBORCodec"])
def test_the_message_of_a_refusal_stays_short(codec: Codec) -> None:
    for value in (
        {"k" * 10**6: object()},
        {"k" * 200: {"k" * 200: [{"k" * 200: {"k" * 200: {"k" * 200: object()}}}]}},
        [[("x" * 10**6,)]],
        cyclic(),
    ):
        with pytest.raises(CodecError) as caught:
            codec.dumps(value)
        assert len(str(caught.value)) < 1000


def test_a_large_text_is_encoded_without_a_second_copy_of_it() -> None:
    codec, text = JSONCodec(), "x" * 4_000_000
    tracemalloc.start()
    try:
        data = codec.dumps(text)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 1.4 * len(text)
    assert codec.loads(data) == text


@pytest.mark.parametrize("text", ["é\u4e00\U0001f600" * 300_000, "\ud83d\ude00" * 300_000], ids=["text", "surrogates"])
def test_a_large_text_comes_back(text: str) -> None:
    codec = JSONCodec()

    assert codec.loads(codec.dumps(text)) == text


# What CBOR adds, and refuses


@pytest.mark.parametrize(
    "value",
    [
        *(dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, 6, UTC), decimal.Decimal("1.10"), uuid.UUID(int=5)),
        *({1, 2}, {(1, "a")}, {frozenset({1})}, [b"x"], {1: "a", None: "b", 1.5: "c", b"d": "e"}, {(1, 2): 3}),
        *(float("nan"), float("-inf"), {"a": [dt.date(2026, 1, 2), {decimal.Decimal("1E+3")}]}),
        dt.datetime(2026, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    ],
    ids=repr,
)
def test_cbor_gives_back_dates_decimals_uuids_and_sets(value: object) -> None:
    codec = CBORCodec()

    assert same(value, codec.loads(codec.dumps(value)))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"rows": [1, (2,)]}, "a tuple at `$.rows[1]` would come back as a list: return a list, or use `PickleCodec`"),
        (frozenset({1}), "a frozenset at `$` would come back as a set"),
        ([Text("a")], "a Text at `$[0]` would come back as a str"),
        (Size.ONE, "a Size at `$` would come back as an int"),
        ({Size.ONE: 1}, "a Size key at `$` would come back as an int"),
        ([OrderedDict(a=1)], "an OrderedDict at `$[0]` would come back as a dict"),
        (dt.datetime(2026, 1, 2), "a datetime at `$` cannot be encoded"),  # noqa: DTZ001 - a naive one
        (dt.datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Paris")), "a datetime at `$` would come back as datetime.dat"),
        (decimal.Decimal("-0"), "a Decimal at `$` would come back as Decimal('0')"),
        (decimal.Decimal("NaN"), "a Decimal at `$` would come back as a float"),
        ("\udc80", "a str at `$` cannot be encoded"),
        (Fraction(1, 3), "a Fraction at `$` cannot be encoded"),
        ([object()], "an object at `$[0]` cannot be encoded"),
    ],
)
def test_cbor_refuses_what_it_would_change(value: object, message: str) -> None:
    with pytest.raises(CodecError) as caught:
        CBORCodec().dumps(value)

    assert str(caught.value).startswith(message)
    assert caught.value.value is value


def test_cbor_without_cbor2_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cbor2", None)

    with pytest.raises(ConfigurationError, match=r"singleflight-sync\[cbor\]"):
        CBORCodec()


@pytest.mark.parametrize("codec", CODECS[:2], ids=["JSONCodec", "CBORCodec"])
def test_200_levels_come_back_even_in_a_thread_with_a_small_stack_and_more_are_refused(codec: Codec) -> None:
    done: list[bool] = []

    def encode() -> None:
        value = nested(199)
        done.append(codec.loads(codec.dumps(value)) == value)
        for depth in (200, 500):
            with pytest.raises(CodecError, match="nested too deeply"):
                codec.dumps(nested(depth))
            done.append(True)

    before = threading.stack_size(256 * 1024)
    try:
        thread = threading.Thread(target=encode)
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join(30)

    assert done == [True, True, True]


# Reading what is not ours


def foreign() -> Iterator[bytes]:
    yield from (b"", b"x", b"j", b"j{", b"jNaN", b"j-Infinity", b"j[1]]", b"j[1", b"s\xff", b"P", b"P" + bytes(32))
    yield from (b"\xd9\xd9\xf7", b"\xd9\xd9\xf7\x81", b"j" + b"[" * 100_000, b"\xd9\xd9\xf7" + b"\x81" * 100_000)
    yield pickle.dumps({"a": 1})


@EVERY_CODEC
@pytest.mark.parametrize("data", list(foreign()), ids=lambda data: repr(data[:12]))
def test_bytes_that_are_not_ours_are_a_codec_error(codec: Codec, data: bytes) -> None:
    with pytest.raises(CodecError, match=rf"{type(codec).__name__} cannot read these bytes"):
        codec.loads(data)


@pytest.mark.parametrize("codec", CODECS[:2], ids=["JSONCodec", "CBORCodec"])
@given(data=st.binary())
def test_any_bytes_are_read_or_refused(codec: Codec, data: bytes) -> None:
    for start in (b"", b"j", b"s", b"b", b"\xd9\xd9\xf7"):
        with contextlib.suppress(CodecError):
            codec.loads(start + data)


@EVERY_CODEC
@pytest.mark.parametrize("value", [{"a": [1, 2, {"b": "c"}]}, [1, 2, 3], {"text": "x" * 100}], ids=repr)
def test_bytes_that_are_cut_short_are_a_codec_error(codec: Codec, value: object) -> None:
    data = codec.dumps(value)

    for length in range(len(data)):
        with pytest.raises(CodecError):
            codec.loads(data[:length])


@EVERY_CODEC
@pytest.mark.parametrize("other", CODECS, ids=lambda codec: type(codec).__name__)
@pytest.mark.parametrize("value", ["text", b"bytes", 1, None, {"a": 1}, "x" * 200, list(range(50))], ids=repr)
def test_no_codec_reads_what_another_one_wrote(codec: Codec, other: Codec, value: object) -> None:
    if codec is not other:
        with pytest.raises(CodecError):
            codec.loads(other.dumps(value))


# Pickle


class Bomb:
    """Unpickling this leaves a trace."""

    went_off = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _explode, ()


def _explode() -> None:
    Bomb.went_off += 1


def test_pickle_takes_what_the_others_refuse() -> None:
    codec = PickleCodec("secret")

    for value in ((1, 2), {1: {2}}, Point(1, 2), Size.ONE, dt.datetime(2026, 1, 2), NotImplemented):  # noqa: DTZ001
        assert same(value, codec.loads(codec.dumps(value)))


@pytest.mark.parametrize(
    "plant",
    [
        lambda _data: pickle.dumps(Bomb()),
        lambda _data: b"P" + bytes(32) + pickle.dumps(Bomb()),
        lambda data: data[:33] + pickle.dumps(Bomb()),
        lambda data: b"Q" + data[1:],
        lambda data: data[1:],
        lambda data: data + b"\x00",
        lambda _data: PickleCodec("other").dumps(Bomb()),
    ],
    ids=["bare", "unsigned", "other content", "other form", "no form", "more bytes", "other secret"],
)
def test_a_planted_pickle_is_never_unpickled(plant: Any) -> None:
    codec = PickleCodec("secret")
    planted = plant(codec.dumps(Bomb()))
    Bomb.went_off = 0

    for reader in (codec, JSONCodec(), CBORCodec()):
        with pytest.raises(CodecError):
            reader.loads(planted)

    assert Bomb.went_off == 0


def test_the_planted_pickle_would_go_off_if_it_were_unpickled() -> None:
    codec = PickleCodec("secret")
    Bomb.went_off = 0
    codec.loads(codec.dumps(Bomb()))

    assert Bomb.went_off == 1


def test_every_changed_bit_is_noticed() -> None:
    codec = PickleCodec("secret")
    data = codec.dumps([1, 2])

    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        with pytest.raises(CodecError, match="not signed with a secret of ours"):
            codec.loads(bytes(changed))


def test_an_older_secret_reads_but_does_not_write() -> None:
    old, new, plain = PickleCodec("old"), PickleCodec("new", fallbacks=["older", b"old"]), PickleCodec("new")

    assert new.loads(old.dumps(1)) == 1
    assert plain.loads(new.dumps(1)) == 1
    with pytest.raises(CodecError):
        old.loads(new.dumps(1))
    with pytest.raises(CodecError):
        plain.loads(old.dumps(1))


def test_a_secret_as_text_and_as_its_bytes_is_the_same() -> None:
    assert PickleCodec("sécret").loads(PickleCodec("sécret".encode()).dumps(1)) == 1


@pytest.mark.parametrize("secret", ["", b"", None, 5, ["a"]], ids=repr)
def test_an_empty_secret_or_no_secret_is_refused(secret: Any) -> None:
    with pytest.raises(ConfigurationError, match="secret"):
        PickleCodec(secret)
    with pytest.raises(ConfigurationError, match="secret"):
        PickleCodec("good", fallbacks=[secret])


@pytest.mark.parametrize("fallbacks", ["old", b"old"], ids=repr)
def test_one_secret_in_the_place_of_a_list_is_refused(fallbacks: Any) -> None:
    with pytest.raises(ConfigurationError, match="list of secrets"):
        PickleCodec("good", fallbacks=fallbacks)


def test_the_text_of_a_codec_does_not_tell_its_secret() -> None:
    assert "hunter2" not in repr(PickleCodec("hunter2"))


class Unpicklable:
    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> tuple[Any, ...]:
        raise self.error


class SilentError(Exception):
    def __repr__(self) -> str:
        raise ValueError

    __str__ = __repr__


@pytest.mark.parametrize(
    "value",
    [threading.Lock(), lambda: 1, Unpicklable(KeyError("a")), Unpicklable(SilentError())],
    ids=["lock", "lambda", "error", "silent error"],
)
def test_what_cannot_be_pickled_is_a_codec_error_that_keeps_the_value(value: object) -> None:
    with pytest.raises(CodecError, match="cannot be pickled") as caught:
        PickleCodec("secret").dumps(value)

    assert caught.value.value is value


def test_a_pickle_of_a_class_that_is_gone_is_a_codec_error(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = PickleCodec("secret")
    data = codec.dumps(Bomb())
    monkeypatch.delattr(sys.modules[__name__], "_explode")

    with pytest.raises(CodecError, match="cannot read"):
        codec.loads(data)


# Sharing without a copy


@pytest.mark.parametrize("value", ["a", b"a", 1, 1.5, True, None, 1j], ids=repr)
def test_immutable_values_need_no_copy(value: object) -> None:
    assert is_immutable(value)


@pytest.mark.parametrize("value", [[], {}, set(), (), frozenset(), Text("a"), Size.ONE, bytearray()], ids=repr)
def test_all_others_need_one(value: object) -> None:
    assert not is_immutable(value)
