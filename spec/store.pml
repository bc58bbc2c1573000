/* The store of the lanes model: events in their stages, blocks, the lease, and what a settle writes.
 *
 * Sets of events are bit masks; bit n is the event with seq n.
 */

#ifndef EXPIRIES
#define EXPIRIES 0  /* leases that run out while their owner lives */
#endif
#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef HANDOVERS
#define HANDOVERS 0
#endif
#ifndef FAILURES
#define FAILURES 0  /* the destination says no to an event that is no poison */
#endif
#ifndef UNKNOWNS
#define UNKNOWNS 0  /* confirms that get lost */
#endif
#ifndef LOSSES
#define LOSSES 0  /* settles whose reply is lost */
#endif
#ifndef REPLAYS
#define REPLAYS 0  /* dead letters that a person sends again */
#endif
#ifndef POISON
#define POISON 0  /* mask of events that never go through */
#endif

#ifdef BLOCK_POLICY
#define MAY_BURY 0
#else
#define MAY_BURY ALL
#endif

#define ALL ((1 << N) - 1)
#define KEY(k) ((k) -> (KEYS) : (ALL & ~(KEYS)))
#define KEY_OF(b) (((KEYS) & (b)) != 0)
#define LOWEST(m) ((m) & (~(m) + 1))
#define BEFORE(b) ((b) - 1)
#define NUMBER(b) (((b) >> 1) - ((b) >> 3))  /* 1 2 4 8 -> 0 1 2 3 */

/* -- the store ------------------------------------------------------------------------------ */
byte committed, ready, waiting, parked, done, dead;  /* `dead`: dead letters that are there */
byte tried;        /* failed once; the second failure buries (max_attempts = 2) */
byte stuck;        /* under the policy `block`: failed twice, waits for a person */
byte barrier[2];   /* of a blocked key, as a mask of one event; 0: not blocked */
byte owner;        /* of the lane: 1, 2, or 0 for nobody */
byte token;
bool live;         /* the store's clock has not passed the end of the lease */
byte lock;         /* whose settle holds the lease row */

#define UNFINISHED (ready | waiting | parked)
#define BLOCKED(k) (barrier[k] != 0)
#define FOLLOWERS(k) (BLOCKED(k) -> KEY(k) & ~BEFORE(barrier[k]) & ~barrier[k] : 0)
#define HEAD_IS_OVER(k) (BLOCKED(k) && !(barrier[k] & (ready | waiting)))

typedef Settlement { byte done, failed, dead, park, token, keys }

bool limbo, limbo_open;  /* a settle that the server may still carry out; its relay waits for it */
byte limbo_owner;
Settlement l;

#ifdef NO_LOCK
#define UNLOCKED true
#else
#define UNLOCKED (lock == 0)
#endif
#ifdef NO_FENCE
#define PASSES(who, s) true
#else
#ifdef NO_TOKEN
#define PASSES(who, s) (owner == who && live)
#else
#ifdef NO_EXPIRY
#define PASSES(who, s) (owner == who && token == s.token)
#else
#define PASSES(who, s) (owner == who && token == s.token && live)
#endif
#endif
#endif
/* -- the destination, and what is known only to the checker ---------------------------------- */
byte replayed;     /* dead letters that were sent again: no order is owed to them */
byte seen;         /* events of which a copy has arrived */
byte excuse[N];    /* copies of an event that a fault explains */

byte those, one;   /* scratch, empty between steps */
Settlement w;      /* scratch, too */

byte expiries = EXPIRIES, crashes = CRASHES, handovers = HANDOVERS;
byte failures = FAILURES, unknowns = UNKNOWNS, losses = LOSSES, replays = REPLAYS;

/* -- what a settle writes --------------------------------------------------------------------- */
inline advance(k) {
    if
    :: (parked & KEY(k)) == 0 -> barrier[k] = 0
    :: else ->
        /* One at a time here, 500 in the stores. */
        barrier[k] = LOWEST(parked & KEY(k));
        parked = parked & ~barrier[k];
        ready = ready | barrier[k];
#ifdef NO_BARRIER
        barrier[k] = 0
#else
        if
        :: (parked & KEY(k)) == 0 -> barrier[k] = 0
        :: else
        fi
#endif
    fi
}

inline advance_if_over(k) {
    if
    :: HEAD_IS_OVER(k) -> advance(k)
    :: else
    fi
}

inline block(k, which) {
    if
    :: (which & KEY(k)) == 0
    :: else ->
        if
        :: BLOCKED(k) && !HEAD_IS_OVER(k) && barrier[k] < (which & KEY(k))
        :: else ->
#ifndef NO_STEPPING_BACK
            /* The event that held the key until now waits behind the lower one. */
            parked = parked | (waiting & barrier[k] & ~which);
            waiting = waiting & ~(barrier[k] & ~which);
#endif
            barrier[k] = which & KEY(k)
        fi
    fi
}

inline due(b) { waiting = waiting & ~b; ready = ready | b }

inline clear(set) {
    set.done = 0;
    set.failed = 0;
    set.dead = 0;
    set.park = 0;
    set.token = 0;
    set.keys = 0
}

/* What is over stays as it is, so that the same settlement written twice changes nothing more. */
inline apply(set) {
#ifdef G2
    assert((set.done & ~seen) == 0);
#endif
    w.done = set.done & UNFINISHED;
    w.failed = set.failed & UNFINISHED;
    w.dead = set.dead & UNFINISHED;
    ready = ready & ~(w.done | w.dead | w.failed);
    parked = parked & ~(w.done | w.dead | w.failed);
    waiting = (waiting & ~(w.done | w.dead)) | w.failed;
    done = done | w.done;
#ifndef NO_DEAD_LETTERS
    dead = dead | w.dead;
#endif
#ifdef G7
    assert((dead & ~(POISON)) == 0);
#endif
    stuck = stuck | (w.failed & tried & ~MAY_BURY);
    tried = tried | w.failed;
#ifndef NO_BLOCK
    block(0, w.failed);
    block(1, w.failed);
#endif
    w.park = set.park & ready;
#ifndef NO_PARK_GUARD
    w.park = w.park & (FOLLOWERS(0) | FOLLOWERS(1));
#endif
    ready = ready & ~w.park;
    parked = parked | w.park;
    advance_if_over(0);
    advance_if_over(1);
    clear(w)
}
