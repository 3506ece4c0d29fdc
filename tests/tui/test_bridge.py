"""Events on their way from the engine's thread to the screen."""

from __future__ import annotations

import asyncio
import threading

from rvchat.tui.bridge import Bridge, merged
from rvchat.types import Event, Prefill, ReasoningDelta, TextDelta


def test_neighbouring_pieces_of_one_text_become_one_event() -> None:
    events: list[Event] = [
        ReasoningDelta("a", "x"),
        ReasoningDelta("a", "y"),
        TextDelta("a", "1"),
        TextDelta("a", "2"),
        TextDelta("b", "3"),
        Prefill("b", 1, 2),
        TextDelta("b", "4"),
        TextDelta("b", "5"),
    ]
    assert merged(events) == [
        ReasoningDelta("a", "xy"),
        TextDelta("a", "12"),
        TextDelta("b", "3"),
        Prefill("b", 1, 2),
        TextDelta("b", "45"),
    ]
    assert merged([]) == []


async def test_everything_arrives_once_in_order_and_in_few_batches() -> None:
    batches: list[list[Event]] = []
    done = asyncio.Event()

    def deliver(events: list[Event]) -> None:
        batches.append(events)
        if isinstance(events[-1], Prefill):
            done.set()

    bridge = Bridge(deliver)
    bridge.put(TextDelta("a", "0,"))  # before there is a screen
    bridge.attach()
    assert batches == [[TextDelta("a", "0,")]]

    def produce() -> None:
        for number in range(1, 2000):
            bridge.put(TextDelta("a", f"{number},"))
        bridge.put(Prefill("a", 1, 1))

    thread = threading.Thread(target=produce)
    thread.start()
    await asyncio.wait_for(done.wait(), 20)
    thread.join()
    text = "".join(e.text for batch in batches for e in batch if isinstance(e, TextDelta))
    assert text == "".join(f"{n}," for n in range(2000))
    assert len(batches) < 100


async def test_after_detach_nothing_is_delivered() -> None:
    batches: list[list[Event]] = []
    bridge = Bridge(batches.append)
    bridge.attach()
    bridge.detach()
    bridge.put(TextDelta("a", "x"))
    bridge.flush()
    assert batches == []
    assert [bridge.rest(), bridge.rest()] == [[TextDelta("a", "x")], []]


async def test_slow_screen_is_given_longer_pauses() -> None:
    loop = asyncio.get_running_loop()
    times: list[float] = []
    arrived = asyncio.Event()

    def deliver(events: list[Event]) -> None:
        times.append(loop.time())
        arrived.set()

    bridge = Bridge(deliver)
    bridge.attach()
    for _ in range(2):
        arrived.clear()
        bridge.put(TextDelta("a", "x"))
        await asyncio.wait_for(arrived.wait(), 20)
        bridge.shown(0.06)
    assert times[1] - times[0] >= 0.29  # five times 0.06
