"""The book: transactions whose postings add up to nothing."""

import csv
from collections import defaultdict

from ledger.money import Money


class Unbalanced(ValueError):
    """The postings of a transaction do not add up to zero."""


class Book:
    def __init__(self):
        self.transactions = []

    def post(self, day, text, postings):
        """Records a transaction: postings are pairs of an account and an amount."""
        total = sum((amount.cents for _, amount in postings), 0)
        if total != 0:
            raise Unbalanced(f"{text}: {Money(total)} too much")
        self.transactions.append((day, text, tuple(postings)))

    def balances(self):
        """What each account holds, by name."""
        out = defaultdict(lambda: Money(0))
        for _, _, postings in self.transactions:
            for account, amount in postings:
                out[account] += amount
        return dict(out)

    def under(self, prefix):
        """The balance of an account and of all below it."""
        total = Money(0)
        for account, amount in self.balances().items():
            if account.startswith(prefix):
                total += amount
        return total

    @classmethod
    def load(cls, path):
        """Reads lines of day, text, from, to, amount."""
        book = cls()
        with open(path, newline="") as lines:
            for day, text, source, target, amount in csv.reader(lines):
                value = Money.parse(amount)
                book.post(day, text, [(source, -value), (target, value)])
        return book
