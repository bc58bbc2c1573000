/* What a relay of the lanes model has in memory, and its moves without the store. `r` is the relay. */

#define IDLE 0
#define SENDING 1
#define CLOSED 2   /* all outcomes are known; the key is busy until they are settled */

typedef Run { byte phase, todo, ok, bad; bool alone, lost }
typedef Relay {
    bool held, draining;
    byte token;
    byte park;         /* followers of a blocked key that were read */
    byte settling;     /* NOT, ASKED, LOCKED or UNSURE */
    Run key[2];
    Settlement s;
#ifdef CURSOR
    byte last;
#endif
}
Relay relay[2];

#define NOT 0
#define ASKED 1
#define LOCKED 2
#define UNSURE 3   /* the reply was lost: nobody knows whether it was committed */

#define HOLDS(r) (owner == r + 1 && token == relay[r].token)
#define BUSY(r, k) (relay[r].key[k].phase != IDLE)
#define BUSY_KEYS(r) ((BUSY(r, 0) -> KEY(0) : 0) | (BUSY(r, 1) -> KEY(1) : 0))
#define ON_THE_WAY(r, k) \
    (relay[r].key[k].lost -> 0 : relay[r].key[k].todo | relay[r].key[k].ok)

/* What a relay has in flight is sent again if it loses the lane: that is a fault's doing. */
inline excuse_those() {
    excuse[0] = excuse[0] + (those & 1);
    excuse[1] = excuse[1] + ((those >> 1) & 1);
    excuse[2] = excuse[2] + ((those >> 2) & 1);
#if N > 3
    excuse[3] = excuse[3] + ((those >> 3) & 1);
#endif
    those = 0
}

inline excuse_flight(who) {
    those = ON_THE_WAY(who, 0) | ON_THE_WAY(who, 1) | relay[who].s.done;
    excuse_those()
}

inline arrive(k) {
    one = LOWEST(relay[r].key[k].todo);
#ifdef G4
    assert((KEY(KEY_OF(one)) & BEFORE(one) & committed & ~(seen | dead | replayed)) == 0);
#endif
    if
    :: (seen & one) ->
#ifdef G3
        assert(excuse[NUMBER(one)] > 0);
#endif
        if
        :: excuse[NUMBER(one)] > 0 -> excuse[NUMBER(one)]--
        :: else
        fi
    :: else -> seen = seen | one
    fi;
    one = 0
}

inline clear_run(k) {
    relay[r].key[k].phase = IDLE;
    relay[r].key[k].todo = 0;
    relay[r].key[k].ok = 0;
    relay[r].key[k].bad = 0;
    relay[r].key[k].alone = false;
    relay[r].key[k].lost = false
}

/* -- what a relay does with its flight -------------------------------------------------------- */
inline forget_run(k) {
    if
    :: relay[r].key[k].phase == SENDING && !relay[r].key[k].alone ->
        relay[r].key[k].lost = true;  /* it goes on sending, but what comes of it no longer counts */
        relay[r].key[k].ok = 0;
        relay[r].key[k].bad = 0
    :: else -> clear_run(k)
    fi
}

inline lose() {
    if
    :: relay[r].held && HOLDS(r) -> excuse_flight(r)  /* ran out, and nobody has taken it yet */
    :: else
    fi;
    relay[r].held = false;
    relay[r].draining = false;
    relay[r].token = 0;
    relay[r].park = 0;
    relay[r].settling = NOT;
    clear(relay[r].s);
    forget_run(0);
    forget_run(1)
}

inline settled() {
    if
    :: (relay[r].s.keys & 1) -> clear_run(0)
    :: else
    fi;
    if
    :: (relay[r].s.keys & 2) -> clear_run(1)
    :: else
    fi;
    clear(relay[r].s);
    relay[r].settling = NOT;
    if
    :: limbo && limbo_owner == r + 1 -> limbo_open = false
    :: else
    fi
}

inline close(k) {
    if
    :: relay[r].key[k].todo == 0 && relay[r].key[k].lost -> clear_run(k)
    :: relay[r].key[k].todo == 0 && !relay[r].key[k].lost -> relay[r].key[k].phase = CLOSED
    :: else
    fi
}

#define NEXT(r, k) LOWEST(relay[r].key[k].todo)
#define MAY_SEND(r, k) (relay[r].key[k].phase == SENDING \
    && (!relay[r].key[k].alone || (relay[r].held && !relay[r].draining)))

inline confirmed(k) {
    arrive(k);
    if
    :: !relay[r].key[k].lost && relay[r].key[k].bad == 0 ->
        relay[r].key[k].ok = relay[r].key[k].ok | NEXT(r, k)
    :: else
    fi;
    relay[r].key[k].todo = relay[r].key[k].todo & ~NEXT(r, k);
    close(k)
}

/* The event is charged an attempt. Nothing of its key is sent after it. */
inline charged(k) {
    if
    :: relay[r].key[k].bad == 0 && !relay[r].key[k].lost -> relay[r].key[k].bad = NEXT(r, k)
    :: else
    fi;
#ifdef GO_ON
    relay[r].key[k].todo = relay[r].key[k].todo & ~NEXT(r, k);
#else
    relay[r].key[k].todo = 0;
#endif
    close(k)
}

/* No answer: the event becomes a suspect and is sent again, alone; if it was alone, it is charged. */
inline unanswered(k) {
#ifdef NO_SUSPECTS
    charged(k)
#else
    if
    :: relay[r].key[k].alone -> charged(k)
    :: relay[r].key[k].lost -> relay[r].key[k].todo = 0; close(k)
    :: else ->
        relay[r].key[k].alone = true;
        relay[r].key[k].todo = NEXT(r, k)
    fi
#endif
}

inline open_run(k) {
    if
    :: (ready & KEY(k) & ~BUSY_KEYS(r)) == 0
    :: else ->
        relay[r].key[k].todo = ready & KEY(k);
        if
        :: BLOCKED(k) ->
            relay[r].park = relay[r].park | (ready & FOLLOWERS(k));
            relay[r].key[k].todo = ready & KEY(k) & ~FOLLOWERS(k)
        :: else
        fi;
#ifdef CURSOR
        relay[r].key[k].todo = relay[r].key[k].todo & ~((1 << relay[r].last) - 1);
#endif
        if
        :: relay[r].key[k].todo -> relay[r].key[k].phase = SENDING
        :: else
        fi
    fi
}

inline collect_run(k) {
    relay[r].s.done = relay[r].s.done | relay[r].key[k].ok;
    relay[r].key[k].ok = 0;
    if
    :: relay[r].key[k].phase == CLOSED ->
        relay[r].s.keys = relay[r].s.keys | (1 << k);
        if
        :: (relay[r].key[k].bad & tried & MAY_BURY) ->
            relay[r].s.dead = relay[r].s.dead | relay[r].key[k].bad
        :: else -> relay[r].s.failed = relay[r].s.failed | relay[r].key[k].bad
        fi
    :: else
    fi
}

#define WANTS_SETTLE(r) (relay[r].park || relay[r].key[0].ok || relay[r].key[1].ok \
    || relay[r].key[0].phase == CLOSED || relay[r].key[1].phase == CLOSED)

inline into_limbo() {
    l.done = relay[r].s.done;
    l.failed = relay[r].s.failed;
    l.dead = relay[r].s.dead;
    l.park = relay[r].s.park;
    l.token = relay[r].s.token;
    limbo = true;
    limbo_open = true;
    limbo_owner = r + 1
}

inline give_lane() {
    owner = r + 1;
    token++;
    live = true;
    relay[r].token = token
}

#ifdef NO_READ_FENCE
#define MAY_READ(r) true
#else
#define MAY_READ(r) HOLDS(r)
#endif
#ifdef NO_DRAIN
#define DRAINED(r) true
#else
#define DRAINED(r) (!BUSY(r, 0) && !BUSY(r, 1))
#endif
#ifdef CURSOR
#define NEW(r) (ready & ~((1 << relay[r].last) - 1))
#else
#define NEW(r) ready
#endif
