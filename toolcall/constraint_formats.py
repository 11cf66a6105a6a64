"""``format`` of strings that are written without quotes, as regexes; each allows a part of what the format allows.

In JSON the compiler knows them itself: these are all that it knows, so that others are reported alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_DATE = r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOST = rf"{_LABEL}(\.{_LABEL}){{0,3}}"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"

RAW_FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "date": _DATE,
        "time": _TIME,
        "date-time": f"{_DATE}T{_TIME}",
        "duration": r"P([0-9]{1,9}W|[0-9]{1,9}D(T[0-9]{1,9}H)?|T[0-9]{1,9}[HMS])",
        "email": rf"[A-Za-z0-9_+-]{{1,32}}(\.[A-Za-z0-9_+-]{{1,32}})?@{_HOST}",
        "hostname": _HOST,
        "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
        "ipv6": r"([0-9A-Fa-f]{1,4}:){7}[0-9A-Fa-f]{1,4}",
        "uuid": r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
        "uri": r"[A-Za-z][A-Za-z0-9+.-]{0,31}://[A-Za-z0-9._~:/?#@!$&'()*+,;=-]{1,2000}",
    }
)
