import pytest

from ledger import Book, Money
from ledger.book import Unbalanced
from ledger.report import table


@pytest.fixture
def book():
    b = Book()
    b.post("2024-01-01", "salary", [("income", Money(-250000)), ("assets:bank", Money(250000))])
    b.post("2024-01-02", "rent", [("assets:bank", Money(-80000)), ("expenses:rent", Money(80000))])
    b.post("2024-01-03", "shares", [("assets:bank", Money(-5000)), ("assetsold", Money(5000))])
    return b


def test_balances(book):
    assert book.balances()["assets:bank"] == Money(165000)


def test_unbalanced_is_refused(book):
    with pytest.raises(Unbalanced):
        book.post("2024-01-04", "slip", [("a", Money(1)), ("b", Money(1))])


def test_under_counts_accounts_below_alone(book):
    assert book.under("assets") == Money(165000)


def test_table(book):
    assert "expenses:rent       800.00" in table(book)
