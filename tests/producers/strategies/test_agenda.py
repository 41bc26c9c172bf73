"""The agenda of a pool against one that looks at every source."""

from floodmark.producers.strategies.pool_state import Agenda
from hypothesis import given
from hypothesis import strategies as st


class Source:
    def __init__(self, due_at):
        self.due_at = due_at


steps = st.lists(
    st.tuples(
        st.sampled_from(["join", "leave", "put off", "hurry", "attend", "attend", "attend"]),
        st.integers(0, 50),
        st.integers(0, 120),
    ),
    max_size=200,
)


@given(steps)
def test_those_that_are_due_are_found_and_no_others(steps):
    agenda, here, now = Agenda(), [], 0
    for what, number, amount in steps:
        chosen = here[number % len(here)] if here else None
        if what == "join":
            here.append(Source(now + amount))
            agenda.add(here[-1])
        elif what == "attend":
            now += 1 + amount
            due = agenda.due(now)
            assert len(due) == len(set(due))
            assert set(due) == {source for source in here if source.due_at <= now}
            for source in due[number:]:  # the others were too many in flight, and stay due
                source.due_at = now + 100
        elif chosen is not None and what == "leave":
            here.remove(chosen)
            agenda.remove(chosen)
            agenda.remove(Source(0))
        elif chosen is not None and what == "put off":  # it was used, and has sent its marks meanwhile
            chosen.due_at += amount
        elif what == "hurry":
            for source in here:
                source.due_at = min(source.due_at, now + amount)
            agenda.refresh()


def test_one_that_waits_is_not_looked_at_before_its_time():
    class Counted:
        looked = 0

        @property
        def due_at(self):
            self.looked += 1
            return 1_000

    agenda, sources = Agenda(), [Counted() for _ in range(100)]
    for source in sources:
        agenda.add(source)
    for now in range(0, 1_000, 100):
        assert agenda.due(now) == []
    assert sum(source.looked for source in sources) == 100, "as they were added"
    assert len(agenda.due(1_000)) == 100


def test_sources_that_come_and_go_leave_nothing_behind():
    agenda = Agenda()
    for _ in range(10_000):
        source = Source(10**9)
        agenda.add(source)
        agenda.remove(source)
    assert len(agenda._times) < 100  # noqa: SLF001  # what is kept must not grow
