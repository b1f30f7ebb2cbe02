"""Prompts of an exact number of tokens that no server has seen before.

Owns: the texts, and their tokens. Must not know: who is asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from trioserve.model.load import load_model

# at most so many are the words that begin the last copy
_BEGUN_TOKENS: Final = 16

Encode = Callable[[str], list[int]]

# plain prose that says nothing twice, so that nothing can be gained by looking in the prompt what comes next
_SENTENCES: Final = """
The ferry left the harbour an hour before sunrise, when the water was still grey and the gulls had not begun to cry.
Marta had packed two sweaters, a tin of biscuits and the letter that nobody else was meant to read.
On the upper deck a man with a brass telescope explained the positions of the lighthouses to his bored daughter.
Salt dries white on leather shoes, which is why fishermen here prefer rubber and never complain about the smell.
The island's only road circles a dead volcano and passes nine farms, a chapel and one petrol station.
Goats wander across it at all hours; drivers wait, switch off their engines and roll down the windows.
In the bakery they still weigh flour on an iron balance from the last century, since no scale has proved more honest.
Children learn to swim before they learn to write, and most of them keep a boat by the age of twelve.
Rain is collected in stone cisterns under the houses because wells turn brackish every summer.
An engineer from the mainland once proposed a pipeline, but his drawings were eaten by mice in the town hall.
The schoolteacher keeps bees behind the gymnasium and sells dark heather honey to pay for new maps.
Old Henrik repairs clocks, radios and, if he must, outboard motors, provided that he may do it in silence.
Every third winter a storm carries away the pier, so planks and bolts are stored in the church tower.
Geologists come in May to measure how far the western cliff has slipped toward the sea.
Their instruments look delicate, yet one of them survived a fall of forty metres into a bed of kelp.
From the summit you can count six other islands, or seven when the air is very clear.
Nobody lives on the smallest, although smoke was seen there twice during the war.
A cable laid in 1931 still hums if you press your ear against the hut where it comes ashore.
The doctor visits on Tuesdays, plays chess with the postmaster and prescribes walking for nearly everything.
Wild thyme grows between the stones, and shepherds claim that it flavours the milk by early June.
When the fog arrives it comes quickly, rolling over the breakwater like wool pulled from a basket.
Sailors ring bells then, three slow strokes followed by a pause, until someone on land answers with a horn.
The museum owns a whale's jaw, eleven harpoons, a piano without strings and a very good collection of buttons.
Tourists photograph the jaw; locals prefer the buttons, which their grandmothers sorted by colour and origin.
Potatoes are planted in seaweed, a custom that puzzles visitors and produces enormous harvests.
Last autumn the council voted on street lamps, and the stars won by a single ballot.
There is a library in the former customs house, open whenever its door is not locked.
Borrowers write their names in a ledger whose first entry, dated 1874, has never been returned.
Electricity comes from two turbines above the quarry, named after the sisters who paid for them.
On calm days everyone irons shirts early, bakes late and speaks politely about the weather.
Marta found her aunt's cottage at the end of a lane lined with rusted anchors.
Inside, the kettle was warm, a cat slept on the ledger of unpaid bills and somebody had swept the floor.
She opened the shutters one by one and let the afternoon settle on the furniture.
Beneath the stairs stood a trunk with a lock shaped like a sleeping fox.
None of the keys on the ring would turn it, so she went to ask the clockmaker.
He listened, nodded, took a bent needle out of his hat and said that foxes wake only for music.
That evening they carried the trunk to the museum and set it down beside the broken piano.
What it contained was not gold, as the rumours had promised, but ninety rolls of perforated paper.
Each bore the name of a ship, the year of its launch and a melody in a minor key.
By midnight half the town stood in the street, humming along without knowing the words.
""".strip().splitlines()


def encoder_of(model: Path) -> Encode:
    """Text to token ids, as the model has them."""
    loaded = load_model(model)
    loaded.weights.close()
    return lambda text: list(loaded.tokenizer.encode(text, add_special=False))


def fresh_prompt(encode: Encode, seed: int, tokens: int) -> list[int]:
    """``tokens`` token ids of prose; prompts of different seeds are different from their first words on."""
    chosen = random.Random(seed)
    text = f"Chapter {seed}. "
    while True:
        text += " ".join(chosen.sample(_SENTENCES, len(_SENTENCES)))
        ids = encode(text)
        if len(ids) >= tokens:
            return ids[:tokens]
        text += " "


def repeating_prompt(encode: Encode, seed: int, passage_tokens: int) -> tuple[list[int], str]:
    """A passage of about so many tokens, twice and begun a third time; and the passage from there on.

    A model that is asked greedily goes on copying to the end of the passage, as an answer does that quotes or edits
    its prompt.
    """
    chosen = random.Random(seed).sample(_SENTENCES, len(_SENTENCES))
    passage = f"Chapter {seed}."
    for sentence in chosen:
        passage += f" {sentence}"
        # with some more than that, since its first words are the prompt's
        if len(encode(passage)) >= passage_tokens + _BEGUN_TOKENS:
            break
    opening = passage.split(" ", 6)
    begun = " ".join(opening[:6])
    return encode(f"{passage}\n\n{passage}\n\n{begun}"), f" {opening[6]}"
