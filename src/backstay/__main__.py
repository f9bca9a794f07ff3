"""Where `backstay` starts, and `python -m backstay`, for a Python whose scripts are not on the path.

The command line is imported inside `run`, so that Ctrl-C is as quiet while it loads as it is later.
"""

import gc
import sys


def run() -> int:
    """One command line, from its first import to its exit code."""
    # One short-lived process that mostly loads code: looking for cycles in it ten times takes longer than it is worth.
    gc.set_threshold(50_000)
    if sys.argv[1:2] == ["hook"] and not {"-h", "--help"} & set(sys.argv):
        from backstay.adapters.claude_code import client  # noqa: PLC0415 - Claude Code waits for it: see there

        return client.run(sys.argv[2:])
    try:
        from backstay.cli import main  # noqa: PLC0415 - see above

        return main()
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(run())
