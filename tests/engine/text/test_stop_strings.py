from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.text.stop_strings import StopMatcher


def char_by_char(text: str, stops: list[str], start_after: str = "") -> tuple[str, str | None]:
    """The rule, written down as slowly as it can be."""
    begin = 0
    if start_after:
        at = text.find(start_after)
        if at < 0:
            return text, None
        begin = at + len(start_after)
    for end in range(begin + 1, len(text) + 1):
        found = [stop for stop in stops if stop and text[begin:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


def run(chunks: list[str], stops: list[str], **options) -> tuple[str, str | None, list[str]]:
    matcher = StopMatcher(stops, **options)
    parts = []
    for index, chunk in enumerate(chunks):
        parts.append(matcher.feed(chunk, index + 1))
    parts.append(matcher.flush())
    return "".join(parts), matcher.matched, parts


small = st.text(alphabet="ab<>", max_size=12)
stops = st.lists(st.text(alphabet="ab<>", min_size=1, max_size=4), max_size=3)


@given(st.lists(small, max_size=8), stops, st.text(alphabet="ab<>", max_size=3))
@example(["a", "aab"], ["aab"], "")
@example(["<a", ">b", "ab"], ["ab"], "<a>")
def test_chunks_make_no_difference(chunks, stops, start_after):
    text, matched, _ = run(chunks, stops, start_after=start_after)
    assert (text, matched) == char_by_char("".join(chunks), stops, start_after)


@given(st.lists(small, max_size=8), stops, st.text(alphabet="ab<>", min_size=1, max_size=3))
@example(["<", "a>b", "</a>", "b"], ["b"], "</a>")
@example(["b<", "a>b"], ["b"], "</a>")
@example([" ", "\n<a>b</a>", "b"], ["b"], "</a>")
def test_reasoning_that_may_be_opened_is_free_of_stops_where_it_is(chunks, stops, start_after):
    whole = "".join(chunks)
    opened = whole.lstrip().startswith("<a>")
    text, matched, _ = run(chunks, stops, start_after=start_after, opener="<a>")
    assert (text, matched) == char_by_char(whole, stops, start_after if opened else "")


def test_an_opener_is_not_waited_for_long():
    matcher = StopMatcher(["x"], start_after="</a>", opener="<a>")
    assert matcher.feed("<", 1) == ""
    assert matcher.feed("b", 2) == "<b"
    assert (matcher.feed("ax", 3), matcher.matched) == ("a", "x")


@given(
    st.text(alphabet="ab", max_size=20),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=5), min_size=1, max_size=3),
)
def test_no_part_of_a_stop_string_is_ever_printed_and_little_is_held(text, stops):
    matcher = StopMatcher(stops)
    printed = ""
    for index, char in enumerate(text):
        printed += matcher.feed(char, index + 1)
        expected, matched = char_by_char(text[: index + 1], stops)
        assert expected.startswith(printed)
        if matched is None:
            held = expected[len(printed) :]
            assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)
        else:
            assert printed == expected
            assert matcher.matched == matched
            assert matcher.feed("more", 99) == ""
            return


@pytest.mark.parametrize(
    ("options", "before", "text", "matched"),
    [
        ({}, "abx", "abx", "<|s|>"),
        ({}, "xy", "", "xy"),
        ({"start_after": "</a>"}, "x", "x", None),
        ({"start_after": "</a>"}, "x</a>x", "x</a>x", "<|s|>"),
        ({"start_after": "</a>", "opener": "<a>"}, "<", "<", "<|s|>"),
        ({"start_after": "</a>", "opener": "<a>"}, "", "", "<|s|>"),
        ({"start_after": "</a>", "opener": "<a>"}, "<a>", "<a>", None),
        ({"min_tokens": 1}, "x", "x", "<|s|>"),
        ({"min_tokens": 2}, "x", "x", None),
    ],
)
def test_a_stop_string_that_is_a_token_which_is_not_printed(options, before, text, matched):
    """The tail that was held back for another stop string is printed, as at the end of any text."""
    matcher = StopMatcher(["<|s|>", "xy"], **options)
    printed = matcher.feed(before, 1) + matcher.end_at("<|s|>", 2)
    assert (printed + matcher.flush(), matcher.matched) == (text, matched)
    if matched is not None:
        assert matcher.feed("more", 3) == matcher.end_at("<|s|>", 3) == ""


@pytest.mark.parametrize(
    ("chunks", "minimum", "text", "matched"),
    [
        (["a", "X", "b", "X", "c"], 0, "a", "X"),
        (["a", "X", "b", "X", "c"], 2, "aXb", "X"),
        (["a", "X", "b", "X", "c"], 4, "aXbXc", None),
        (["a", "X", "Y", "b"], 2, "aXYb", None),
    ],
)
def test_the_first_min_tokens_are_free_of_stop_strings(chunks, minimum, text, matched):
    assert run(chunks, ["X"], min_tokens=minimum)[:2] == (text, matched)


def test_a_stop_string_that_ends_after_min_tokens_counts_from_its_beginning():
    assert run(["a", "X", "Y", "b"], ["XY"], min_tokens=2)[:2] == ("a", "XY")


def test_without_stop_strings_text_passes_at_once():
    assert run(["a", "b"], []) == ("ab", None, ["a", "b", ""])


def test_long_hostile_stop_strings_stay_linear_enough():
    matcher = StopMatcher(["a" * 1023 + str(index) for index in range(16)])
    printed = sum(len(matcher.feed("a" * 4, index)) for index in range(5000))
    assert printed == 5000 * 4 - 1023
