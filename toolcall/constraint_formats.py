"""``format`` of strings as regexes; each allows a part of what the format allows, and, but for oddities, all of it.

In JSON the compiler knows these formats itself; where it allows more than validators do, ours are used there too.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
_YEAR = "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
_DAY = "((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)"
_DATE = f"({_YEAR}-{_DAY}|{_LEAP}-02-29)"
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_SHORT_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,26}[A-Za-z0-9])?"
_HOST = rf"({_LABEL}(\.{_LABEL}){{0,2}}|{_SHORT_LABEL}(\.{_SHORT_LABEL}){{0,7}})"
_ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
_LOCAL = rf"({_ATOM}{{1,64}}|{_ATOM}{{1,31}}\.{_ATOM}{{1,31}}|{_ATOM}{{1,15}}(\.{_ATOM}{{1,15}}){{0,3}})"
_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_SPAN = r"([0-9]{1,9}D|[0-9]{1,9}M([0-9]{1,9}D)?|[0-9]{1,9}Y([0-9]{1,9}M([0-9]{1,9}D)?)?)"
_CLOCK = r"T([0-9]{1,9}S|[0-9]{1,9}M([0-9]{1,9}S)?|[0-9]{1,9}H([0-9]{1,9}M([0-9]{1,9}S)?)?)"
_GROUP = "[0-9A-Fa-f]{1,4}"
_SHORTENED = "|".join(f"({_GROUP}:){{1,{left}}}(:{_GROUP}){{1,{7 - left}}}" for left in range(1, 7))
_IPV6 = f"(({_GROUP}:){{7}}{_GROUP}|({_GROUP}:){{1,7}}:|:((:{_GROUP}){{1,7}}|:)|{_SHORTENED})"
_PCHAR = r"([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_NAME = r"([A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*"
_USER = _NAME.replace("=-]", "=:-]")
_PATH = f"(//({_USER}@)?{_NAME}(:[0-9]{{1,5}})?(/{_PCHAR}*)*|/?{_PCHAR}+(/{_PCHAR}*)*)"

EXACT_FORMATS: Mapping[str, str] = MappingProxyType(
    {
        "time": _TIME,
        "date": _DATE,
        "date-time": f"{_DATE}T{_TIME}",
        "email": f"{_LOCAL}@{_HOST}",
        "hostname": _HOST,
    }
)
"""Formats whose strings the compiler would also write otherwise: with a sixtieth second, a leap day every year, longer
than allowed."""
RAW_FORMATS: Mapping[str, str] = MappingProxyType(
    {
        **EXACT_FORMATS,
        "duration": f"P([0-9]{{1,9}}W|{_SPAN}({_CLOCK})?|{_CLOCK})",
        "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
        "ipv6": _IPV6,
        "uuid": r"[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}",
        "uri": rf"[A-Za-z][A-Za-z0-9+.-]*:{_PATH}(\?({_PCHAR}|[/?])*)?(#({_PCHAR}|[/?])*)?",
    }
)
"""For strings without quotes. All that the compiler knows, so that others are reported alike."""
