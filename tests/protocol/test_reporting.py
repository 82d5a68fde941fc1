from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aep_relay.protocol.reporting import REPORTS, REPORTS_EACH, WINDOW_SECONDS, Reports


def test_the_first_lines_of_a_source_are_reported_and_then_their_number() -> None:
    reports = Reports()
    admitted = [reports.admit("a", 0.0) for _ in range(REPORTS_EACH + 5)]
    assert admitted == [True] * REPORTS_EACH + [False] * 5
    assert reports.admit("b", 1.0)
    assert reports.take(WINDOW_SECONDS / 2) is None
    assert reports.take(WINDOW_SECONDS) == (5, 1)
    assert reports.take(WINDOW_SECONDS) is None


def test_a_new_window_begins_with_the_line_that_comes_after_it() -> None:
    reports = Reports()
    for _ in range(REPORTS_EACH + 1):
        reports.admit("a", 0.0)
    assert not reports.admit("a", WINDOW_SECONDS - 0.1)
    assert reports.admit("a", WINDOW_SECONDS)
    assert reports.take() == (2, 1)


def test_many_sources_do_not_flood_the_log() -> None:
    reports = Reports()
    admitted = [reports.admit(str(number), 0.0) for number in range(REPORTS + 50)]
    assert sum(admitted) == REPORTS
    assert reports.take() == (50, 50)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 4), st.booleans()), max_size=200))
def test_each_line_is_reported_or_counted_once(lines: list[tuple[str, float, bool]]) -> None:
    reports, now, reported, counted = Reports(), 0.0, 0, 0
    for source, seconds, looks in lines:
        now += seconds
        reported += reports.admit(source, now)
        if looks and (found := reports.take(now)) is not None:
            counted += found.lines
    rest = reports.take()
    assert reported + counted + (rest.lines if rest else 0) == len(lines)
