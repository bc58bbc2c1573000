/* The lanes protocol: two relays, one lane of one stream, two keys.
 *
 * Every `d_step` is one step that the real code takes without anybody in between: one transaction
 * of the store, or one turn of a relay between two awaits. Sets of events are bit masks; bit n is
 * the event with seq n.
 *
 * Given by the runner: N (events), KEYS (mask of the events of key 1; the others belong to key 0),
 * how many faults of each kind may happen, which promises are asserted (G2, G3, G4, G5, G7), and
 * NO_... / other switches that take a mechanism out.
 */

#include "store.pml"
#include "flight.pml"

proctype Relaying(bit r) {
end:
    do
    /* own: take, renew, notice a loss, hand over */
    :: d_step { !relay[r].held && (owner == 0 || !live) && UNLOCKED ->
        if
        :: relay[1 - r].held && HOLDS(1 - r) -> excuse_flight(1 - r)
        :: else
        fi;
        give_lane();
        relay[r].held = true;
#ifdef CURSOR
        relay[r].last = 0;
#endif
        advance_if_over(0);  /* mend */
        advance_if_over(1) }
    :: d_step { relay[r].held && HOLDS(r) && !live && UNLOCKED -> live = true }
    :: d_step { relay[r].held && !HOLDS(r) && relay[r].settling == NOT -> lose() }
    :: d_step { handovers && relay[r].held && !relay[r].draining ->
        handovers--; relay[r].draining = true }
    :: d_step { relay[r].draining && DRAINED(r) && relay[r].settling == NOT && UNLOCKED ->
        if
        :: HOLDS(r) -> owner = 0; live = false
        :: else
        fi;
        relay[r].held = false; relay[r].draining = false; relay[r].token = 0; relay[r].park = 0 }

    /* bring back what has waited long enough */
    :: d_step { relay[r].held && (waiting & ~stuck & 1) -> due(1) }
    :: d_step { relay[r].held && (waiting & ~stuck & 2) -> due(2) }
    :: d_step { relay[r].held && (waiting & ~stuck & 4) -> due(4) }
#if N > 3
    :: d_step { relay[r].held && (waiting & ~stuck & 8) -> due(8) }
#endif

    /* read */
    :: d_step { relay[r].held && !relay[r].draining && relay[r].settling == NOT && MAY_READ(r) &&
                (NEW(r) & ~BUSY_KEYS(r) & ~relay[r].park) ->
        open_run(0);
        open_run(1);
#ifdef CURSOR
        relay[r].last = (ready & 8 -> 4 : (ready & 4 -> 3 : (ready & 2 -> 2 : 1)));
#endif
        skip }
#ifdef NO_EXCLUDE
    :: d_step { relay[r].held && relay[r].settling == NOT && MAY_READ(r) && BUSY(r, 0) ->
        relay[r].key[0].todo = relay[r].key[0].todo | (ready & KEY(0));
        relay[r].key[0].phase = SENDING }
#endif

    /* publish: the next event of a key */
    :: d_step { MAY_SEND(r, 0) && !(NEXT(r, 0) & (POISON)) -> confirmed(0) }
    :: d_step { MAY_SEND(r, 1) && !(NEXT(r, 1) & (POISON)) -> confirmed(1) }
    :: d_step { MAY_SEND(r, 0) && failures && !(NEXT(r, 0) & (POISON)) -> failures--; charged(0) }
    :: d_step { MAY_SEND(r, 1) && failures && !(NEXT(r, 1) & (POISON)) -> failures--; charged(1) }
    :: d_step { MAY_SEND(r, 0) && unknowns && !(NEXT(r, 0) & (POISON)) -> unknowns--; unanswered(0) }
    :: d_step { MAY_SEND(r, 0) && unknowns && !(NEXT(r, 0) & (POISON)) -> unknowns--;
        those = NEXT(r, 0); excuse_those(); arrive(0); unanswered(0) }
    :: d_step { MAY_SEND(r, 1) && unknowns && !(NEXT(r, 1) & (POISON)) -> unknowns--; unanswered(1) }
    :: d_step { MAY_SEND(r, 1) && unknowns && !(NEXT(r, 1) & (POISON)) -> unknowns--;
        those = NEXT(r, 1); excuse_those(); arrive(1); unanswered(1) }
    :: d_step { relay[r].key[0].alone && !MAY_SEND(r, 0) && relay[r].key[0].phase == SENDING ->
        relay[r].key[0].todo = 0; close(0) }
    :: d_step { relay[r].key[1].alone && !MAY_SEND(r, 1) && relay[r].key[1].phase == SENDING ->
        relay[r].key[1].todo = 0; close(1) }
#if POISON
    /* The poison (of key 1) breaks the channel: what is in flight beside it has no answer, either. */
    :: d_step { MAY_SEND(r, 1) && (NEXT(r, 1) & (POISON)) ->
        if
        :: !relay[r].key[1].alone && MAY_SEND(r, 0) && !relay[r].key[0].alone -> unanswered(0)
        :: else
        fi;
        unanswered(1) }
#endif

    /* settle: ask, pass the fence, commit */
    :: d_step { relay[r].held && relay[r].settling == NOT && WANTS_SETTLE(r) ->
        collect_run(0);
        collect_run(1);
#ifdef NO_CONFIRM
        relay[r].s.done = relay[r].s.done | relay[r].key[0].todo | relay[r].key[1].todo;
#endif
        relay[r].s.park = relay[r].park;
        relay[r].park = 0;
        relay[r].s.token = relay[r].token;
        relay[r].settling = ASKED }
    :: d_step { relay[r].settling == ASKED && UNLOCKED && PASSES(r + 1, relay[r].s) ->
#ifdef G5
        assert(owner == r + 1 && token == relay[r].s.token && live);
#endif
        lock = r + 1;
        relay[r].settling = LOCKED }
    :: d_step { relay[r].settling == ASKED && UNLOCKED && !PASSES(r + 1, relay[r].s) -> lose() }
    :: d_step { relay[r].settling == LOCKED ->
#ifdef G5
        assert(owner == r + 1 && token == relay[r].s.token);
#endif
        apply(relay[r].s);
        lock = 0;
        settled() }

    /* its reply is lost: committed; never to be committed; perhaps committed later */
    :: d_step { losses && relay[r].settling == LOCKED -> losses--;
        apply(relay[r].s);
        lock = 0;
        relay[r].settling = UNSURE }
    :: d_step { losses && relay[r].settling == ASKED -> losses--; relay[r].settling = UNSURE }
    :: d_step { losses && !limbo && relay[r].settling == ASKED -> losses--;
        into_limbo();
        relay[r].settling = UNSURE }
#ifdef NO_RETAKE
    :: d_step { relay[r].settling == UNSURE -> relay[r].settling = ASKED }
#else
#ifdef PUBLISH_AGAIN
    :: d_step { relay[r].settling == UNSURE -> settled() }
#else
    :: d_step { relay[r].settling == UNSURE && UNLOCKED && HOLDS(r) ->
        give_lane();
        relay[r].s.token = token;
        relay[r].settling = ASKED }
    :: d_step { relay[r].settling == UNSURE && !HOLDS(r) -> lose() }
#endif
#endif

    /* die, and begin again with nothing in memory; its settle goes with it, or is carried out */
    :: d_step { crashes && relay[r].held && relay[r].settling != LOCKED -> crashes--;
        lose(); clear_run(0); clear_run(1) }
    :: d_step { crashes && relay[r].settling == ASKED && !limbo -> crashes--;
        into_limbo(); lose(); clear_run(0); clear_run(1) }
    :: d_step { crashes && relay[r].settling == LOCKED -> crashes--;
        lock = 0; lose(); clear_run(0); clear_run(1) }
    :: d_step { crashes && relay[r].settling == LOCKED -> crashes--;
        apply(relay[r].s); lock = 0; lose(); clear_run(0); clear_run(1) }
    od
}

/* Writers of one key are coordinated: they commit in the order of seq. Those of two keys are not. */
#ifdef UNCOORDINATED
#define MAY_COMMIT(b) !(committed & (b))
#else
#define MAY_COMMIT(b) (!(committed & (b)) && !(KEY(KEY_OF(b)) & BEFORE(b) & ~committed))
#endif

proctype Writing() {
end:
    do
    :: d_step { MAY_COMMIT(1) -> committed = committed | 1; ready = ready | 1 }
    :: d_step { MAY_COMMIT(2) -> committed = committed | 2; ready = ready | 2 }
    :: d_step { MAY_COMMIT(4) -> committed = committed | 4; ready = ready | 4 }
#if N > 3
    :: d_step { MAY_COMMIT(8) -> committed = committed | 8; ready = ready | 8 }
#endif
    od
}

#define OWNED_BY_A_LIVING_ONE ((owner == 1 && relay[0].held && HOLDS(0)) \
    || (owner == 2 && relay[1].held && HOLDS(1)))

proctype Serving() {
end:
    do
    /* Time passes. A lease may run out at any moment; one that nobody renews does. */
    :: d_step { live && !OWNED_BY_A_LIVING_ONE -> live = false }
    :: d_step { live && OWNED_BY_A_LIVING_ONE && expiries -> expiries--; live = false }
    /* A settle in limbo is carried out, or never. */
    :: d_step { limbo && UNLOCKED && PASSES(limbo_owner, l) ->
#ifdef G5
        assert(owner == limbo_owner && token == l.token && live && limbo_open);
#endif
        apply(l);
        limbo = false; limbo_open = false; limbo_owner = 0; clear(l) }
    :: d_step { limbo -> limbo = false; limbo_open = false; limbo_owner = 0; clear(l) }
    od
}

/* A person sends a dead letter again: the lane is taken from its owner in the same transaction. */
proctype Operating() {
end:
    do
    :: d_step { replays && dead && UNLOCKED -> replays--;
        if
        :: relay[0].held && HOLDS(0) -> excuse_flight(0)
        :: else
        fi;
        if
        :: relay[1].held && HOLDS(1) -> excuse_flight(1)
        :: else
        fi;
        token++;
        owner = 0;
        live = false;
        replayed = replayed | LOWEST(dead);
        ready = ready | LOWEST(dead);
        tried = tried & ~LOWEST(dead);
        dead = dead & ~LOWEST(dead) }
    od
}

/* Nothing can happen any more: every event must have come to its end. */
proctype Ending() {
end:
    timeout;
#ifdef G2
    assert(committed == ALL && (ALL & ~(done | dead)) == 0 && (ALL & ~(seen | dead)) == 0);
#endif
#ifdef G7
#ifdef BLOCK_POLICY
    assert((ALL & ~(done | waiting | parked)) == 0 && waiting == (POISON));
    assert((KEY(0) & ~done) == 0);
#else
    assert(dead == (POISON) && (ALL & ~(POISON) & ~(done & seen)) == 0);
#endif
#endif
    skip
}

init { atomic { run Relaying(0); run Relaying(1); run Writing(); run Serving(); run Operating(); run Ending() } }
