"""Formats of JSON Schema as regular expressions.

Owns: those that llguidance's own are too wide for. Must not know: schemas.
Each matches a subset of what RFC 3339 and RFC 1123 allow: what every validator takes. There is no year 0, no leap
second, and no letter is lower case where either could be.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LONGEST_HOSTNAME: Final = 253
"""Characters. The pattern can't count them over all labels."""

_DIVISIBLE_BY_4: Final = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR: Final = f"(?:[0-9]{{2}}{_DIVISIBLE_BY_4}|{_DIVISIBLE_BY_4}00)"
_YEAR: Final = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_DAY_OF_EVERY_YEAR: Final = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE: Final = f"(?:{_YEAR}-{_DAY_OF_EVERY_YEAR}|{_LEAP_YEAR}-02-29)"
_TIME: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL: Final = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"

FORMATS: Final[Mapping[str, str]] = {
    "date": f"^{_DATE}$",
    "time": f"^{_TIME}$",
    "date-time": f"^{_DATE}T{_TIME}$",
    "hostname": f"^{_LABEL}(?:\\.{_LABEL})*$",
}
