"""`python -m holdfast` is `holdfast`: for a Python whose scripts are not on the path."""

import sys

from holdfast.cli import main

if __name__ == "__main__":
    sys.exit(main())
