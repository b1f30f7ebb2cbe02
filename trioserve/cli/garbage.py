"""Python's garbage collector, which a program may set up and a library may not.

Owns: freeze_loaded. Must not know: what was loaded.
"""

from __future__ import annotations

import gc


def freeze_loaded() -> None:
    """Let the garbage collector leave alone whatever there is now. Call it when a model is loaded.

    Now and then the collector looks at every object of the process, while nothing else runs. Of a server nearly all
    objects are those of modules and of the tokenizer, 200,000 of them, which live as long as the process: for all
    streams that was a pause of 150 to 350 ms. What is made later, for requests, is still looked at.

    There is no full collection before, which would take as long: what little garbage there is stays.
    """
    gc.freeze()
