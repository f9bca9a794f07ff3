"""When a run records its state. Pure: a boundary is described, and a strategy says whether it is due.

Counts and times are *since the last recorded boundary*, kept by the run: a strategy remembers nothing. So the same
strategy may serve many runs at once, and a resumed run goes on counting where the recorded one stopped.
"""

from __future__ import annotations

import enum
import math

import msgspec

from backstay.errors import InvalidInputError


class Event(enum.StrEnum):
    """What has just happened at a boundary."""

    TOOL_CALL_COMPLETE = "tool_call_complete"
    LLM_RESPONSE = "llm_response"
    ITERATION = "iteration"


class Moment(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A boundary as a strategy sees it.

    `iteration` counts the iterations done so far, this one included; `recorded_iteration` is what it was at the last
    recorded boundary. `tool_calls` and `llm_responses` were finished since then, `elapsed_s` seconds ago.
    """

    event: Event
    iteration: int
    recorded_iteration: int
    tool_calls: int
    llm_responses: int
    elapsed_s: float


class Strategy(msgspec.Struct, frozen=True):
    """Decides which boundaries are recorded. `a | b` is due when either is.

    ```python
    import backstay

    often = backstay.EveryN(10) | backstay.EverySeconds(30)
    with backstay.open() as store, store.run("long", strategy=often) as run:
        for _ in range(25):
            run.step()                                  # every tenth is a checkpoint, and the last
    ```
    """

    def due(self, moment: Moment) -> bool:
        """True when this boundary is to be recorded."""
        raise NotImplementedError

    def __or__(self, other: object) -> Strategy:
        if not isinstance(other, Strategy):
            return NotImplemented
        return Either((*_members(self), *_members(other)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join([repr(getattr(self, name)) for name in self.__struct_fields__])})"


class Always(Strategy, frozen=True):
    """Every boundary."""

    def due(self, moment: Moment) -> bool:  # noqa: ARG002 - whatever it is
        """Yes."""
        return True


class Never(Strategy, frozen=True):
    """No boundary: only `checkpoint()` and the end of the run are recorded."""

    def due(self, moment: Moment) -> bool:  # noqa: ARG002 - whatever it is
        """No."""
        return False


class AfterToolCall(Strategy, frozen=True):
    """The first boundary after a tool call."""

    def due(self, moment: Moment) -> bool:
        """True when a tool call was finished since the last recorded boundary."""
        return moment.tool_calls > 0


class AfterLlmResponse(Strategy, frozen=True):
    """The first boundary after an answer of the model."""

    def due(self, moment: Moment) -> bool:
        """True when the model answered since the last recorded boundary."""
        return moment.llm_responses > 0


class EveryN(Strategy, frozen=True):
    """Every nth iteration, once, whichever event its boundary has."""

    n: int

    def __post_init__(self) -> None:
        """Refuse what would never be due, or always."""
        if type(self.n) is not int or self.n < 1:
            message = f"EveryN takes a whole number of at least 1, not {self.n!r}"
            raise InvalidInputError(message, hint="EveryN(5) records every fifth iteration; Never() records none")

    def due(self, moment: Moment) -> bool:
        """True when a multiple of n was reached since the last recorded boundary."""
        # Not `iteration % n == 0`: that is true at every event of the nth iteration, and misses it altogether when
        # a boundary stands for several iterations.
        return moment.iteration // self.n > moment.recorded_iteration // self.n


class EverySeconds(Strategy, frozen=True):
    """The first boundary at least so many seconds after the last recorded one."""

    s: float

    def __post_init__(self) -> None:
        """Refuse what is no length of time."""
        if type(self.s) not in (int, float) or not math.isfinite(self.s) or self.s <= 0:
            message = f"EverySeconds takes a number of seconds above 0, not {self.s!r}"
            raise InvalidInputError(message, hint="EverySeconds(30) records at most every half minute")

    def due(self, moment: Moment) -> bool:
        """True when the time is up."""
        return moment.elapsed_s >= self.s


class Either(Strategy, frozen=True):
    """Due when any of its members is. Made by `|`."""

    members: tuple[Strategy, ...]

    def due(self, moment: Moment) -> bool:
        """True when one of them is due."""
        return any(member.due(moment) for member in self.members)

    def __repr__(self) -> str:
        return " | ".join(map(repr, self.members))


def _members(strategy: Strategy) -> tuple[Strategy, ...]:
    return strategy.members if isinstance(strategy, Either) else (strategy,)


ALWAYS = Always()
