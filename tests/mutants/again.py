"""Bugs in what is tried again: without a pause, without an end, or what must not be."""

from tests.mutants.mutant import Mutant

FASTSTREAM = "tests/scenario/test_faststream_misbehaviour.py::"


def _faststream_loose_is_delivered_again():
    from postroom.integrations import faststream, faststream_runs

    class Forgiving(faststream_runs.Failures):
        async def judge(self, run, message, error):
            if not isinstance(error, faststream_runs.LooseError):
                await super().judge(run, message, error)

    faststream.Failures = Forgiving


def _faststream_without_an_end():
    from postroom.integrations import faststream_runs

    faststream_runs._MOST_TRIES = 10**9


def _faststream_without_a_pause():
    from postroom.integrations import faststream_runs

    faststream_runs.FIRST_PAUSE = 0.0


AGAIN_MUTANTS = {
    "fs-loose-is-delivered-again": Mutant(
        "F3", "a subscriber that rolled back and committed is run again",
        _faststream_loose_is_delivered_again,
        tests=(f"{FASTSTREAM}test_on_rabbitmq_what_cannot_be_done_is_dead_lettered",),
    ),
    "fs-without-an-end": Mutant(
        "F2", "a subscriber that swallows errors is run for ever", _faststream_without_an_end,
        tests=(f"{FASTSTREAM}test_on_rabbitmq_what_cannot_be_done_is_dead_lettered",),
    ),
    "fs-without-a-pause": Mutant(
        "F2", "a message that fails is nacked at once", _faststream_without_a_pause,
        tests=(f"{FASTSTREAM}test_a_subscriber_that_always_fails_is_tried_with_growing_pauses",),
    ),
}  # fmt: skip
