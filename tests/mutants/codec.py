"""Bugs of a first encoder: what it writes otherwise than it was given, or cannot end."""

from tests.mutants.mutant import Mutant

CODEC = "tests/unit/test_codec.py::"
MONGO = "tests/unit/test_mongo_parts.py::test_an_instant_at_the_end_of_time"


def _structs_by_their_attributes():
    from postroom.model import codec

    codec._struct = lambda value: {name: getattr(value, name) for name in value.__struct_fields__}


def _last_of_a_name_wins():
    from postroom.model import codec

    def fields(value, path, depth, room):
        return {
            codec._field_name(name, path): codec._plain(item, f"{path}.{name}", depth + 1, room)
            for name, item in value.items()
        }

    codec._fields = fields


def _asterisks_are_sent():
    from postroom.model import codec

    codec._refuse_hidden = lambda dumped, inside, path, depth: None


def _numbers_convert_themselves():
    from postroom.model import codec

    unwrap = codec._unwrap

    def careless(value, path):
        if isinstance(value, (int, float)):
            return int(value) if isinstance(value, int) else float(value)
        return unwrap(value, path)

    codec._unwrap = careless


def _room_without_end():
    from postroom.model import codec

    codec._Room.take = lambda self, size: None


def _instants_beyond_the_last():
    from bson.datetime_ms import DatetimeMS

    from postroom.transactions.mongo import documents

    documents._ceil = lambda microseconds: DatetimeMS(-(-microseconds // 1000))


CODEC_MUTANTS = {
    "codec-struct-attributes": Mutant(
        "W2", "a msgspec struct is written without its tag and its renamed fields",
        _structs_by_their_attributes,
        tests=(f"{CODEC}test_a_tagged_union_can_be_read_by_its_consumer",),
    ),
    "codec-name-twice": Mutant(
        "W2", "of two fields with one name the last is written", _last_of_a_name_wins,
        tests=(f"{CODEC}test_a_name_that_comes_twice_is_refused",),
    ),
    "codec-asterisks": Mutant(
        "W2", "a secret of a pydantic model is sent as asterisks", _asterisks_are_sent,
        tests=(f"{CODEC}test_what_pydantic_would_hide_is_refused",),
    ),
    "codec-number-converted": Mutant(
        "W2", "a subclass of int is written as what it converts itself to",
        _numbers_convert_themselves, tests=(f"{CODEC}test_numbers_keep_their_own_value",),
    ),
    "codec-unfolds": Mutant(
        "W2", "a payload with shared parts is written before its size is known",
        _room_without_end,
        tests=(f"{CODEC}test_a_payload_that_unfolds_is_refused_while_it_is_walked[payload4]",),
    ),
    "mongo-after-the-last-day": Mutant(
        "W2", "an instant is stored that drivers of MongoDB cannot read",
        _instants_beyond_the_last,
        tests=(f"{MONGO}_is_stored_and_can_be_read_by_every_driver",),
    ),
}  # fmt: skip
