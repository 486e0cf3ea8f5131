"""Amounts of money in whole cents."""

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Money:
    cents: int

    @classmethod
    def parse(cls, text):
        """Reads "12", "12.5", "12.50" or "-0.07"."""
        whole, _, part = text.strip().partition(".")
        if len(part) > 2:
            raise ValueError(f"more than two decimals: {text!r}")
        return cls(int(whole) * 100 + int(part.ljust(2, "0") or 0))

    def __add__(self, other):
        return Money(self.cents + other.cents)

    def __neg__(self):
        return Money(-self.cents)

    def split(self, ways):
        """Parts that differ by at most a cent and add up to the whole."""
        each = self.cents // ways
        return [Money(each) for _ in range(ways)]

    def __str__(self):
        sign = "-" if self.cents < 0 else ""
        return f"{sign}{abs(self.cents) // 100}.{abs(self.cents) % 100:02d}"
