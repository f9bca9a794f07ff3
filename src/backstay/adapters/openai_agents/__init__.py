"""OpenAI Agents SDK: a Session kept by Backstay, and hooks that keep what a run has paid for.

    session = BackstaySession("ticket-42", store)
    await Runner.run(agent, "refund order 7", session=session, hooks=BackstayHooks())

Installed by the extra `openai-agents`. The hooks' order and what the SDK tells a session matter, so only versions that
were tried are taken; another is an error here, not a lost answer later.
"""

import re
from importlib.metadata import distributions

from backstay.errors import UnsupportedError

OLDEST, BEFORE = (0, 21), (0, 25)  # what the tests run with


def check_version(found: str | None) -> None:
    """UnsupportedError for a version of the SDK that this adapter does not know."""
    numbers = re.match(r"(\d+)\.(\d+)", found or "")
    if numbers is None or not OLDEST <= (int(numbers[1]), int(numbers[2])) < BEFORE:
        message = "this adapter knows openai-agents {}.{} to below {}.{}; here is {}".format(*OLDEST, *BEFORE, found)
        raise UnsupportedError(message, hint="pip install 'backstay[openai-agents]'")


# Before the imports below: another package may be called `agents`, too.
check_version(next((found.version for found in distributions(name="openai-agents")), None))

from backstay.adapters.openai_agents.hooks import BackstayHooks  # noqa: E402 - not before the version is known
from backstay.adapters.openai_agents.items import NOT_RUN  # noqa: E402
from backstay.adapters.openai_agents.session import BackstaySession  # noqa: E402

__all__ = ["NOT_RUN", "BackstayHooks", "BackstaySession"]
