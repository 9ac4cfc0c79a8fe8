"""Text of a small domain: what people say on the bridge of a harbour launch.

Orders to the helm, questions about depth and weather, calls to the harbour office; made of the templates and word lists below.
"""

from __future__ import annotations

import random
import re

DIGITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
TEENS = ["ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
TENS = ["twenty", "thirty", "forty", "fifty", "sixty"]

SLOTS: dict[str, list[str]] = {
    "place": [
        "the north pier", "the south pier", "the fish market", "gull island", "the old lighthouse", "stony bay",
        "the ferry landing", "heron point", "the fuel dock", "the swing bridge", "the yacht club", "the river mouth",
        "the boat yard", "the outer harbour", "the inner harbour", "the lifeboat station", "seal rock", "the sea wall",
    ],
    "mark": [
        "the red buoy", "the green buoy", "the yellow buoy", "the bell buoy", "the channel marker", "the sandbank",
        "the fairway", "the wreck", "the breakwater", "the mooring", "the fishing nets", "the tanker", "the tug",
    ],
    "side": ["port", "starboard"],
    "where": [
        "ahead", "astern", "on the port side", "on the starboard side", "off the port bow", "off the starboard bow",
    ],
    "gear": [
        "the radar", "the searchlight", "the bilge pump", "the navigation lights", "the deck lights", "the autopilot",
        "the depth sounder", "the cabin heater", "the windscreen wipers", "the fog horn", "the radio", "the generator",
    ],
    "engine": ["the port engine", "the starboard engine", "the main engine", "both engines", "the bow thruster"],
    "part": ["the anchor", "the bow line", "the stern line", "the fenders", "the gangway", "the life raft", "the flag"],
    "crew": [
        "the mate", "the cook", "the engineer", "the deck hand", "the captain", "the harbour master", "the coast guard",
        "the pilot", "the lock keeper", "the night watch",
    ],
    "gauge": [
        "the oil pressure", "the fuel level", "the water temperature", "the battery voltage", "the engine speed",
        "the wind speed", "the tide", "the barometer", "the depth", "the current",
    ],
    "cargo": [
        "the mail", "the crates", "the ice", "fresh water", "the oysters", "the passengers", "the spare rope", "diesel",
    ],
    "day": [
        "today", "tonight", "tomorrow", "tomorrow morning", "this afternoon", "this evening", "on friday", "on monday",
    ],
    "weather": ["fog", "rain", "a gale", "strong wind", "heavy swell", "calm water", "thunder", "sleet"],
    "speed": ["dead slow", "half speed", "full speed", "cruising speed", "slow ahead", "slow astern"],
}  # fmt: skip

TEMPLATES = """
come {degrees} degrees to {side}
turn {degrees} degrees to {side}
steer {heading}
steer {heading} and keep {speed}
hold the course at {heading}
change course to {heading} after {mark}
set a course for {place}
set a course for {place} and go {speed}
take us to {place}
take us back to {place} before dark
go to {speed} past {place}
reduce speed to {number} knots
reduce speed to {number} knots near {place}
bring her up to {number} knots
keep {mark} {where}
keep well clear of {mark}
pass {mark} on the {side} side
leave {mark} to {side} and head for {place}
go round {mark} and then make for {place}
stop {engine}
start {engine}
start {engine} and cast off
put {engine} in reverse
switch on {gear}
switch off {gear}
turn {gear} on when we reach {place}
turn off {gear} at {place}
is {gear} working
check {gear} before we leave {place}
check {gauge}
what is {gauge} now
read me {gauge} every {number} minutes
warn me when {gauge} drops
how deep is the water at {place}
how deep is the water near {mark}
how far is it to {place}
how long until we reach {place}
when do we reach {place}
when is high water {day}
when is low water at {place}
is there {weather} at {place}
will there be {weather} {day}
expect {weather} near {place} {day}
there is {weather} coming from {place}
lower {part}
raise {part}
make {part} ready
make {part} ready on the {side} side
drop the anchor off {place}
drop the anchor in {number} metres of water
let out {number} metres of chain
take in {part} and stow it
call {crew}
call {crew} on channel {number}
tell {crew} we will be {number} minutes late
tell {crew} to lower {part}
tell {crew} that we are leaving {place}
ask {crew} for a berth at {place}
ask {crew} about {gauge}
ask {crew} to check {engine}
where is {crew}
we need {cargo} at {place} {day}
pick up {cargo} at {place}
unload {cargo} at {place} {day}
load {cargo} and tell {crew}
there is a boat {where}
there is a kayak {where} of us
i can see {mark} {where}
do you see {mark} {where}
who is on watch {day}
wake me up in {number} minutes
wake {crew} at {clock}
we sail at {clock} {day}
the ferry leaves {place} at {clock}
be at {place} by {clock}
log our position
log our position every {number} minutes
log that we passed {mark} at {clock}
show {place} on the chart
show me {mark} on the radar
sound the horn {times}
sound the horn near {mark}
open the lock gate for us
""".strip().splitlines()

OPENINGS = ["", "", "", "", "", "please", "okay", "now", "helm", "captain says"]
CLOSINGS = ["", "", "", "", "", "", "please", "right away"]


def number(rng: random.Random) -> str:
    """A number from two to sixty-nine in words, small ones more often."""
    kind = rng.random()
    if kind < 0.5:
        return rng.choice(DIGITS[2:])
    if kind < 0.75:
        return rng.choice(TEENS)
    tens = rng.choice(TENS)
    return tens if rng.random() < 0.7 else f"{tens} {rng.choice(DIGITS[1:])}"


def clock(rng: random.Random) -> str:
    """A time of day: 'six o'clock', 'half past nine', 'quarter to eleven', 'seven thirty'."""
    hour = rng.choice([*DIGITS[1:], *TEENS[:3]])
    return rng.choice(["{} o'clock", "half past {}", "quarter past {}", "quarter to {}", "{} thirty"]).format(hour)


def expand(template: str, rng: random.Random) -> str:
    """Replaces each {slot} of a template by a random filling."""

    def fill(match: re.Match[str]) -> str:
        slot = match.group(1)
        if slot == "number":
            return number(rng)
        if slot == "clock":
            return clock(rng)
        if slot == "degrees":
            return rng.choice(["five", "ten", "fifteen", "twenty", "thirty", "forty five", "ninety"])
        if slot == "heading":
            return " ".join([rng.choice(DIGITS[:4]), rng.choice(DIGITS), rng.choice(["zero", "five"])])
        if slot == "times":
            return rng.choice(["once", "twice", "three times", "when we leave", "in the fog"])
        return rng.choice(SLOTS[slot])

    return re.sub(r"\{(\w+)\}", fill, template)


def sentence(rng: random.Random) -> str:
    """One sentence: an opening now and then, one template or (rarely) two joined, a closing now and then."""
    body = expand(rng.choice(TEMPLATES), rng)
    if rng.random() < 0.12:
        body += rng.choice([" and ", " then "]) + expand(rng.choice(TEMPLATES), rng)
    return " ".join(filter(None, [rng.choice(OPENINGS), body, rng.choice(CLOSINGS)]))


def harbour_text(count: int, seed: int, unused: list[str]) -> list[str]:
    """`count` different sentences, none of which equals or contains one of those that shall not be used."""
    rng = random.Random(seed)
    tests = [f" {text} " for text in unused]
    seen: dict[str, None] = {}
    while len(seen) < count:
        candidate = sentence(rng)
        if not any(test in f" {candidate} " for test in tests):
            seen[candidate] = None
    return list(seen)
