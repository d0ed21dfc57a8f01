"""The copy of a response: equal to it, signed, and readable for one key alone."""

from __future__ import annotations

from typing import Any

import pytest
from django.http import (
    HttpResponse,
    HttpResponsePermanentRedirect,
    HttpResponseRedirect,
    HttpResponseServerError,
    JsonResponse,
)
from django.test import override_settings

from django_singleflight import envelope
from django_singleflight.envelope import Crash, EnvelopeCodec, Page, Refusal, Terms
from django_singleflight.keys import Learnt
from singleflight_sync import CodecError, PickleCodec

TERMS = Terms("whom", "user", ("A", "B"), "values", ("user",))


def page(response: HttpResponse) -> Page:
    return envelope.page(response, TERMS, "de")


def copied(response: HttpResponse) -> HttpResponse:
    codec = EnvelopeCodec("k")
    found = codec.loads(codec.dumps(page(response)))
    assert isinstance(found, Page)
    return envelope.response_of(found)


def special() -> HttpResponse:
    response = HttpResponse("äöü", charset="latin-1", status=201, reason="Made", content_type="text/x; charset=utf-8")
    response["X-B"], response["x-a"], response["X-Ü".replace("Ü", "u")] = "1", "ä", "2"
    return response


def bare() -> HttpResponse:
    response = HttpResponse("x")
    del response["Content-Type"]
    return response


@pytest.mark.parametrize(
    "response",
    [
        HttpResponse(),
        HttpResponse(b"\x00\xff" * 1000),
        HttpResponse("x", headers={"Vary": "A, B", "Content-Language": "de", "content-type": "a/b"}),
        special(),
        bare(),
        JsonResponse({"a": [1, None]}),
        HttpResponseRedirect("/a?b#c"),
        HttpResponsePermanentRedirect("https://example.com/"),
        HttpResponse(status=599),
    ],
)
def test_a_copy_is_equal(response: HttpResponse) -> None:
    copy = copied(response)
    assert type(copy) is type(response)
    assert copy.serialize() == response.serialize()
    assert list(copy.items()) == list(response.items())  # in order, in their case
    assert (copy.status_code, copy.reason_phrase, copy.charset) == (
        *(response.status_code, response.reason_phrase, response.charset),
    )
    assert copy.content == response.content
    assert getattr(copy, "url", None) == getattr(response, "url", None)
    assert {*vars(copy), "status_code"} == {*vars(response), "status_code"}


def test_a_redirect_that_keeps_the_method() -> None:
    response = HttpResponseRedirect("/a")
    response.status_code = 307
    assert copied(response).status_code == 307


def test_another_class_becomes_a_plain_response() -> None:
    assert type(copied(HttpResponseServerError("x"))) is HttpResponse
    assert copied(HttpResponseServerError("x")).status_code == 500


def test_what_decorators_of_django_leave_on_a_response_travels() -> None:
    response = HttpResponse()
    response.xframe_options_exempt = True
    response._csp_config = {"script-src": ["'self'"], "style-src": ("a", "b"), "img-src": {"c"}}
    copy = copied(response)
    assert copy.xframe_options_exempt is True
    assert copy._csp_config == {"script-src": ["'self'"], "style-src": ["a", "b"], "img-src": ["c"]}


def test_an_attribute_that_is_no_plain_data_is_noticed() -> None:
    response = HttpResponse()
    response._csp_config = {"a": object()}
    assert not envelope.is_copyable(page(response))
    with pytest.raises(CodecError):
        EnvelopeCodec("k").dumps(page(response))


EVERY = [
    page(HttpResponse("x")),
    Crash(TERMS, b"\x00error"),
    Refusal("csrf"),
    Learnt(("A", "B"), personal=True),
    Learnt(),
]


@pytest.mark.parametrize("value", EVERY)
def test_every_envelope_comes_back(value: Any) -> None:
    codec = EnvelopeCodec("k")
    assert codec.loads(codec.dumps(value)) == value


@pytest.mark.parametrize("value", EVERY)
def test_an_envelope_of_another_key_or_secret_cannot_be_read(value: Any) -> None:
    data = EnvelopeCodec("k").dumps(value)
    with pytest.raises(CodecError, match="not signed"):
        EnvelopeCodec("other").loads(data)
    with override_settings(SECRET_KEY="another"), pytest.raises(CodecError, match="not signed"):
        EnvelopeCodec("k").loads(data)


def test_no_byte_of_it_can_be_changed() -> None:
    codec = EnvelopeCodec("k")
    data = codec.dumps(page(HttpResponse("x")))
    for place in range(len(data)):
        changed = bytearray(data)
        changed[place] ^= 1
        with pytest.raises(CodecError):
            codec.loads(bytes(changed))
    for end in range(len(data)):
        with pytest.raises(CodecError):
            codec.loads(data[:end])
    with pytest.raises(CodecError):
        codec.loads(data + b"x")


def test_a_pickle_is_never_read() -> None:
    with pytest.raises(CodecError):
        EnvelopeCodec("k").loads(PickleCodec("a secret of the tests").dumps("x"))
