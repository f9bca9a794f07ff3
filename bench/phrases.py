"""The words that generated conversations are made of. Data only."""

from __future__ import annotations

SLOTS: dict[str, tuple[str, ...]] = {
    "thing": (
        "water bottle",
        "desk lamp",
        "hiking boots",
        "mechanical keyboard",
        "garden hose",
        "espresso machine",
        "wool blanket",
        "running shoes",
        "office chair",
        "air purifier",
        "bluetooth speaker",
        "backpack",
        "laptop stand",
        "jigsaw puzzle",
        "electric kettle",
        "wristwatch",
        "tea kettle",
        "cycling helmet",
    ),
    "color": ("black", "white", "navy blue", "forest green", "red", "silver", "grey", "beige", "purple"),
    "act": (
        "cancel",
        "return",
        "exchange",
        "refund",
        "modify",
        "delay",
        "reorder",
        "gift wrap",
        "split",
        "upgrade",
    ),
    "noun": (
        "the order",
        "the payment method",
        "the shipping address",
        "the delivery window",
        "the gift card",
        "the return label",
        "the invoice",
        "the warranty",
        "the discount",
        "the subscription",
        "the refund",
        "the loyalty points",
        "the store credit",
        "the tracking number",
        "the account",
        "the second item",
    ),
    "who": ("the customer", "the user", "a member of the household", "the account holder", "the recipient"),
    "when": (
        "before the parcel leaves the warehouse",
        "within 24 hours",
        "within 30 days of delivery",
        "by next Friday",
        "once the payment has cleared",
        "after the first notice",
        "as soon as possible",
        "on the same day",
        "unless it was bought on sale",
        "if the item is still sealed",
        "while it is pending",
        "at any time",
    ),
    "reason": (
        "it arrived damaged",
        "I ordered the wrong size",
        "it no longer fits the room",
        "I found it cheaper elsewhere",
        "my plans have changed",
        "it was meant to be a surprise",
        "the colour is not what I expected",
        "it stopped working after two days",
        "somebody in my family already bought one",
        "I am moving house",
    ),
    "must": ("must", "should", "may", "can", "must not", "should never", "is allowed to", "has to"),
    "verb": (
        "confirm",
        "explain",
        "list",
        "check",
        "verify",
        "record",
        "mention",
        "offer",
        "propose",
        "reject",
        "accept",
    ),
}

RULES: tuple[str, ...] = (
    "The agent {must} {verb} {noun} {when}.",
    "{noun} {must} be changed only when {who} asks for it, and {when}.",
    "Before taking any action that updates the database, list the details and obtain confirmation (yes).",
    "If {who} wants to {act} {noun}, the agent {must} {verb} the reason and {verb} {noun} {when}.",
    "Do not {act} {noun} on behalf of {who} who has not been identified by user id or by email.",
    "A request to {act} {noun} {must} be denied {when}.",
    "You should not provide any information, knowledge or procedures not given by {who} or the tools.",
    "An order with status pending {must} be modified once, {when}; afterwards {noun} {must} stay as it is.",
    "When the price differs, {who} {must} provide a payment method to pay or receive the difference {when}.",
    "Only make one tool call at a time, and if you make a tool call do not respond at the same time.",
    "To {act} more than one item, {verb} all of them first, then {verb} {noun}, and only then {act} it.",
    "The total {must} equal the sum of the items; gift cards {must} be used first {when}.",
    "Transfer to a human agent if and only if the request is not within the scope of your actions.",
    "Each profile contains {noun}, {noun} and {noun}; {who} {must} {verb} them {when}.",
)

ASKS: tuple[str, ...] = (
    "Hi! I'd like to {act} my order {order}.",
    "Sure, my user ID is {user_id}.",
    "The {thing} has to go because {reason}.",
    "Could you {act} the {thing} and tell me what happens to {noun}?",
    "Yes, please go ahead with that.",
    "No, I don't want to {act} anything else, thank you.",
    "I would prefer the {color} {thing} instead, if there is one.",
    "Can you check {noun} for order {order} first?",
    "How much would it be in total if I {act} both?",
    "I'm not sure I understand, {reason} and I was told I could {act} it {when}.",
    "Actually, please use the card ending in the same digits as last time.",
    "That sounds good, but what about {noun}?",
    "Is there any way to do this {when}?",
    "Okay, let's {act} the {color} {thing} only.",
)

ANSWERS: tuple[str, ...] = (
    "Thank you, {first}. I have found your order {order} and here are the details:",
    "To {act} {noun}, I will need your confirmation. The change can be made {when}.",
    "Your request to {act} the {thing} has been received, and {noun} will be updated {when}.",
    "I understand that {reason}. According to our policy I can {act} {noun} {when}.",
    "Unfortunately I cannot {act} {noun} for order {order}, because it is no longer pending.",
    "The {color} {thing} is available. The difference will be refunded to the original payment method.",
    "Here are the options that are available for the {thing} in {color}:",
    "I have gone ahead and made the change, {first}. Order {order} now shows the new {thing}.",
    "Could you please provide your user ID, so that I can {verb} {noun}?",
    "Please note that an order can be changed only once, so make sure that every item is included.",
)

CLOSINGS: tuple[str, ...] = (
    "Would you like to proceed with this? Please confirm (yes/no).",
    "Please let me know which option you would like.",
    "If you have any further questions or need assistance, feel free to ask.",
    "Is there anything else I can help you with today?",
)

FAILURES: tuple[str, ...] = (
    "Error: payment amount does not add up",
    "Error: non-pending order cannot be modified",
    "Error: item not found",
    "Error: gift card balance is not enough",
)

FIRST_NAMES: tuple[str, ...] = (
    "Mia",
    "Noah",
    "Olivia",
    "Raj",
    "Yusuf",
    "Fatima",
    "Sofia",
    "Lei",
    "Ivan",
    "Chen",
    "Aarav",
    "Emma",
    "Liam",
    "Mohamed",
    "Daiki",
    "Isabella",
    "Lucas",
    "Amelia",
    "Omar",
    "Harper",
    "Ethan",
    "Ava",
    "James",
    "Juan",
    "Evelyn",
)

LAST_NAMES: tuple[str, ...] = (
    "Li",
    "Kim",
    "Garcia",
    "Rossi",
    "Sanchez",
    "Patel",
    "Johnson",
    "Nguyen",
    "Kovacs",
    "Silva",
    "Ito",
    "Muller",
    "Khan",
    "Anderson",
    "Lopez",
    "Moore",
    "Davis",
    "Jackson",
    "Brown",
    "Ahmed",
    "Taylor",
    "Hernandez",
    "Santos",
)

STREETS: tuple[str, ...] = (
    "Sunset Drive",
    "Oak Avenue",
    "Maple Drive",
    "Park Avenue",
    "Cedar Street",
    "Elm Street",
    "Pine Lane",
    "Hillcrest Drive",
    "Lakeview Drive",
    "Broadway",
    "Main Street",
    "River Road",
    "Chestnut Street",
)

CITIES: tuple[str, ...] = (
    "Austin",
    "Denver",
    "Seattle",
    "Chicago",
    "Boston",
    "Dallas",
    "Phoenix",
    "Houston",
    "San Diego",
    "Charlotte",
    "Columbus",
    "Fort Worth",
    "New York",
    "Philadelphia",
    "Washington",
    "Indianapolis",
    "Jacksonville",
)

# For sentences in a person's own words. Roughly by how often English uses them: earlier ones are drawn more.
_BY_FREQUENCY = """
the to and a of i it is you that in for my on with have be this was not are but can if at so they we me
what as your or do would from all just will an one there when about out up get like know how time no some
only need been which their more now please could then who them want make than other order after because
way any does first back even over where should our still here by had has he she work going through before
new today between never small few thing long right help really sent being another week day each box those
find money same again both since under last next every maybe already around without second however bought
paid different though instead change until enough called number given almost once started probably wrong
family quite reason arrived parcel delivery waiting problem card account replacement store colour actually
price check month courier neighbour birthday kitchen summer office damaged opened invoice tracking charged
refund credit receipt warehouse promised unfortunately shipping discount yesterday evening morning
together battery charger leather cotton handle screen button label address apartment holiday package
message answer confirm details website browser password question available possible mentioned received
returned cancelled exchange warranty manual broken missing scratched loose heavier smaller brighter
cheaper expected described picture listing review department supervisor policy guarantee insurance
signature doorstep locker
"""
WORDS: tuple[str, ...] = tuple(_BY_FREQUENCY.split())
