"""LangGraph over Backstay: `graph.compile(checkpointer=BackstaySaver(store))`, and `once` for tools.

Installed by the extra `langgraph`. A checkpointer is made of another library's innermost forms, so only versions of it
that were tried are taken; another is an error here, not a wrong value later.
"""

from importlib import metadata

from backstay.errors import UnsupportedError

OLDEST, BEFORE = (4, 0, 1), (4, 4)


def _refuse_unknown(found: str | None) -> None:
    hint = "pip install 'backstay[langgraph]'"
    if found is None:
        raise UnsupportedError("backstay.adapters.langgraph needs LangGraph, which is not installed", hint=hint)
    version = tuple([int(part) if part.isdigit() else 0 for part in found.split(".")[:3]])
    if not OLDEST <= version < BEFORE:
        wanted = f">={'.'.join(map(str, OLDEST))},<{'.'.join(map(str, BEFORE))}"
        message = f"langgraph-checkpoint {found} is not one this adapter was tried with ({wanted})"
        raise UnsupportedError(message, hint=hint)


def _installed() -> str | None:
    try:
        return metadata.version("langgraph-checkpoint")
    except metadata.PackageNotFoundError:
        return None


_refuse_unknown(_installed())


def _learn_schemas() -> None:
    """Have graphs tell their savers the types that their schemas name.

    LangGraph does so in strict mode only, which it asks for when a graph is compiled; so that is said here, where every
    user of this saver comes by. A saver whose serializer builds anything, as LangGraph's own do, stays as it is.
    """
    try:
        from langgraph._internal import _serde  # noqa: PLC0415 - only where graphs are
    except ImportError:  # savers alone are installed, or a version that has moved it: `allow` is left
        return
    _serde.STRICT_MSGPACK_ENABLED = True


_learn_schemas()

from backstay.adapters.langgraph.saver import BackstaySaver  # noqa: E402 - not before the version is known
from backstay.adapters.langgraph.tools import Once, once  # noqa: E402

__all__ = ["BackstaySaver", "Once", "once"]
