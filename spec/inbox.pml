/* The inbox: two consumers, one queue. Message 0 was sent twice, message 1 once.
 *
 * The broker may hand out again whatever is not acknowledged, also while the first consumer still
 * works on it. A consumer opens a transaction, accepts, does its work, commits, acknowledges.
 */

#ifndef CRASHES
#define CRASHES 0
#endif
#ifndef REDELIVERIES
#define REDELIVERIES 0  /* while the consumer that has the message lives */
#endif
#ifndef FAILURES
#define FAILURES 0  /* of the handler; the second one buries the message */
#endif
#ifndef LOSSES
#define LOSSES 0  /* commits whose reply is lost */
#endif

#define COPIES 3
#define MESSAGE(c) ((c) == 2 -> 1 : 0)

/* -- the broker ----------------------------------------------------------------------------- */
#define QUEUED 0
#define GONE 3          /* acknowledged; 1 and 2: in the hands of that consumer */
byte copy[COPIES];

/* -- the consumers' database ---------------------------------------------------------------- */
#define FREE 0
#define LIMBO 3         /* a commit was asked for; the server has not decided yet */
bool accepted[2];       /* the inbox row is there */
byte lock[2];           /* whose open transaction has written the inbox row; others wait for it */
byte effects[2];
bool dead[2];           /* the message is a dead letter */
bool tried[2];

/* -- the consumers -------------------------------------------------------------------------- */
#define IDLE 0
#define RECEIVED 1
#define WORKING 2       /* in a transaction, accepted as new */
#define FINISHED 3      /* committed, a repeat, or buried: may be acknowledged */
#define MARKED 4        /* the row is committed, the work is not done (OUTSIDE) */
typedef Consumer { byte phase, hand }
Consumer consumer[2];

byte crashes = CRASHES, redeliveries = REDELIVERIES, failures = FAILURES, losses = LOSSES;

#define HAND consumer[w].hand
#define PHASE consumer[w].phase
#define M MESSAGE(consumer[w].hand)

#ifdef NO_LOCK
#define MAY_ACCEPT true
#else
#define MAY_ACCEPT (lock[M] == FREE)
#endif
#ifdef NO_ACCEPT
#define IS_NEW true
#else
#define IS_NEW (!accepted[M])
#endif

inline work(m) {
    effects[m]++;
    assert(effects[m] <= 1)  /* G6 */
}

inline receive(c) {
    copy[c] = w + 1;
    consumer[w].hand = c;
    consumer[w].phase = RECEIVED;
#ifdef ACK_FIRST
    copy[c] = GONE;
#endif
    skip
}

inline unlock(m) {
    if
    :: lock[m] == w + 1 -> lock[m] = FREE
    :: else
    fi
}

inline rest() { consumer[w].phase = IDLE; consumer[w].hand = 0 }

proctype Consuming(bit w) {
end:
    do
    :: d_step { PHASE == IDLE && copy[0] == QUEUED -> receive(0) }
    :: d_step { PHASE == IDLE && copy[1] == QUEUED -> receive(1) }
    :: d_step { PHASE == IDLE && copy[2] == QUEUED -> receive(2) }

    /* accept: the first statement of the handler's transaction */
    :: d_step { PHASE == RECEIVED && MAY_ACCEPT && !IS_NEW -> PHASE = FINISHED }
#ifdef OUTSIDE
    :: d_step { PHASE == RECEIVED && MAY_ACCEPT && IS_NEW -> accepted[M] = true; PHASE = MARKED }
    :: d_step { PHASE == MARKED -> work(M); PHASE = FINISHED }
#else
    :: d_step { PHASE == RECEIVED && MAY_ACCEPT && IS_NEW -> lock[M] = w + 1; PHASE = WORKING }
    :: d_step { PHASE == WORKING -> accepted[M] = true; work(M); unlock(M); PHASE = FINISHED }
#endif

    /* The handler fails: rolled back and tried again in place, then buried. */
    :: d_step { PHASE == WORKING && failures && !tried[M] -> failures--;
        tried[M] = true; unlock(M); PHASE = RECEIVED }
    :: d_step { PHASE == WORKING && failures && tried[M] -> failures--;
        unlock(M); dead[M] = true; PHASE = FINISHED }

    /* The commit's reply is lost: committed, rolled back, or not decided yet. It is tried again. */
    :: d_step { PHASE == WORKING && losses -> losses--;
        accepted[M] = true; work(M); unlock(M); PHASE = RECEIVED }
    :: d_step { PHASE == WORKING && losses -> losses--; unlock(M); PHASE = RECEIVED }
    :: d_step { PHASE == WORKING && losses && lock[M] == w + 1 -> losses--;
        lock[M] = LIMBO; PHASE = RECEIVED }

    /* acknowledge; nothing happens if the copy has become another's */
    :: d_step { PHASE == FINISHED ->
        if
        :: copy[HAND] == w + 1 ->
            assert(effects[M] == 1 || dead[M]);  /* G6: what is forgotten by the broker is done */
            copy[HAND] = GONE
        :: else
        fi;
        rest() }

    /* die: the transaction is rolled back, or was committed a moment ago */
    :: d_step { PHASE != IDLE && crashes -> crashes--;
        unlock(M);
        if
        :: copy[HAND] == w + 1 -> copy[HAND] = QUEUED
        :: else
        fi;
        rest() }
    od
}

proctype Serving() {
end:
    do
    :: d_step { redeliveries && (copy[0] == 1 || copy[0] == 2) -> redeliveries--; copy[0] = QUEUED }
    :: d_step { redeliveries && (copy[1] == 1 || copy[1] == 2) -> redeliveries--; copy[1] = QUEUED }
    :: d_step { redeliveries && (copy[2] == 1 || copy[2] == 2) -> redeliveries--; copy[2] = QUEUED }
    :: d_step { lock[0] == LIMBO -> lock[0] = FREE }
    :: d_step { lock[1] == LIMBO -> lock[1] = FREE }
    :: d_step { lock[0] == LIMBO -> lock[0] = FREE; accepted[0] = true; work(0) }
    :: d_step { lock[1] == LIMBO -> lock[1] = FREE; accepted[1] = true; work(1) }
    od
}

/* Nothing can happen any more: every message has had its effect, or is a dead letter. */
proctype Ending() {
end:
    timeout;
    assert(copy[0] == GONE && copy[1] == GONE && copy[2] == GONE);
    assert((effects[0] == 1 || dead[0]) && (effects[1] == 1 || dead[1]))
}

init { atomic { run Consuming(0); run Consuming(1); run Serving(); run Ending() } }
