"""What a type checker knows of the public names. Checked, never run.

Wrong calls carry ``type: ignore`` with the error that they must give: one that is no error any more is reported.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from typing_extensions import assert_type

import singleflight_sync as sfs
from singleflight_sync import testing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from redis import Redis
    from redis.cluster import RedisCluster


class Report:
    """A type of the user's."""


def build() -> Report:
    return Report()


def build_of(report_id: int) -> Report:
    return Report()


def clients(client: Redis, cluster: RedisCluster) -> None:
    assert_type(sfs.SingleFlight(client), sfs.SingleFlight)
    sfs.SingleFlight(cluster)
    sfs.SingleFlight()
    sfs.SingleFlight(url="redis://cache:6379/0", namespace="ai:flight", codec=sfs.CBORCodec(), name="reports", ttl=60)
    sfs.SingleFlight(url=6379)  # type: ignore[arg-type]
    sfs.SingleFlight(codec=sfs.JSONCodec)  # type: ignore[arg-type]
    sfs.SingleFlight(tll=60)  # type: ignore[call-arg]
    sfs.configure(client, ttl=30)
    sfs.configure(url="redis://cache:6379/0", namespace="ai:flight", ttl=30)
    sfs.configure(lambda: {"url": "embedded://"})
    with sfs.SingleFlight() as flights:
        assert_type(flights, sfs.SingleFlight)


# run


def the_result_of_run_has_the_type_of_the_function(flights: sfs.SingleFlight) -> None:
    assert_type(sfs.run("report:42", build), Report)
    assert_type(flights.run("report:42", build), Report)
    assert_type(flights.run("report:42", lambda: build_of(42)), Report)
    assert_type(flights.run("numbers", lambda: [1, 2]), list[int])
    assert_type(flights.run("nothing", lambda: None), None)
    flights.run(b"report:42", build)  # type: ignore[arg-type]
    flights.run("report:42", build_of)  # type: ignore[arg-type]
    flights.run("report:42", build())  # type: ignore[arg-type]
    flights.run("report:42")  # type: ignore[call-arg]
    number: int = flights.run("report:42", build)  # type: ignore[assignment]
    del number


def every_option_can_be_given(flights: sfs.SingleFlight) -> None:
    flights.run(
        "report:42",
        build,
        ttl=60,
        error_ttl=timedelta(minutes=1),
        lease=3.0,
        heartbeat=1,
        wait_timeout=None,
        hard_timeout=None,
        stall_timeout=None,
        takeover_jitter=0.5,
        max_takeovers=3,
        share_errors=False,
        max_bytes=1024,
        enabled=lambda: True,
        on_store_error="raise",
    )
    flights.run("report:42", build, enabled=False, on_store_error="run")
    flights.run("report:42", build, tll=60)  # type: ignore[call-arg]
    flights.run("report:42", build, timeout=60)  # type: ignore[call-arg]
    flights.run("report:42", build, ttl="60")  # type: ignore[arg-type]
    flights.run("report:42", build, lease=None)  # type: ignore[arg-type]
    flights.run("report:42", build, max_takeovers=0.5)  # type: ignore[arg-type]
    flights.run("report:42", build, on_store_error="ignore")  # type: ignore[arg-type]
    sfs.run("report:42", build, tll=60)  # type: ignore[call-arg]


def options_can_be_passed_on(flights: sfs.SingleFlight) -> None:
    options: sfs.RunOptions = {"ttl": 60, "wait_timeout": None}
    assert_type(flights.run("report:42", build, **options), Report)
    options = {"tll": 60}  # type: ignore[typeddict-unknown-key]


def a_call_can_differ_from_its_group(flights: sfs.SingleFlight) -> None:
    assert_type(flights.run("report:42", build, codec=sfs.CBORCodec(), max_waiting=10, on_wait=build), Report)
    flights.run("report:42", build, codec="json")  # type: ignore[arg-type]
    flights.run("report:42", build, max_waiting=0.5)  # type: ignore[arg-type]
    flights.run("report:42", build, on_wait=build_of)  # type: ignore[arg-type]


def a_value_can_have_a_fate_of_its_own() -> None:
    assert_type(sfs.Unshared(Report()).value, Any)
    assert_type(sfs.Kept(Report(), ttl=0.5).ttl, float | timedelta)
    sfs.Kept(Report())  # type: ignore[call-arg]


# The decorator


@sfs.single_flight
def bare(report_id: int, *, full: bool = False) -> Report:
    return Report()


@sfs.single_flight()
def called(report_id: int, *, full: bool = False) -> Report:
    return Report()


@sfs.single_flight(ttl=60, wait_timeout=10)
def with_options(report_id: int, *, full: bool = False) -> Report:
    return Report()


@sfs.single_flight(key="report:{report_id}:{full}", ttl=60)
def with_template(report_id: int, *, full: bool = False) -> Report:
    return Report()


def name_report(report_id: int, *, full: bool = False) -> str:
    return f"report:{report_id}:{full}"


@sfs.single_flight(key=name_report)
def with_callable(report_id: int, *, full: bool = False) -> Report:
    return Report()


@sfs.single_flight(key=lambda *_args, **_kwargs: "report")
def with_lambda(report_id: int, *, full: bool = False) -> Report:
    return Report()


def a_decorated_function_keeps_its_signature() -> None:
    assert_type(bare(42), Report)
    assert_type(called(42, full=True), Report)
    assert_type(with_options(report_id=42), Report)
    assert_type(with_template(42, full=True), Report)
    assert_type(with_callable(42), Report)
    assert_type(with_lambda(42), Report)
    assert_type(bare.key(42), str)
    assert_type(with_template.key(42, full=True), str)
    bare("42")  # type: ignore[arg-type]
    bare()  # type: ignore[call-arg]
    called(42, True)  # type: ignore[call-arg]
    with_options("42")  # type: ignore[arg-type]
    with_template(42, ful=True)  # type: ignore[call-arg]
    with_callable()  # type: ignore[call-arg]
    with_lambda("42")  # type: ignore[arg-type]
    bare.key("42")  # type: ignore[arg-type]


def a_decorated_function_goes_where_a_function_goes() -> None:
    plain: Callable[[int], Report] = with_template
    narrow: Callable[[str], Report] = with_template  # type: ignore[assignment]
    del plain, narrow


def the_decorator_refuses(flights: sfs.SingleFlight) -> None:
    flights.single_flight(key=42)  # type: ignore[call-overload]
    flights.single_flight("report:42")  # type: ignore[call-overload]
    flights.single_flight(tll=60)  # type: ignore[call-overload]
    flights.single_flight(key=build_of)  # type: ignore[arg-type]


def a_group_decorates_in_the_same_way(flights: sfs.SingleFlight) -> None:
    assert_type(flights.single_flight(build)(), Report)
    assert_type(flights.single_flight(key="report")(build)(), Report)
    decorated = flights.single_flight(key="report:{report_id}", ttl=timedelta(hours=1))(build_of)
    assert_type(decorated(42), Report)
    decorated("42")  # type: ignore[arg-type]


class Reports:
    """Has decorated methods."""

    @sfs.single_flight(key="report:{report_id}")
    def report(self, report_id: int) -> Report:
        return build_of(report_id)


def a_decorated_method_is_bound(reports: Reports) -> None:
    assert_type(reports.report(42), Report)
    assert_type(Reports.report.key(reports, 42), str)
    reports.report("42")  # type: ignore[arg-type]
    reports.report()  # type: ignore[call-arg]


# Results and live flights


def what_can_be_asked(flights: sfs.SingleFlight) -> None:
    assert_type(flights.get("report:42"), Any)
    assert_type(flights.get("report:42", default=0), Any)
    assert_type(flights.peek("report:42"), sfs.FlightInfo | None)
    assert_type(flights.live(), list[sfs.FlightInfo])
    assert_type(flights.history("report:42"), list[sfs.LogEntry])
    assert_type(flights.cancel("report:42"), bool)
    assert_type(flights.cancel("report:42", fencing_token=7), bool)
    assert_type(flights.forget("report:42", 7), bool)
    flights.cancel("report:42", fencing_token="7")  # type: ignore[arg-type]
    flights.close()


def what_can_be_asked_of_the_default_group() -> None:
    assert_type(sfs.default_group(), sfs.SingleFlight)
    assert_type(sfs.get("report:42", None), Any)
    assert_type(sfs.peek("report:42"), sfs.FlightInfo | None)
    assert_type(sfs.live(), list[sfs.FlightInfo])
    assert_type(sfs.history("report:42"), list[sfs.LogEntry])
    assert_type(sfs.cancel("report:42"), bool)
    assert_type(sfs.forget("report:42"), bool)
    sfs.close()


def what_is_known_of_a_live_flight(info: sfs.FlightInfo) -> None:
    assert_type(info.key, str)
    assert_type(info.group, str)
    assert_type(info.status, str)
    assert_type(info.fencing_token, int | None)
    assert_type(info.owner_id, str)
    assert_type(info.age, float)
    assert_type(info.heartbeat_age, float)
    assert_type(info.lease, float)
    assert_type(info.lease_left, float)
    assert_type(info.followers, int)
    assert_type(info.takeovers, int)
    assert_type(info.forgotten, bool)
    info.key = "report:43"  # type: ignore[misc]


def what_the_running_function_can_ask() -> None:
    flight = sfs.current_flight()
    assert_type(flight, sfs.Flight | None)
    flight.key  # type: ignore[union-attr] # noqa: B018
    if flight is not None:
        assert_type(flight.key, str)
        assert_type(flight.fencing_token, int)
        token = flight.cancel_token
        assert_type(token, sfs.CancelToken)
        assert_type(token.cancelled, bool)
        assert_type(token.reason, sfs.CancelReason | None)
        assert_type(token.wait(0.5), bool)
        assert_type(token.remaining(), float | None)
        token.checkpoint()


REASONS: list[sfs.CancelReason] = [
    sfs.CancelReason.LOST,
    sfs.CancelReason.CANCELLED,
    sfs.CancelReason.HARD_TIMEOUT,
    sfs.CancelReason.STALLED,
    sfs.CancelReason.STORE_UNREACHABLE,
]


# Events


def observe(event: sfs.FlightEvent) -> None:
    assert_type(event.key, str)
    assert_type(event.group, str)
    assert_type(event.fencing_token, int | None)
    if isinstance(event, (sfs.FlightClaimed, sfs.FlightTakenOver)):
        assert_type(event.takeovers, int)
    if isinstance(event, sfs.FlightFollowed):
        assert_type(event.place, int)
    if isinstance(event, sfs.FlightPublished):
        assert_type(event.duration, float)
        assert_type(event.size, int)
    if isinstance(event, (sfs.FlightFailed, sfs.StoreFailed)):
        assert_type(event.error, str)
    if isinstance(event, sfs.FlightLost):
        assert_type(event.reason, str)
    if isinstance(event, sfs.WaitTimedOut):
        assert_type(event.waited, float)


def subscribe(flights: sfs.SingleFlight) -> None:
    assert_type(flights.subscribe(observe), Callable[[], None])
    assert_type(sfs.subscribe(observe), Callable[[], None])
    flights.subscribe(build_of)  # type: ignore[arg-type]


OTHER_EVENTS: list[type[sfs.FlightEvent]] = [sfs.FlightCancelled, sfs.ResultHit]


# Errors

ERRORS: list[type[sfs.SingleFlightError]] = [
    sfs.CodecError,
    sfs.ConfigurationError,
    sfs.FlightCancelledError,
    sfs.HardTimeoutError,
    sfs.OwnerFailedError,
    sfs.ReentrantFlightError,
    sfs.StoreError,
    sfs.TakeoverLimitError,
    sfs.TooManyWaitingError,
    sfs.WaitTimeoutError,
]
VALUE_ERRORS: list[type[ValueError]] = [sfs.ConfigurationError]
TIMEOUTS: list[type[TimeoutError]] = [sfs.WaitTimeoutError, sfs.HardTimeoutError]
RUNTIME_ERRORS: list[type[RuntimeError]] = [sfs.ReentrantFlightError]
INTERRUPT: type[BaseException] = sfs.FlightInterrupted
NO_ERROR: type[Exception] = sfs.FlightInterrupted  # type: ignore[assignment]


def the_value_stands_on_the_error(error: sfs.CodecError) -> None:
    assert_type(error.value, Any)


def an_error_can_travel(error: Exception) -> None:
    written = sfs.describe_error(error, flight="owner 7")
    assert_type(written, bytes)
    assert_type(sfs.rebuild_error(written, "report:42"), Exception)


# Codecs


class UpperCase:
    """A codec of the user's."""

    def dumps(self, value: Any, /) -> bytes:
        return str(value).upper().encode()

    def loads(self, data: bytes, /) -> Any:
        return data.decode()


class HalfACodec:
    """Cannot read."""

    def dumps(self, value: Any, /) -> bytes:
        return bytes(value)


def every_codec() -> Iterator[sfs.Codec]:
    yield sfs.JSONCodec()
    yield sfs.CBORCodec()
    yield sfs.PickleCodec("secret")
    yield sfs.PickleCodec(b"secret", fallbacks=["older"])
    yield UpperCase()
    yield HalfACodec()  # type: ignore[misc]
    yield sfs.PickleCodec()  # type: ignore[call-arg]


# For users' tests


def modes() -> None:
    plain: AbstractContextManager[None] = testing.plain()
    local: AbstractContextManager[None] = testing.local()
    assert_type(testing.plain()(build_of)(42), Report)
    testing.reset()
    del plain, local
