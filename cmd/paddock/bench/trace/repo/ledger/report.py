"""Reports as text."""


def table(book):
    """One line for each account, sorted by name."""
    balances = book.balances()
    width = max((len(name) for name in balances), default=0)
    return "\n".join(f"{name:<{width}} {str(amount):>12}" for name, amount in sorted(balances.items()))
