"""Connections: borrowed, tried again where that is safe, and never used by a forked child.

No state is kept in a session of the server (no SET beyond a transaction) that we could not do without, so a pooler
that hands out another session per transaction does no harm. Where a connection leads straight to a server, the
statements that are used most are kept there. The pool is small and has no threads of its own: a connection is made by
whoever needs one, with the driver's own error if that fails, and all idle ones are let go when one turns out broken,
since the others broke with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, TypeVar

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import PipelineStatus, TransactionStatus

from backstay.backends.postgres.faults import fault_of, is_standby, translate
from backstay.backends.postgres.protocol import Sent, Step, ask, ask_all, ask_kept, keep, pack_all, rows_of, tell
from backstay.errors import ClosedError, InvalidInputError, UnavailableError

CONNECTIONS = 16
PATIENCE_S = 15.0
IDLE_S = 10.0  # inside a transaction
_FIRST_PAUSE_S = 0.005
_LONGEST_PAUSE_S = 1.0
_KEPT_S = 600.0
_OFTEN = 5
# Dead peers are noticed by the system, not by us: a statement may take as long as it takes.
_DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "backstay",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}

_FUNCTION = re.compile(rb"\.(\w+_\d)\(")
_WORDS = re.compile(r"\{(?:schema|schema_text|channel)\}")

T = TypeVar("T")


def idle_ms() -> int:
    """How long a process may stand still inside a transaction, in milliseconds."""
    return round(IDLE_S * 1000)


class SchemaPlace:
    """The schema that statements speak of: `{schema}` in them becomes its quoted name.

    In a literal it is `{schema_text}`; `{channel}` is where news are told. All in one pass: a name may itself hold any
    of these words.
    """

    def __init__(self, schema: str, *, relaxed: bool) -> None:
        self.schema = schema
        self.relaxed = relaxed
        self.quoted = sql.Identifier(schema).as_string(None)
        self.channel = f"backstay_{sha256(schema.encode()).hexdigest()[:16]}"
        self._words = {
            "{schema}": self.quoted,
            "{schema_text}": self.quoted.replace("'", "''"),
            "{channel}": self.channel,
        }
        self._said: dict[str, bytes] = {}

    def plainly(self, text: str) -> str:
        """A text with nothing but these words replaced."""
        return _WORDS.sub(lambda found: self._words[found[0]], text)

    def __call__(self, statement: str) -> bytes:
        """A statement as it is sent: each `%s` is the next of its values."""
        said = self._said.get(statement)
        if said is None:
            first, *others = statement.split("%s")
            numbered = first + "".join([f"${number}{rest}" for number, rest in enumerate(others, 1)])
            said = self._said[statement] = self.plainly(numbered).encode()
        return said


class Wire:
    """A connection and the place it speaks of."""

    __slots__ = ("_keeps", "_kept", "_used", "connection", "made", "place")

    def __init__(self, connection: psycopg.Connection[Any], place: SchemaPlace) -> None:
        self.connection = connection
        self.place = place
        self.made = time.monotonic()
        self._used: dict[bytes, int] = {}
        self._kept: dict[bytes, bytes] = {}
        self._keeps = True

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """All rows that a statement gives."""
        return rows_of(ask(self.connection, self.place(statement), *pack_all(values)))

    def do(self, statement: str, *values: Any) -> int:
        """How many rows a statement changed."""
        return ask(self.connection, self.place(statement), *pack_all(values)).command_tuples or 0

    def call(self, statement: str, sent: Sequence[Sent], types: Sequence[int]) -> Any:
        """Run one of the few statements that are asked all the time: the server keeps it, which saves parsing."""
        said = self.place(statement)
        name = self._name_of(said, types)
        if name is None:
            return ask(self.connection, said, sent, types)
        try:
            return ask_kept(self.connection, name, sent)
        except psycopg.errors.InvalidSqlStatementName:
            self._forget()
            raise

    def call_all(self, steps: Sequence[Step]) -> list[Any]:
        """Run several of these in one round trip: all of them or, where one is refused, none."""
        said = []
        for step in steps:
            statement = self.place(step.statement)
            said.append((self._name_of(statement, step.types), statement, step))
        try:
            return ask_all(self.connection, said)
        except psycopg.errors.InvalidSqlStatementName:
            self._forget()
            raise

    def _name_of(self, said: bytes, types: Sequence[int]) -> bytes | None:
        """The name under which the server keeps a statement, from the time on that it is used often."""
        name = self._kept.get(said)
        if name is None and self._keeps:
            used = self._used[said] = self._used.get(said, 0) + 1
            if used == _OFTEN and self._is_straight():
                # Named by its text: whatever has that name already is the same.
                function = _FUNCTION.search(said)
                named = function[1].decode() if function else "statement"
                name = f"backstay.{named}.{sha256(said).hexdigest()[:24]}".encode()
                with contextlib.suppress(psycopg.errors.DuplicatePreparedStatement):
                    keep(self.connection, name, said, types)
                self._kept[said] = name
        return name

    def _forget(self) -> None:
        # The server threw statements away. Nothing was carried out; on this connection none is kept again.
        self._kept.clear()
        self._keeps = False

    def _is_straight(self) -> bool:
        """False behind a pooler, which greets with a process number of its own."""
        return bool(self.rows("SELECT pg_backend_pid()")[0][0] == self.connection.pgconn.backend_pid)

    @contextlib.contextmanager
    def transaction(self, how: str = "ISOLATION LEVEL READ COMMITTED") -> Iterator[None]:
        """Several statements; committed at the end. A process that stands still meanwhile does not keep its locks."""
        tell(self.connection, f"BEGIN {how}; SET LOCAL idle_in_transaction_session_timeout = {idle_ms()}".encode())
        try:
            yield
            tell(self.connection, b"COMMIT")
        except BaseException:
            self.roll_back()
            raise

    def roll_back(self) -> None:
        """End a transaction, if there is one, without a trace."""
        if self.connection.pgconn.transaction_status in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            tell(self.connection, b"ROLLBACK")

    @property
    def usable(self) -> bool:
        pgconn = self.connection.pgconn
        return pgconn.transaction_status == TransactionStatus.IDLE and pgconn.pipeline_status == PipelineStatus.OFF


def _is_elsewhere(thread: threading.Thread) -> bool:
    return thread is not threading.current_thread() and thread.is_alive()


class Pool:
    """See the module's text."""

    def __init__(self, conninfo: str, place: SchemaPlace) -> None:
        self._conninfo = _with_defaults(conninfo)
        self.place = place
        self.losses = 0  # connections that broke: what was kept from a server may be another's now
        # Taken by itself: a Condition is entered by Python code, where an interrupt could leave the lock behind.
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._idle: list[Wire] = []
        self._lent: dict[Wire, threading.Thread] = {}
        self._coming: list[threading.Thread] = []  # who makes a connection
        self._closed = False
        self._pid = os.getpid()

    def __repr__(self) -> str:
        return f"<Pool of schema {self.place.schema!r}>"

    def run(self, job: Callable[[Wire], T], doing: str) -> T:
        """Do a job on a connection; again, with growing pauses, as long as that may help.

        A job that writes remembers what it tried: it may have been recorded although no answer came.
        """
        deadline = time.monotonic() + PATIENCE_S
        pause_s, unclear = _FIRST_PAUSE_S, False
        while True:
            wire = None
            try:
                wire = self._take(deadline)
                return job(wire)
            except psycopg.Error as error:
                broken = wire is not None and wire.connection.closed
                fault = fault_of(error, broken=wire is None or broken)
                unclear = unclear or (fault.unclear and wire is not None)
                if broken or (is_standby(error) and wire is not None):
                    self._let_go(wire)
                if not fault.again or time.monotonic() + pause_s > deadline:
                    raise translate(error, doing, unclear=unclear) from error
            finally:
                if wire is not None:
                    self._give(wire)
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - so that those who met do not meet again
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def connect(self) -> Wire:
        """A connection of one's own."""
        connection: psycopg.Connection[Any] = psycopg.connect(self._conninfo, autocommit=True, prepare_threshold=None)
        return Wire(connection, self.place)

    def _take(self, deadline: float) -> Wire:
        self.refuse_child()
        with self._mutex:
            while True:
                if self._closed:
                    raise ClosedError("the store is closed", hint="open it again")
                if self._idle:
                    wire = self._idle.pop()
                    self._lent[wire] = threading.current_thread()
                    return wire
                if len(self._lent) + len(self._coming) < CONNECTIONS:
                    self._coming.append(threading.current_thread())
                    break
                if not self._changed.wait(deadline - time.monotonic()):
                    message = f"all {CONNECTIONS} connections were in use for {PATIENCE_S:.0f} s"
                    raise UnavailableError(message, hint="try again")
        made: Wire | None = None
        try:
            made = self.connect()
            return made
        finally:
            with self._mutex:
                self._coming.remove(threading.current_thread())
                if made is not None:
                    self._lent[made] = threading.current_thread()
                self._changed.notify()

    def _give(self, wire: Wire) -> None:
        with self._mutex:
            self._lent.pop(wire, None)
            kept = wire.usable and not self._closed
            if kept:
                self._idle.append(wire)
            # Old ones are closed one by one by whoever comes by, so that what a server keeps for each does not grow.
            old = self._idle[:1] if len(self._idle) > 1 and time.monotonic() - self._idle[0].made > _KEPT_S else []
            del self._idle[: len(old)]
            self._changed.notify()
        for each in [*old, *([] if kept else [wire])]:
            each.connection.close()

    def _let_go(self, broken: Wire | None) -> None:
        with self._mutex:
            self.losses += 1
            idle, self._idle = self._idle, []
        for wire in [*idle, *([] if broken is None else [broken])]:
            wire.connection.close()

    def close(self) -> None:
        """Refuse everything further, and wait for what is under way."""
        with self._mutex:
            self._closed = True
            self._changed.notify_all()
            while any(map(_is_elsewhere, [*self._lent.values(), *self._coming])):
                self._changed.wait(1.0)
            self._idle += self._lent  # an interrupt struck in the moment in which they changed hands
            self._lent.clear()
        self._let_go(None)

    # forking

    def refuse_child(self) -> None:
        """ClosedError in a forked child: before any lock, which nobody may be left to release."""
        if self.foreign:
            raise ClosedError("this store was opened by the parent process", hint="open it again in this process")

    @property
    def foreign(self) -> bool:
        return self._pid != os.getpid()

    def abandon(self) -> None:
        """In the child: its copies of the sockets are kept for ever, since closing one would say goodbye for both."""
        for wire in [*self._idle, *self._lent]:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(wire.connection))


def _with_defaults(conninfo: str) -> str:
    try:
        given = conninfo_to_dict(conninfo)
    except psycopg.ProgrammingError as error:
        # What libpq says of a text it cannot read quotes it, password and all: only the name of a word may pass.
        text = str(error).strip()
        why = text if text.startswith("invalid URI query parameter") else "libpq cannot read it"
        message = f"this is not the URL of a PostgreSQL database: {why}"
        raise InvalidInputError(message, hint="use 'postgresql://user@host/database?schema=name'") from None
    missing = {key: value for key, value in _DEFAULTS.items() if given.get(key) is None}
    return make_conninfo(conninfo, **missing)
