"""Time that several things share: nothing is counted twice, and nothing is lost."""

from hypothesis import given
from hypothesis import strategies as st

from chomp.report.trace import Gap, Span, timeline

END = 30
TIMES = st.integers(-3, END + 3)


@st.composite
def spans(draw) -> list[Span]:
    """Spans on a few lines that nest, overlap and leave gaps, some outside of the time."""
    pairs = draw(st.lists(st.tuples(TIMES, TIMES), max_size=12))
    lines, ranks = st.sampled_from("abc"), st.integers(0, 2)
    return [Span(min(pair), max(pair), draw(lines), draw(ranks)) for pair in pairs]


def running(spans: list[Span], instant: int) -> list[int]:
    """Who runs from `instant` to the next: looked up anew, one line after the other."""
    innermost = []
    for line in "abc":
        there = [
            index
            for index, span in enumerate(spans)
            if span.line == line and span.start <= instant < span.end
        ]
        innermost += sorted(there, key=lambda i: (spans[i].start, -spans[i].end, i))[-1:]
    lowest = min((spans[index].rank for index in innermost), default=0)
    return [index for index in innermost if spans[index].rank == lowest]


@given(spans())
def test_every_instant_goes_in_equal_parts_to_what_runs_in_it(spans):
    own = [0.0] * len(spans)
    idle = set()
    for instant in range(END):
        there = running(spans, instant)
        for index in there:
            own[index] += 1 / len(there)
        if not there:
            idle.add(instant)

    found = timeline(spans, 0, END)

    assert all(abs(a - b) < 1e-9 for a, b in zip(found.own, own, strict=True))
    assert {i for gap in found.gaps for i in range(gap.start, gap.end)} == idle
    assert abs(found.busy + len(idle) - END) < 1e-9


@given(spans())
def test_a_gap_lies_between_two_spans_and_names_the_one_before(spans):
    found = timeline(spans, 0, END)
    assert all(a.end < b.start for a, b in zip(found.gaps, found.gaps[1:], strict=False))
    for gap in found.gaps:
        assert gap.start == (0 if gap.after is None else spans[gap.after].end)


def test_on_a_line_the_inner_span_has_the_time_and_the_outer_one_the_rest():
    found = timeline([Span(0, 10, "a"), Span(2, 5, "a"), Span(3, 4, "a")], 0, 12)
    assert found.own == [7, 2, 1]
    assert found.gaps == [Gap(10, 12, 0)]


def test_beside_a_lower_rank_a_higher_one_counts_nothing():
    spans = [Span(0, 6, "compute"), Span(4, 9, "copies", 2), Span(0, 10, "loop", 3)]
    assert timeline(spans, 0, 10).own == [6, 3, 1]


def test_nothing_at_all_is_one_gap():
    assert timeline([], 0, 5).gaps == [Gap(0, 5, None)]
