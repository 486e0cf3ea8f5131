import random

from ledger import Book, Money


def test_parse_of_negative_amounts():
    for cents in range(-1000, 1000):
        assert Money.parse(str(Money(cents))).cents == cents


def test_split_is_fair_and_whole():
    r = random.Random(1)
    for _ in range(500):
        cents, ways = r.randint(-10**6, 10**6), r.randint(1, 40)
        parts = [part.cents for part in Money(cents).split(ways)]
        assert len(parts) == ways and sum(parts) == cents and max(parts) - min(parts) <= 1


def test_under_takes_whole_names():
    b = Book()
    b.post("2024-01-01", "x", [("a:b", Money(5)), ("ab", Money(-5))])
    assert b.under("a") == Money(5) and b.under("a:b") == Money(5)
