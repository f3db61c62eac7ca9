"""Fingerprints and keys: the same for what is equal by value, different for all else."""

from __future__ import annotations

import json
import time
import unicodedata
from decimal import Decimal
from types import MappingProxyType
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold.projections.fingerprint import KeyMissing, digest_of, fingerprint, text_of, time_ordered
from onefold.projections.message import Message

V7 = "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"


def of(data: Any, kind: str = "payment.received", subject: str | None = "account/1") -> bytes:
    return fingerprint(Message("1", "/bank", kind, data, subject))


def parsed(text: str) -> bytes:
    """The fingerprint of data as it comes off the wire."""
    return of(json.loads(text, parse_float=Decimal))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("24.9", "24.90"),
        ("24.9", "24.900000000000000000000000000000000"),
        ("24.9", "2.49e1"),
        ("24.9", "249E-1"),
        ("-0.5", "-0.50"),
        ("24", "24.0"),
        ("24", "24.000"),
        ("100", "1E2"),
        ("100", "1e+2"),
        ("-100", "-1.0E2"),
        ("0", "0.0"),
        ("0", "-0"),
        ("0", "-0.00"),
        ("0", "0E-9"),
        ("0", "0E400"),
        ("1E-7", "0.0000001"),
        ("1E-7", "0.00000010"),
        ("1" + "0" * 500, "1E500"),
        ("1" + "0" * 4299, "1E4299"),
        ("1E5000", "10E4999"),
        ("1E5000", "0.1E5001"),
        ("12345678901234567890.12", "12345678901234567890.1200"),
        ("123456789012345678901234567890123456789", "123456789012345678901234567890123456789.0"),
        ('"24.9"', '"24.90"'),
        ('"24"', '"24.00"'),
        ('"24.9"', '"024.9"'),
        ('"0"', '"0.00"'),
        ('"0"', '"-0.0"'),
        ('"-1.5"', '"-1.50"'),
        ('"0.05"', '"00.050"'),
        ('{"a":1,"b":2}', '{"b":2,"a":1}'),
        ('{"a":{"x":1,"y":[2.0]}}', '{ "a" : {"y": [2], "x": 1.0} }'),
        ('["24.90", "1.10"]', '["24.9", "1.1"]'),
        ('"\\u00e9"', '"é"'),
        ('"a/b"', '"a\\/b"'),
        ('{"n":1000000000000000000000000000000}', '{"n":1E30}'),
        ('{"é":"\\n","z":1}', '{"z":1,"\\u00e9":"\\u000a"}'),
        ('{"\\uffff":1,"\\ud83d\\ude00":[1.0]}', '{"\\ud83d\\ude00":[1],"\\uffff":1}'),
        ('{"a":{"b":"\\u001f\\u007f"},"c":"24.90"}', '{"c":"24.9","a":{"b":"\\u001F\u007f"}}'),
    ],
)
def test_data_are_equal_by_value(one: str, other: str) -> None:
    """H6 and H10: a redelivery that writes a number otherwise, or its keys in another order, is no conflict."""
    assert parsed(one) == parsed(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("24.9", "24.91"),
        ("24.9", "-24.9"),
        ("24.9", "249"),
        ("24.9", "2.49"),
        ("24.9", '"24.9"'),
        ("24", '"24"'),
        ("0", "false"),
        ("1", "true"),
        ("0", "null"),
        ("0", '""'),
        ('""', "null"),
        ("[]", "{}"),
        ("[]", "null"),
        ("[1,2]", "[2,1]"),
        ("[[1],2]", "[1,[2]]"),
        ('{"a":1}', '{"a":1,"b":null}'),
        ('{"a":1}', '{"A":1}'),
        ('"a"', '"a "'),
        ("123456789012345678901234567890.1", "123456789012345678901234567890.2"),
        ("1234567890123456789012345678901234567890", "1234567890123456789012345678901234567891"),
        ("12345678901234567890123456789012345678.9", "12345678901234567890123456789012345679"),
        ("1E-400", "1E-401"),
        ("1E5000", "1E5001"),
        ("1E5000", "-1E5000"),
        ("1E400", "1E401"),
        ('"24.9"', '"2.49"'),
        ('"24.9"', '"-24.9"'),
        ('"1.2.30"', '"1.2.3"'),
        ('"24.90 "', '"24.9 "'),
        ('"24.90EUR"', '"24.9EUR"'),
        ('"1.10e5"', '"1.1e5"'),
        # Keys are names, not amounts.
        ('{"24.90":1}', '{"24.9":1}'),
        ('{"a":{"1.0":"1.0"}}', '{"a":{"1.00":"1.0"}}'),
        # A text inside of a text stays as it is.
        ('"x\\"24.90"', '"x\\"24.9"'),
        ('"\\"24.90"', '"\\"24.9"'),
        ('"\\"24.90\\""', '"\\"24.9\\""'),
        ('"x,\\"24.90"', '"x,\\"24.9"'),
        ('"[\\"24.90\\",1]"', '"[\\"24.9\\",1]"'),
        ('"x\\\\\\"24.90"', '"x\\\\\\"24.9"'),
        ('["x\\\\","24.90"]', '["x\\\\","24.91"]'),
        # What a number is turned into is not what an object can say.
        ("24.9", '{"#":"249e-1"}'),
        ("24.9", '["NaN","249e-1"]'),
        ("24.9", '"249e-1"'),
        ('"é"', '"e\\u0301"'),
        ('"\\ud83d\\ude00"', '"\\ud83d\\ude01"'),
        ('{"a\\u0001":1}', '{"a\\u0002":1}'),
    ],
)
def test_data_that_differ_have_different_fingerprints(one: str, other: str) -> None:
    assert parsed(one) != parsed(other)


def test_a_decimal_behind_a_text_that_ends_with_a_backslash_is_still_an_amount() -> None:
    assert parsed(r'["x\\","24.90"]') == parsed(r'["x\\","24.9"]')


def test_bytes_are_compared_byte_by_byte_and_are_no_text() -> None:
    assert of(b"24.9") == of(b"24.9")
    assert of(b"24.9") != of(b"24.90")
    assert of(b'"a"') != of("a")
    assert of(b"") != of(None)
    assert of(b"") != of("")
    assert of(b"null") != of(None)


def test_type_and_subject_count_and_cannot_be_taken_for_each_other() -> None:
    """H10: the same content for another account is a conflict."""
    assert of(1, "a", "b") != of(1, "a", "c")
    assert of(1, "a", "b") != of(1, "c", "b")
    assert of(1, "ab", "c") != of(1, "a", "bc")
    assert of(1, "a", "24.9") != of(1, "a", "24.90")
    assert of(1, "a", None) == of(1, "a", "")
    assert of(1, "a", None) != of(1, "a", "None")
    # A NUL in content that is not JSON does not move what comes before or after it.
    assert of(b"x\x00a", "b", "c") != of(b"x", "a\x00b", "c")
    assert of(b"a\x00b", "c", "d") != of(b"a", "b", "c\x00d")
    assert of(b"x", "a\x00b", "c") != of(b"x", "a", "b\x00c")
    assert of(1, "1:a", "b") != of(1, "1", "a1:b")


def test_what_a_redelivery_may_change_does_not_count() -> None:
    one = Message("1", "/bank", "t", {"a": 1}, "s", extensions={"traceparent": "00-1"})
    other = Message("2", "/other", "t", {"a": 1}, "s", datacontenttype="application/json", dataschema="x")
    assert fingerprint(one) == fingerprint(other)
    assert len(fingerprint(one)) == 16


def test_a_fingerprint_stays_the_same_for_as_long_as_a_ledger_remembers_it() -> None:
    """Another version of the product must not take a redelivery for a conflict."""
    data = {"amount": Decimal("24.90"), "text": "24.90", "n": 7, "none": None, "big": Decimal("1E5000")}
    assert of(data).hex() == "e7e72bde47e2d2846e518dc792140839"
    assert of(b"\x00\xff").hex() == "d766285bf12b4626565e1cdb3ad10d40"
    assert digest_of("payment-1").hex() == "5c1cd1393f15d40ec7f2f53e4bba3a8f"
    assert digest_of(("/bank", "1")).hex() == "060953c5364661d63f71d47307d4f594"


def test_data_of_any_mapping_count_like_those_of_a_dict() -> None:
    assert of(MappingProxyType({"a": MappingProxyType({"b": 1})})) == of({"a": {"b": 1}})


def test_what_is_no_json_value_is_refused_by_its_type() -> None:
    with pytest.raises(TypeError, match="expected a JSON value, found UUID"):
        of({"id": uuid4()})


def test_a_lone_surrogate_in_an_attribute_does_not_fail() -> None:
    assert of(1, "a", "\ud800") != of(1, "a", "\ud801")


@pytest.mark.parametrize(
    "hostile",
    ["0" * 200_000, "1." + "0" * 200_000 + "x", "-" + "0" * 200_000 + ".", "1." * 100_000, '"' * 100_000],
)
def test_a_long_text_costs_time_in_proportion_to_its_length(hostile: str) -> None:
    began = time.process_time()
    of({"text": hostile, "amount": "1.5"})
    assert time.process_time() - began < 1


@pytest.mark.parametrize(
    "number",
    [Decimal("1" * 5000), Decimal("1" * 5000 + ".5"), Decimal("9" * 4200 + "E400"), Decimal("-1E999999")],
)
def test_a_number_too_long_to_be_written_has_a_fingerprint_all_the_same(number: Decimal) -> None:
    assert of(number) == of(number)
    assert of(number) != of(-number)


texts = st.one_of(
    st.text(st.sampled_from('01249.-"\\,:[]{}#eE é'), max_size=8),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
    st.text(max_size=4),
)
numbers = st.one_of(
    st.integers(-(10**30), 10**30),
    st.decimals(allow_nan=False, allow_infinity=False).filter(lambda number: abs(number.adjusted()) < 5_000),
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


def plain(value: Any) -> Any:
    """The value in a form that Python compares as fingerprints should."""
    match value:
        case bool() | None:
            return ("fixed", value)
        case int() | Decimal():
            return ("number", Decimal(value))
        case str():
            return ("text", plain_text(value))
        case list():
            return ("list", [plain(part) for part in value])
        case _:
            return ("object", {key: plain(part) for key, part in value.items()})


def plain_text(value: str) -> str | Decimal:
    whole, dot, part = value.removeprefix("-").partition(".")
    if dot and whole.isascii() and whole.isdigit() and (not part or (part.isascii() and part.isdigit())):
        number = Decimal(value)
        shown = f"{number:f}"
        return shown.rstrip("0").rstrip(".") if number else "0"
    return value


@settings(deadline=None)
@given(values, values)
def test_fingerprints_are_equal_exactly_where_the_values_are(one: Any, other: Any) -> None:
    assert (of(one) == of(other)) == (plain(one) == plain(other))


@settings(deadline=None)
@given(values, st.randoms(use_true_random=False))
def test_a_value_written_in_another_way_has_the_same_fingerprint(value: Any, chance: Any) -> None:
    def rewritten(part: Any) -> Any:
        if isinstance(part, list):
            return [rewritten(each) for each in part]
        if isinstance(part, dict):
            entries = [(key, rewritten(each)) for key, each in part.items()]
            chance.shuffle(entries)
            return dict(entries)
        if isinstance(part, Decimal) or type(part) is int:
            sign, digits, exponent = Decimal(part).as_tuple()
            assert isinstance(exponent, int)
            more = chance.randrange(3)
            return Decimal((sign, digits + (0,) * more, exponent - more))
        return part

    assert of(rewritten(value)) == of(value)


@settings(deadline=None)
@given(texts, texts)
def test_two_texts_in_one_object_do_not_run_into_each_other(one: str, other: str) -> None:
    changed = of({"a": one, "b": other}) != of({"a": other, "b": one})
    assert changed == (plain_text(one) != plain_text(other))


# Keys


def test_a_key_of_any_length_becomes_16_bytes() -> None:
    """C05: no limit of 255 letters, and nothing is cut off."""
    long = "k" * 10_240
    assert len(digest_of(long)) == 16
    assert digest_of(long) != digest_of(long + "k")
    assert digest_of(long) != digest_of("j" + long[1:])
    assert digest_of(long) == digest_of("k" * 10_240)


def test_a_composed_and_a_decomposed_letter_are_two_keys() -> None:
    """C05: text is compared letter by letter, as the producer wrote it."""
    composed, decomposed = "café", unicodedata.normalize("NFD", "café")
    assert composed != decomposed
    assert digest_of(composed) != digest_of(decomposed)


@pytest.mark.parametrize(
    ("key", "flaw"),
    [
        ("a\x00b", "contains a NUL character"),
        ("\ud800", "contains a lone surrogate"),
        (("a", "b\x00"), "contains a NUL character"),
    ],
)
@pytest.mark.parametrize("digest", [digest_of, time_ordered])
def test_a_key_that_no_database_can_hold_is_refused(digest: Any, key: object, flaw: str) -> None:
    """C05: a key with NUL is refused."""
    with pytest.raises(KeyMissing, match=rf"^the idempotency key .* {flaw}$"):
        digest(key)


@pytest.mark.parametrize(
    "key",
    [
        None,
        True,
        False,
        "",
        (),
        ("a", None),
        ("a", ""),
        ("a", True),
        ("a", ()),
        1.5,
        Decimal(1),
        b"a",
        ["a"],
        {"a": 1},
    ],
)
@pytest.mark.parametrize("digest", [digest_of, text_of, time_ordered])
def test_what_is_no_key_is_refused_and_none_is_invented(digest: Any, key: object) -> None:
    """C07, on the consumer's side."""
    with pytest.raises(
        KeyMissing,
        match=r"^expected an idempotency key \(text, whole number, UUID, or a tuple of these\), found ",
    ):
        digest(key)


def test_a_refusal_shows_no_more_than_the_beginning_of_what_was_found() -> None:
    with pytest.raises(KeyMissing) as caught:
        digest_of(["x" * 1_000])
    assert str(caught.value).endswith("found ['" + "x" * 75 + "...")
    with pytest.raises(KeyMissing) as caught:
        digest_of(["x" * 76])
    assert str(caught.value).endswith("found ['" + "x" * 76 + "']")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "bc"), ("ab", "c")),
        (("a", "b"), ("b", "a")),
        (("a",), "a"),
        (("a",), "1:a"),
        (("a", "b"), "1:a1:b"),
        (("a", ("b", "c")), (("a", "b"), "c")),
        (("a", ("b",)), ("a", "1:b")),
        (("a", "b", "c"), ("a", ("b", "c"))),
        (("1:a",), (("a",),)),
        (("a", "1"), ("a", 11)),
        ((1, 23), (12, 3)),
        ("a", "A"),
        ("a", "a "),
        ("1", "01"),
        (1, -1),
    ],
)
def test_different_keys_have_different_digests(one: object, other: object) -> None:
    assert digest_of(one) != digest_of(other)


def test_a_number_and_a_uuid_are_the_same_key_as_their_text() -> None:
    """JSON has no UUID, and producers do not agree on numbers."""
    assert digest_of(4711) == digest_of("4711")
    assert digest_of(UUID(V7)) == digest_of(V7)
    assert digest_of(("a", 4711)) == digest_of(("a", "4711"))
    assert (text_of(4711), text_of(UUID(V7)), text_of(("ab", 7))) == ("4711", V7, "2:ab1:7")


parts = st.text(st.sampled_from("01:;ab"), min_size=1, max_size=4)
keys = st.recursive(parts, lambda inner: st.lists(inner, min_size=1, max_size=3).map(tuple), max_leaves=4)


@settings(deadline=None)
@given(keys, keys)
def test_digests_are_equal_exactly_where_the_keys_are(one: object, other: object) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)


# Keys that are ordered by time


def test_a_uuid_of_version_7_is_its_own_key_however_it_is_written() -> None:
    expected = UUID(V7).bytes
    for key in (UUID(V7), V7, V7.upper(), V7.replace("-", "")):
        assert time_ordered(key) == expected


@pytest.mark.parametrize(
    "key",
    [
        uuid4(),
        pytest.param(str(uuid4()), id="version 4, at random"),
        V7.replace("-7", "-4"),
        V7.replace("-7", "-6"),
        V7.replace("-7", "-8"),
        # Of another variant.
        V7.replace("-8a9b", "-0a9b"),
        V7.replace("-8a9b", "-ca9b"),
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
        V7[:-1],
        V7 + "0",
        V7 + "\n",
        V7.replace("-", "", 1),
        "{" + V7 + "}",
        "urn:uuid:" + V7,
        "+" + V7.replace("-", "")[1:],
        V7.replace("-", "")[:-2] + "_0",
        "payment-1",
        4711,
        ("a", V7),
    ],
)
def test_a_ledger_of_time_ordered_keys_takes_no_other(key: object) -> None:
    with pytest.raises(
        KeyMissing, match=r'^expected a UUIDv7 as key, found .*\(declare ledger="any" for keys of any kind\)$'
    ):
        time_ordered(key)
