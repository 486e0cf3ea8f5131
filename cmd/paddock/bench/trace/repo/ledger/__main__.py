"""python3 -m ledger report FILE"""

import sys

from ledger.book import Book
from ledger.report import table


def main(argv):
    if len(argv) != 2 or argv[0] != "report":
        print(__doc__, file=sys.stderr)
        return 2
    print(table(Book.load(argv[1])))
    return 0


sys.exit(main(sys.argv[1:]))
