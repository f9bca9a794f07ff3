"""Conversations to measure with: generated from a seed, or read from a file.

The generated ones have the shape of a tool-calling support agent's: a system
prompt of 5-8 KB, short user turns, tool calls with JSON arguments, tool results
from 20 bytes to 4 KB, a fresh customer after about 25 messages. Their size and
compressibility follow real ones (the README says how near).
No clock and no global randomness: the same seed gives the same bytes.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from bench import phrases

if TYPE_CHECKING:
    from collections.abc import Iterator

Message = dict[str, Any]

# How many of the clauses are free prose; with it the bytes pack about as well as real conversations do.
OWN_WORDS = 0.55
GZIP_MAGIC = b"\x1f\x8b"
ID_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz23456789"


def pack(value: object) -> bytes:
    """The plain msgpack of a value: what the floor inserts and a load is held against."""
    return msgspec.msgpack.encode(value)


def compact_json(value: object) -> bytes:
    """The JSON without spaces: what 'one plain copy of the state' weighs."""
    return msgspec.json.encode(value)


def generated(count: int, *, seed: int = 7) -> list[Message]:
    """Exactly `count` messages: one customer's conversation after another, each with the prompt in front."""
    agent = _Agent(random.Random(seed))
    messages: list[Message] = []
    while len(messages) < count:
        messages.extend(agent.conversation())
    return messages[:count]


def from_file(path: Path, count: int) -> list[Message]:
    """Exactly `count` messages of the file's conversations, joined; over again where it is too short."""
    conversations = [json.loads(line)["messages"] for line in _lines(path)]
    found = [message for conversation in conversations for message in conversation]
    if not found:
        msg = f"{path}: no messages in it"
        raise ValueError(msg)
    return [found[i % len(found)] for i in range(count)]


def _lines(path: Path) -> Iterator[str]:
    raw = path.read_bytes()
    text = gzip.decompress(raw) if raw.startswith(GZIP_MAGIC) else raw
    return (line for line in text.decode().splitlines() if line.strip())


class _Agent:
    """One shop's support agent: the same prompt for everyone, a new customer each conversation."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.prompt = self._prompt(6200)
        ranks = range(1, len(phrases.WORDS) + 1)
        self.word_weights = [1 / (rank + 8) for rank in ranks]  # Zipf's law, flattened at the top as in short texts

    def conversation(self) -> list[Message]:
        customer = self._customer()
        messages: list[Message] = [{"role": "system", "content": self.prompt}, self._user(customer)]
        for _ in range(self.rng.choice((2, 4, 5, 5, 6, 7, 9))):
            for _ in range(self.rng.choice((0, 1, 1, 1, 2, 2))):
                messages.extend(self._tool_call(customer))
            messages += [self._answer(customer), self._user(customer)]
        return messages

    def _id(self, prefix: str, length: int) -> str:
        return prefix + "".join(self.rng.choices(ID_LETTERS, k=length))

    def _prompt(self, size: int) -> str:
        lines = ["# Support Agent Policy", "", "The current time is 2024-05-15 15:00:00 EST.", ""]
        while sum(map(len, lines)) < size:
            lines.append("- " + " ".join(self._clause(phrases.RULES) for _ in range(self.rng.randint(1, 2))))
            lines.append("")
        return "\n".join(lines)

    def _clause(self, pool: tuple[str, ...], **slots: object) -> str:
        words = {name: self.rng.choice(choices) for name, choices in phrases.SLOTS.items()}
        return self.rng.choice(pool).format(**{**words, **slots})

    def _own_words(self, low: int, high: int) -> str:
        words = self.rng.choices(phrases.WORDS, self.word_weights, k=self.rng.randint(low, high))
        return " ".join(words).capitalize() + "."

    def _customer(self) -> dict[str, Any]:
        rng = self.rng
        first, last = rng.choice(phrases.FIRST_NAMES), rng.choice(phrases.LAST_NAMES)
        return {
            "user_id": f"{first}_{last}_{rng.randint(1000, 9999)}".lower(),
            "first": first,
            "last": last,
            "orders": [self._order() for _ in range(rng.randint(1, 4))],
        }

    def _order(self) -> dict[str, Any]:
        return {
            "order_id": self._id("", 6).upper(),
            "items": [self._item() for _ in range(self.rng.choice((1, 2, 2, 3, 4)))],
        }

    def _item(self) -> dict[str, Any]:
        rng = self.rng
        return {
            "item_id": str(rng.randint(1_000_000_000, 9_999_999_999)),
            "name": rng.choice(phrases.SLOTS["thing"]),
            "price": rng.randint(5, 900),
            "options": {
                "color": rng.choice(phrases.SLOTS["color"]),
                "size": rng.choice(("S", "M", "L", "XL")),
            },
        }

    def _user(self, customer: dict[str, Any]) -> Message:
        order = self.rng.choice(customer["orders"])["order_id"]
        parts = self.rng.choice((1, 1, 2, 2, 3))
        text = " ".join(
            self._own_words(4, 16)
            if self.rng.random() < OWN_WORDS
            else self._clause(phrases.ASKS, order=order, user_id=customer["user_id"])
            for _ in range(parts)
        )
        return {"role": "user", "content": text}

    def _answer(self, customer: dict[str, Any]) -> Message:
        order = self.rng.choice(customer["orders"])
        lines = [self._clause(phrases.ANSWERS, order=order["order_id"], first=customer["first"])]
        if self.rng.random() < 0.45:
            for number, item in enumerate(order["items"], 1):
                options = item["options"]
                lines.append(f"{number}. **{item['name'].title()}**\n   - Color: {options['color']}")
                lines.append(f"   - Size: {options['size']}\n   - Price: ${item['price']}\n")
        if self.rng.random() < OWN_WORDS:
            lines.append(self._own_words(8, 30))
        else:
            lines.append(self._clause(phrases.ANSWERS, order=order["order_id"], first=customer["first"]))
        if self.rng.random() < 0.6:
            lines.append(self._clause(phrases.CLOSINGS))
        return {"content": "\n".join(lines), "role": "assistant"}

    def _tool_call(self, customer: dict[str, Any]) -> list[Message]:
        order = self.rng.choice(customer["orders"])
        name, arguments, result = self._tool(customer, order)
        call_id = self._id("call_", 24)
        function = {"arguments": json.dumps(arguments, separators=(",", ":")), "name": name}
        call = {"function": function, "id": call_id, "type": "function"}
        return [
            {"content": None, "role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "name": name, "content": result},
        ]

    def _tool(self, customer: dict[str, Any], order: dict[str, Any]) -> tuple[str, dict[str, Any], str]:
        rng, reference = self.rng, {"order_id": order["order_id"]}
        kind = rng.choices(("order", "user", "search", "change", "think", "sum"), (32, 14, 17, 18, 9, 10))[0]
        if kind == "order":
            return "get_order_details", reference, json.dumps(self._order_record(customer, order))
        if kind == "user":
            return (
                "get_user_details",
                {"user_id": customer["user_id"]},
                json.dumps(self._user_record(customer)),
            )
        if kind == "search":
            query = {"query": rng.choice(phrases.SLOTS["thing"]), "color": rng.choice(phrases.SLOTS["color"])}
            found = [self._listing() for _ in range(rng.choice((0, 1, 2, 3, 5, 8, 14)))]
            return "search_catalogue", query, json.dumps(found)
        if kind == "think":
            return "think", {"thought": self._clause(phrases.RULES) + " " + self._own_words(10, 40)}, ""
        if kind == "sum":
            prices = [item["price"] for item in order["items"]]
            return "calculate", {"expression": " + ".join(map(str, prices))}, f"{sum(prices)}.0"
        change = {
            **reference,
            "user_id": customer["user_id"],
            "items": [{"item_id": item["item_id"], "options": item["options"]} for item in order["items"]],
            "payment_id": f"credit_card_{rng.randint(1_000_000, 9_999_999)}",
        }
        failed = rng.random() < 0.4
        result = self._clause(phrases.FAILURES) if failed else json.dumps(self._order_record(customer, order))
        return "modify_order_items", change, result

    def _order_record(self, customer: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
        rng = self.rng
        return {
            "order_id": order["order_id"],
            "user_id": customer["user_id"],
            "address": self._address(),
            "items": order["items"],
            "fulfillments": [{"tracking_id": [str(rng.randint(10**11, 10**12))], "status": "delivered"}],
            "status": rng.choice(("pending", "processed", "delivered", "cancelled")),
            "payment_history": [
                {
                    "transaction_type": "payment",
                    "amount": sum(item["price"] for item in order["items"]),
                    "payment_id": f"credit_card_{rng.randint(1_000_000, 9_999_999)}",
                },
            ],
            "created_at": f"2024-05-{rng.randint(10, 31)}T{rng.randint(10, 23)}:{rng.randint(10, 59)}:00",
        }

    def _user_record(self, customer: dict[str, Any]) -> dict[str, Any]:
        rng, cards = self.rng, [str(self.rng.randint(1_000_000, 9_999_999)) for _ in range(3)]
        return {
            "name": {"first_name": customer["first"], "last_name": customer["last"]},
            "address": self._address(),
            "email": f"{customer['first']}.{customer['last']}{rng.randint(1000, 9999)}@example.com".lower(),
            "payment_methods": {
                f"credit_card_{card}": {"source": "credit_card", "brand": "visa", "last_four": card[-4:]}
                for card in cards
            },
            "orders": [order["order_id"] for order in customer["orders"]],
        }

    def _address(self) -> dict[str, str]:
        rng = self.rng
        return {
            "address1": f"{rng.randint(1, 999)} {rng.choice(phrases.STREETS)}",
            "address2": f"Suite {rng.randint(100, 999)}",
            "city": rng.choice(phrases.CITIES),
            "country": "USA",
            "zip": str(rng.randint(10000, 99999)),
        }

    def _listing(self) -> dict[str, Any]:
        rng = self.rng
        stock = {size: rng.randint(0, 20) for size in ("S", "M", "L", "XL")}
        return {**self._item(), "status": "available", "stock": stock, "rating": rng.randint(10, 50) / 10}
