"""Values to bytes and back: nothing is lost, nothing is run, and what cannot be kept is named."""

import dataclasses
import enum
import math
from collections import OrderedDict, defaultdict
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest
from hypothesis import given

from backstay.codec import decode, encode_canonical, encode_stored, is_plain, show_path
from backstay.errors import InvalidInputError
from backstay.model import MAX_DEPTH
from tests.unit.values import exactly, values

BERLIN = ZoneInfo("Europe/Berlin")
KEPT: list[Any] = [
    None,
    True,
    0,
    -1,
    2**63,
    2**64,
    -(2**63) - 1,
    10**500,
    -(10**500),
    0.0,
    -0.0,
    math.inf,
    -math.inf,
    math.nan,
    5e-324,
    "",
    "a\0b",
    "\ud83d",
    "é\U0001f600",
    b"",
    b"\0\xff",
    [],
    {},
    (),
    ((),),
    set(),
    frozenset(),
    {1, "1", (1, frozenset({2}))},
    {(1, 2): "tuple", frozenset({3}): "frozenset", None: 1, 4: "int", "4": "text", b"4": "bytes"},
    {date(2026, 1, 1): 1, UUID(int=7): 2, Decimal("1.50"): 3, timedelta(1): 4},
    datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN),
    datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN, fold=1),
    datetime(2026, 10, 25, 2, 30, fold=1),
    datetime.max,
    datetime.min.replace(tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-5, minutes=-30, microseconds=1))),
    time(1, 2, 3, 4, fold=1),
    time(1, 2, tzinfo=UTC),
    date.max,
    timedelta.max,
    timedelta.min,
    timedelta(microseconds=-1),
    Decimal("sNaN123"),
    Decimal("-NaN"),
    Decimal("Infinity"),
    Decimal("-0.000"),
    Decimal("1E+400"),
    UUID("12345678-1234-5678-1234-567812345678"),
]


@pytest.mark.parametrize("value", KEPT, ids=lambda value: type(value).__name__)
def test_a_value_comes_back_as_the_value_it_was(value: Any) -> None:
    for encode in (encode_stored, encode_canonical):
        assert exactly(decode(encode(value)), value)
        assert exactly(decode(encode({"deep": [value, {"er": value}]})), {"deep": [value, {"er": value}]})


@given(values)
def test_no_value_of_the_listed_types_loses_anything(value: Any) -> None:
    assert exactly(decode(encode_stored(value)), value)
    assert exactly(decode(encode_canonical(value)), value)


@given(values)
def test_a_value_read_back_has_the_same_canonical_form(value: Any) -> None:
    assert encode_canonical(decode(encode_stored(value))) == encode_canonical(value)


@given(values)
def test_a_value_called_plain_is_kept_by_msgpack_alone(value: Any) -> None:
    if is_plain(value):
        try:
            data = msgspec.msgpack.encode(value)
        except (OverflowError, UnicodeEncodeError):
            return
        assert exactly(msgspec.msgpack.decode(data), value)


def test_the_order_of_keys_survives_storing_and_does_not_count_in_the_canonical_form() -> None:
    one, other = {"b": 1, "a": {"y": 1, "x": 2}}, {"a": {"x": 2, "y": 1}, "b": 1}
    assert list(decode(encode_stored(one))) == ["b", "a"]
    assert encode_canonical(one) == encode_canonical(other)
    mixed, reordered = {1: "a", (2, 3): "b", None: "c"}, {None: "c", (2, 3): "b", 1: "a"}
    assert list(decode(encode_stored(mixed))) == list(mixed)
    assert encode_canonical(mixed) == encode_canonical(reordered)


def test_values_that_python_calls_equal_do_not_share_a_canonical_form() -> None:
    alike = [1, True, 1.0, Decimal(1), Decimal("1.0"), "1", b"1", [1], (1,), {1}, frozenset({1})]
    assert len({encode_canonical(value) for value in alike}) == len(alike)
    assert encode_canonical(0.0) != encode_canonical(-0.0)
    assert encode_canonical("2026-01-01") != encode_canonical(date(2026, 1, 1))
    assert encode_canonical(datetime(2026, 1, 1)) != encode_canonical(date(2026, 1, 1))
    early = datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN)
    assert encode_canonical(early) != encode_canonical(early.replace(fold=1))


class Colour(enum.Enum):
    RED = 1


class Weekday(enum.IntEnum):
    MONDAY = 1


class Role(enum.StrEnum):
    USER = "user"


class Point(NamedTuple):
    x: int


class Text(str):
    __slots__ = ()


class Items(list[int]):
    pass


class Stamp(datetime):
    pass


REFUSED = [
    object(),
    object,
    len,
    lambda: None,
    range(3),
    iter([]),
    bytearray(b"x"),
    memoryview(b"x"),
    1j,
    Colour.RED,
    Weekday.MONDAY,
    Role.USER,
    Point(1),
    Text("x"),
    Items([1]),
    Stamp(2026, 1, 1),
    NotImplemented,
    ...,
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: type(value).__name__)
def test_what_would_come_back_as_something_else_is_refused_by_its_place(value: Any) -> None:
    state = {"messages": ["a", {"n": 1}, (), {"image": value}]}
    for encode in (encode_stored, encode_canonical):
        with pytest.raises(InvalidInputError, match=r"^state\['messages'\]\[3\]\['image'\]: .*") as caught:
            encode(state["messages"], ("messages",))
        assert type(value).__qualname__ in str(caught.value)


def test_a_value_inside_a_tuple_or_under_an_odd_key_is_named_too() -> None:
    with pytest.raises(InvalidInputError, match=r"^state\['a'\]\[1\]\[\(1, 2\)\]: "):
        encode_stored((0, {(1, 2): object()}), ("a",))
    with pytest.raises(InvalidInputError, match=r"^state\['a'\]: .*object"):
        encode_stored({object()}, ("a",))


class Address(msgspec.Struct):
    street: str
    seen: datetime


@dataclasses.dataclass
class Customer:
    name: str
    address: Address
    tags: tuple[str, ...]


class Ticket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int
    opened: date
    customer: Any = None


def test_dataclasses_structs_and_models_go_in_as_plain_dicts() -> None:
    seen = datetime(2026, 1, 2, tzinfo=UTC)
    customer = Customer("Ada", Address("Rose Worker", seen), ("a", "b"))
    ticket = Ticket(id=7, opened=date(2026, 1, 1), customer=customer, extra_field=[customer])  # type: ignore[call-arg]
    plain = {"name": "Ada", "address": {"street": "Rose Worker", "seen": seen}, "tags": ("a", "b")}
    expected = {"id": 7, "opened": date(2026, 1, 1), "customer": plain, "extra_field": [plain]}
    assert exactly(decode(encode_stored({"ticket": ticket, "all": [ticket]})), {"ticket": expected, "all": [expected]})
    assert encode_canonical(ticket) == encode_canonical(expected)


def test_a_field_that_cannot_be_stored_is_named_inside_its_model() -> None:
    with pytest.raises(InvalidInputError, match=r"^state\['t'\]\['customer'\]\['address'\]: .*object"):
        encode_stored(
            Ticket(id=1, opened=date(2026, 1, 1), customer=Customer("x", object(), ())),  # type: ignore[arg-type]
            ("t",),
        )


def test_a_class_in_place_of_its_instance_is_refused() -> None:
    for kind in (Customer, Address, Ticket):
        with pytest.raises(InvalidInputError):
            encode_stored(kind)


def test_dicts_of_other_kinds_go_in_as_dicts() -> None:
    counts: defaultdict[str, int] = defaultdict(int, {"a": 1})
    assert exactly(
        decode(encode_stored({"o": OrderedDict(z=1, a=2), "d": counts})), {"o": {"z": 1, "a": 2}, "d": {"a": 1}}
    )


def nested(levels: int, wrap: type[list[Any] | tuple[Any, ...] | dict[Any, Any] | frozenset[Any]]) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = {"a": value} if wrap is dict else wrap([value])
    return value


@pytest.mark.parametrize("wrap", [list, tuple, dict, frozenset])
def test_nesting_to_the_limit_is_kept_and_one_more_is_refused(wrap: Any) -> None:
    deepest = nested(MAX_DEPTH, wrap)
    assert decode(encode_stored(deepest)) == deepest
    for levels in (MAX_DEPTH + 1, 5_000):
        with pytest.raises(InvalidInputError, match="nested deeper"):
            encode_stored(nested(levels, wrap), ("a",))


def test_nesting_counts_from_the_part_wherever_the_value_is_added() -> None:
    with pytest.raises(InvalidInputError, match="nested deeper"):
        encode_stored(nested(MAX_DEPTH, list), ("messages", 7))
    encode_stored(nested(MAX_DEPTH - 1, list), ("messages", 7))


def test_a_structure_that_contains_itself_is_refused_at_once() -> None:
    loop: list[Any] = []
    loop += [loop, loop, loop]
    ring: dict[str, Any] = {"a": (1, loop)}
    ring["b"] = ring
    model = Customer("x", Address("y", datetime.min), ())
    model.name = model  # type: ignore[assignment]
    for cyclic in (loop, ring, (loop,), {"k": [ring]}, model):
        with pytest.raises(InvalidInputError, match="contains itself"):
            encode_stored(cyclic, ("a",))
        with pytest.raises(InvalidInputError, match="contains itself"):
            encode_canonical(cyclic, ("a",))


def test_a_caller_whose_stack_is_nearly_used_up_gets_an_error_of_ours_or_the_bytes() -> None:
    value = nested(MAX_DEPTH - 1, dict)
    value["odd"] = ()

    def dig(levels: int) -> bytes:
        return dig(levels - 1) if levels else encode_stored(value, ("a",))

    outcomes: set[type] = set()
    for levels in range(300, 940, 20):
        try:
            outcomes.add(type(dig(levels)))
        except InvalidInputError as error:
            outcomes.add(type(error))
        except RecursionError:  # the digging itself
            break
    assert bytes in outcomes


def test_a_path_reads_like_what_one_would_type() -> None:
    assert show_path(("messages", 3, "image")) == "state['messages'][3]['image']"
    assert show_path(()) == "state"
