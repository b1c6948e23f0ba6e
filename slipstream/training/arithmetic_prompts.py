"""Word problems of one to four steps, written here, for drafters that shall know how the target does arithmetic."""

from __future__ import annotations

import random

_NAMES = (
    "Amira", "Bela", "Chidi", "Dana", "Emil", "Farah", "Goran", "Hana", "Ines", "Jamal", "Kaia", "Leon", "Mina",
    "Noor", "Oskar", "Priya", "Rosa", "Samir", "Tilda", "Umar", "Vera", "Wei", "Yara", "Zoltan", "Anna", "Ben",
    "Clara", "David", "Maria", "Tom", "Sarah", "John", "Lisa", "Peter",
)  # fmt: skip
_THINGS = (
    "apples", "books", "pencils", "stickers", "marbles", "cookies", "tickets", "plants", "shirts", "eggs", "bottles",
    "postcards", "candles", "toy cars", "muffins", "oranges", "notebooks", "balloons", "stamps", "flowers",
)  # fmt: skip
_PLACES = ("market", "school fair", "corner shop", "library sale", "farm stand", "street festival", "museum shop")
_ENDINGS = (
    "",
    "",
    " Show your work.",
    " Think step by step.",
    "\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "\nPlease reason step by step, and put your final answer within \\boxed{}.",
    " Explain how you get the answer.",
)


def arithmetic_prompt(draw: random.Random) -> str:
    """A problem; equal states of `draw` give equal ones."""
    write = draw.choice(
        (_shopping, _sharing, _travel, _wages, _growth, _fractions, _rectangle, _percent, _mixed, _ages, _plain, _rates)
    )
    return write(draw) + draw.choice(_ENDINGS)


def _two(draw: random.Random) -> tuple[str, str]:
    first, second = draw.sample(_NAMES, 2)
    return first, second


def _shopping(draw: random.Random) -> str:
    name, _ = _two(draw)
    first, second = draw.sample(_THINGS, 2)
    counts, prices = (draw.randint(2, 15), draw.randint(2, 9)), (draw.randint(2, 12), draw.randint(2, 25))
    text = (
        f"{name} buys {counts[0]} {first} for ${prices[0]} each and {counts[1]} {second} for ${prices[1]} each at the "
        f"{draw.choice(_PLACES)}."
    )
    total = counts[0] * prices[0] + counts[1] * prices[1]
    if draw.random() < 0.5:
        paid = (total // 50 + 1) * 50
        return f"{text} {name} pays with ${paid}. How much change does {name} get?"
    return f"{text} How much does {name} spend in total?"


def _sharing(draw: random.Random) -> str:
    name, friend = _two(draw)
    things, children = draw.choice(_THINGS), draw.randint(3, 9)
    total = children * draw.randint(4, 20)
    if draw.random() < 0.5:
        return (
            f"{name} has {total} {things} and shares them equally among {children} children. Each child then gives "
            f"{draw.randint(1, 3)} of them to {friend}. How many {things} does {friend} get?"
        )
    return (
        f"{name} has {total} {things}. {friend} has {draw.choice(('twice', 'half', 'three times'))} as many. They put "
        f"all of them together and divide them equally among {children} children. How many does each child get?"
    )


def _travel(draw: random.Random) -> str:
    name, _ = _two(draw)
    speed, hours, slower, more = draw.randint(4, 12) * 5, draw.randint(2, 6), draw.randint(2, 8) * 5, draw.randint(1, 4)
    return (
        f"{name} drives at {speed} miles per hour for {hours} hours, rests, and then drives at {slower} miles per hour "
        f"for another {more} hours. How far does {name} travel?"
    )


def _wages(draw: random.Random) -> str:
    name, _ = _two(draw)
    wage, hours, extra = draw.randint(9, 30), draw.randint(20, 40), draw.randint(2, 10)
    return (
        f"{name} earns ${wage} an hour. Last week {name} worked {hours} hours, and {extra} hours of overtime that are "
        f"paid {draw.choice(('one and a half times', 'twice'))} as much. How much did {name} earn last week?"
    )


def _growth(draw: random.Random) -> str:
    things = draw.choice(_THINGS)
    start, factor, days = draw.randint(3, 40), draw.choice(("doubles", "triples")), draw.randint(2, 4)
    return (
        f"A shop sells {start} {things} on Monday. Every day after that the number it sells {factor}. How many "
        f"{things} does it sell in the first {days} days?"
    )


def _fractions(draw: random.Random) -> str:
    name, friend = _two(draw)
    things, part = draw.choice(_THINGS), draw.choice((2, 3, 4, 5))
    total = part * draw.randint(6, 30)
    return (
        f"{name} collected {total} {things}. {name} gave 1/{part} of them to {friend} and lost "
        f"{draw.randint(1, 5)}. How many {things} are left?"
    )


def _rectangle(draw: random.Random) -> str:
    length, width = draw.randint(5, 40), draw.randint(3, 20)
    if draw.random() < 0.5:
        return f"A garden is {length} meters long and {width} meters wide. A fence costs ${draw.randint(3, 20)} per meter. What does it cost to fence the garden?"  # noqa: E501
    return f"A floor is {length} feet long and {width} feet wide. One tile covers {draw.choice((1, 2, 4))} square feet. How many tiles are needed?"  # noqa: E501


def _percent(draw: random.Random) -> str:
    name, _ = _two(draw)
    price, percent = draw.randint(4, 60) * 5, draw.choice((5, 10, 15, 20, 25, 30, 40, 50))
    if draw.random() < 0.5:
        return (
            f"A coat costs ${price}. In a sale it is {percent}% cheaper. How much does {name} pay for two such coats?"
        )
    return f"{name} puts ${price} in a bank that pays {percent}% a year. How much money is there after one year?"


def _mixed(draw: random.Random) -> str:
    name, friend = _two(draw)
    things = draw.choice(_THINGS)
    return (
        f"{name} has {draw.randint(5, 60)} more {things} than {friend}. {friend} has {draw.randint(5, 80)} {things}. "
        f"If {name} sells {draw.randint(2, 5)} boxes of {draw.randint(2, 6)} {things} each, how many are left?"
    )


def _ages(draw: random.Random) -> str:
    name, friend = _two(draw)
    return (
        f"{name} is {draw.randint(2, 4)} times as old as {friend}, who is {draw.randint(4, 20)} years old. How old "
        f"will {name} be in {draw.randint(2, 15)} years?"
    )


def _plain(draw: random.Random) -> str:
    numbers = [draw.randint(2, 200) for _ in range(draw.randint(2, 4))]
    expression = str(numbers[0])
    for number in numbers[1:]:
        expression += f" {draw.choice('+-*')} {number}"
    return draw.choice(("Calculate {}.", "What is {}?", "Work out {} and explain each step.")).format(expression)


def _rates(draw: random.Random) -> str:
    name, friend = _two(draw)
    return (
        f"{name} can paint a wall in {draw.randint(2, 6)} hours and {friend} in {draw.randint(3, 9)} hours. A machine "
        f"makes {draw.randint(3, 40)} parts a minute and runs {draw.randint(2, 12)} hours a day. How many parts does "
        f"it make while {name} paints one wall?"
    )
