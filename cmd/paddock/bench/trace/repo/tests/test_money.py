import pytest

from ledger.money import Money


@pytest.mark.parametrize("text, cents", [("12", 1200), ("12.5", 1250), ("12.50", 1250), ("0.07", 7), ("-3.20", -320), ("-0.07", -7)])
def test_parse(text, cents):
    assert Money.parse(text).cents == cents


def test_parse_refuses_fractions_of_a_cent():
    with pytest.raises(ValueError):
        Money.parse("1.005")


@pytest.mark.parametrize("cents", [0, 7, -7, 123456])
def test_text_is_read_back(cents):
    assert Money.parse(str(Money(cents))).cents == cents


@pytest.mark.parametrize("cents, ways", [(100, 3), (1, 4), (999, 2)])
def test_split_loses_nothing(cents, ways):
    assert sum(part.cents for part in Money(cents).split(ways)) == cents
