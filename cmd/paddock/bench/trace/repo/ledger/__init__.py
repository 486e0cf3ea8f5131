"""A small double-entry ledger."""

from ledger.book import Book
from ledger.money import Money

__all__ = ["Book", "Money"]
