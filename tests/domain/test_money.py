"""Money: exact decimals with a currency."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, Inexact, localcontext
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from onefold.domain.errors import OnefoldError
from onefold.domain.money import CurrencyMismatch, Money, minus, plus, total

amounts = st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**24), max_value=10**24, places=9)
money = st.builds(Money.of, amounts, st.just("EUR"))


def eur(amount: str) -> Money:
    return Money.of(amount, "EUR")


def test_amounts_of_equal_value_are_equal_whatever_their_scale() -> None:
    assert eur("24.9") == eur("24.90")
    assert hash(eur("24.9")) == hash(eur("24.90"))
    assert eur("24.9") != Money.of("24.9", "BRL")


def test_the_scale_that_was_given_is_kept() -> None:
    assert str(eur("24.90").amount) == "24.90"
    assert str(eur("24.90")) == "24.90 EUR"


@pytest.mark.parametrize(
    "amount", ["0.10", "12345678901234567890.12", "1E-7", "24.90", "-0.01", "0", "9" * 60 + ".01"]
)
def test_json_gives_every_amount_back_exactly(amount: str) -> None:
    text = eur(amount).model_dump_json()
    back = Money.model_validate_json(text).amount
    assert type(back) is Decimal
    assert back.as_tuple() == Decimal(amount).as_tuple()


@pytest.mark.parametrize("amount", [0.1, True])
def test_of_refuses_floats_and_booleans(amount: Any) -> None:
    with pytest.raises(TypeError, match=type(amount).__name__):
        Money.of(amount, "EUR")


@pytest.mark.parametrize(
    "amount", [0.1, "0.1", Decimal("NaN"), Decimal("Infinity"), Decimal("-Infinity"), Decimal("sNaN")]
)
def test_the_model_takes_only_finite_decimals_and_names_the_field(amount: Any) -> None:
    with pytest.raises(ValidationError, match="amount"):
        Money(amount=amount, currency="EUR")


@pytest.mark.parametrize("currency", ["", "eur", "EU", "EURO", "€€€", "EUR\n"])
def test_a_currency_is_three_capital_letters(currency: str) -> None:
    with pytest.raises(ValidationError, match="currency"):
        Money.of(1, currency)


def test_money_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        eur("1").amount = Decimal(2)  # type: ignore[misc]


def test_sums_and_differences() -> None:
    assert eur("0.10") + eur("0.20") == eur("0.30")
    assert eur("0.10") - eur("0.30") == -eur("0.20")
    assert Money.zero("EUR") + eur("1") == eur("1")
    assert str(-Money.zero("EUR")) == "0 EUR"


def test_order_of_amounts() -> None:
    small, large = eur("9.99"), eur("10")
    assert small < large
    assert small <= large
    assert large > small
    assert large >= small
    assert eur("10") <= eur("10.0")
    assert eur("10") >= eur("10.0")


@pytest.mark.parametrize(
    "combine",
    [
        lambda a, b: a + b,
        lambda a, b: a - b,
        lambda a, b: a < b,
        lambda a, b: a <= b,
        lambda a, b: a > b,
        lambda a, b: a >= b,
    ],
)
def test_two_currencies_do_not_mix(combine: Any) -> None:
    with pytest.raises(CurrencyMismatch, match=r"expected EUR, found BRL in 2 BRL") as caught:
        combine(eur("1"), Money.of(2, "BRL"))
    assert isinstance(caught.value, OnefoldError)
    assert isinstance(caught.value, ValueError)


def test_ten_small_deposits_and_three_odd_ones_sum_up_exactly() -> None:
    """Case H6: no amount passes through a float, no sum is rounded."""
    deposits = [Decimal("0.10")] * 10 + [
        Decimal("12345678901234567890.12"),
        Decimal("1E-7"),
        Decimal("24.90"),
    ]
    assert total(deposits) == Decimal("12345678901234567916.0200001")
    assert total([]) == 0


def test_sums_are_exact_beyond_the_28_digits_of_the_default_context() -> None:
    large, small = Decimal("1" + "0" * 40), Decimal("1E-40")
    assert minus(plus(large, small), large) == small
    with localcontext() as context:
        context.prec = 3
        assert eur("1234.56") + eur("0.01") == eur("1234.57")
        assert -eur("1234.56") == eur("-1234.56")
        assert eur("1234.56") - eur("0.01") == eur("1234.55")


def test_a_sum_that_no_one_can_hold_is_an_error_not_a_rounding() -> None:
    with pytest.raises(Inexact):
        plus(Decimal("1E+5000"), Decimal(1))


@settings(deadline=None, max_examples=200)
@given(money, money, money)
def test_adding_is_associative_and_commutative(a: Money, b: Money, c: Money) -> None:
    assert (a + b) + c == a + (b + c)
    assert a + b == b + a


@settings(deadline=None, max_examples=200)
@given(money, money)
def test_subtracting_undoes_adding(a: Money, b: Money) -> None:
    assert (a + b) - b == a
    assert a - b == a + -b
    assert (a < b) == (b > a) == (not a >= b)


def test_many_of_a_price_are_an_exact_multiple() -> None:
    price = Money.of("19.99", "EUR")
    assert price * 3 == 3 * price == Money.of("59.97", "EUR")
    assert price * Decimal("0.125") == Money.of("2.49875", "EUR")
    for factor in (0.5, True, "2"):
        with pytest.raises(TypeError):
            price * factor  # type: ignore[operator]


def test_money_is_rounded_only_when_asked_and_to_even_unless_told() -> None:
    assert Money.of("2.345", "EUR").rounded() == Money.of("2.34", "EUR")
    assert Money.of("2.345", "EUR").rounded(rounding=ROUND_HALF_UP) == Money.of("2.35", "EUR")
    assert str(Money.of("1999", "JPY").rounded(0)) == "1999 JPY"


def test_sum_adds_money_of_one_currency() -> None:
    assert sum([Money.of("0.10", "EUR"), Money.of("0.20", "EUR")]) == Money.of("0.30", "EUR")
    with pytest.raises(CurrencyMismatch):
        sum([Money.of(1, "EUR"), Money.of(1, "USD")])
    with pytest.raises(TypeError):
        1 + Money.of(1, "EUR")  # type: ignore[operator]
    assert abs(Money.of("-3", "EUR")) == abs(Money.of("3", "EUR")) == Money.of(3, "EUR")
