"""Bugs in the bounds of searches, in what an index finds, and in stories."""

from tests.mutants.mutant import Mutant

LIST = "tests/cli/test_list.py::"
KEY = "tests/cli/test_key.py::"
TREE = "tests/unit/test_story_tree.py::"
MEMORY = "tests/contract/test_store_memory.py::TestMemoryStore::"
PLAN = "tests/unit/test_sqlite_plans.py::test_a_statement_walks_its_index"


def _unbounded_scan():
    from postroom.admin.bounded_search import BoundedSearch
    from postroom.search import Reach

    bounded = BoundedSearch._bounded

    async def all_of_them(self, store):
        found = await bounded(self, store)
        self.reach = Reach(0, 0)
        return None if found is None else found._replace(until_seq=None)

    BoundedSearch._bounded = all_of_them


def _no_window():
    from postroom.admin.bounded_search import BoundedSearch

    async def as_it_is(_self, _store, wanted):
        return wanted

    BoundedSearch._in_window = as_it_is


def _no_margin():
    from postroom import search
    from postroom.stores.memory import search as memory

    search.OUT_OF_ORDER_US = memory.OUT_OF_ORDER_US = 0


def _no_refusal():
    from postroom import search
    from postroom.stores.memory import lookup

    walk_by = search.walk_by
    lookup.walk_by = lambda wanted, indexes: walk_by(wanted, indexes, bounded=True)


def _another_index():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    name = "find_by_correlation_id"
    assert "INDEXED BY postroom_outbox_correlation" in queries[name]
    queries[name] = queries[name].replace("INDEXED BY postroom_outbox_correlation", "NOT INDEXED")


def _head_in_the_window():
    from postroom.cli import key

    sequence = key._sequence

    async def within(store, name, rows, *, is_whole):
        found = await sequence(store, name, rows, is_whole=is_whole)
        there = {one.seq for one in rows}
        return found._replace(waiting=tuple(one for one in found.waiting if one.seq in there))

    key._sequence = within


def _cycles_are_lost():
    from postroom.admin.story_tree import Story

    Story._find_roots = lambda self: [n for n in self.nodes.values() if n.cause is None]


def _all_children():
    from postroom.admin.story_tree import Story

    walk = Story.walk
    Story.walk = lambda self, _children: walk(self, 1_000_000)


def _any_of_several():
    from postroom.cli import selection, story

    selection.only_one = story.only_one = lambda _given, found: found[0] if found else None


def _oldest_first():
    from postroom.stores.sqlite.statements import load_queries

    queries = load_queries("postroom_")
    assert "DESC" in queries["find_newest"]
    queries["find_newest"] = queries["find"]


def _plain_labels():
    from postroom.admin import story_tree

    story_tree._safe = lambda text: text


SEARCH_MUTANTS = {
    "scan-unbounded": Mutant(
        "S1.9", "a search without matches reads every event", _unbounded_scan,
        tests=(f"{LIST}test_a_search_without_matches_stops_at_its_limit_and_says_how_to_go_on",),
    ),
    "scan-without-window": Mutant(
        "S1.9", "a time window is looked for from the first event on", _no_window,
        tests=(f"{LIST}test_a_window_begins_where_its_time_was",),
    ),
    "window-without-margin": Mutant(
        "S1.9", "a window begins exactly at its time, and events written out of order are missed",
        _no_margin, tests=(f"{MEMORY}test_a_time_window_begins_at_a_position",),
    ),
    "correlation-without-refusal": Mutant(
        "D1", "without an index the events of a correlation id are looked for in all events",
        _no_refusal, tests=(f"{MEMORY}test_events_of_a_correlation_or_causation_id",),
    ),
    "correlation-without-index": Mutant(
        "D1", "the index of correlation ids is not used", _another_index, tests=(PLAN,),
    ),
    "key-without-its-head": Mutant(
        "B1", "the head of a key is looked for among its newest events only", _head_in_the_window,
        tests=(f"{KEY}test_the_head_of_a_long_sequence_is_found_within_the_bound",),
    ),
    "story-loses-cycles": Mutant(
        "S1.9", "events that cause each other are not in the story", _cycles_are_lost,
        tests=(f"{TREE}test_a_cycle_of_causes_ends",),
    ),
    "story-shows-all-children": Mutant(
        "S1.9", "a story prints every one of thousands of children", _all_children,
        tests=(f"{TREE}test_many_children_are_counted_and_left_out",),
    ),
    "beginning-of-several-ids": Mutant(
        "S1.9", "the beginning of several ids is taken for the first of them", _any_of_several,
        tests=("tests/cli/test_beginnings.py",),
    ),
    "newest-are-the-oldest": Mutant(
        "S1.9", "a list of the newest events begins with the oldest", _oldest_first,
        tests=(f"{LIST}test_the_newest_first_and_their_pages",),
    ),
    "story-draws-any-text": Mutant(
        "F1", "text of an event ends its label in a chart", _plain_labels,
        tests=(f"{TREE}test_hostile_text_stays_in_its_place",),
    ),
}  # fmt: skip
