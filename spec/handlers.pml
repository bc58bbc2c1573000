/* Handlers as a destination: event 0 kills its process each time, event 1 is innocent.
 *
 * One relay, which begins again after each death. An attempt is counted in the store before its
 * handler runs. What a dead process left behind as `processing` is tried alone.
 */

#define MAX_ATTEMPTS 3
#ifndef CRASHES
#define CRASHES 0  /* deaths that are nobody's doing */
#endif

#define PENDING 0
#define PROCESSING 1
#define DONE 2
#define DEAD 3
byte state[2];
byte attempts[2];

#define IDLE 0
#define STARTING 1
#define RUNNING 2
#define RAN 3
byte run_of[2];      /* in memory */
bool alone[2];
byte started[2];     /* known to the checker only: how often its handler has begun */
bool effect;

byte crashes = CRASHES;

#define IS_ORPHAN(e) (state[e] == PROCESSING && run_of[e] == IDLE)
#define OTHER(e) (1 - (e))

inline die() { run_of[0] = IDLE; run_of[1] = IDLE; alone[0] = false; alone[1] = false }

inline begin(e) {
    run_of[e] = RUNNING;
    started[e]++;
    assert(started[e] <= MAX_ATTEMPTS)  /* G7 */
}

inline count(e) {
#ifndef COUNT_AFTER
    attempts[e]++;
#endif
    state[e] = PROCESSING
}

proctype Handling(bit e) {
end:
    do
    :: d_step { state[e] == PENDING && run_of[e] == IDLE && !alone[OTHER(e)] -> run_of[e] = STARTING }
    :: d_step { run_of[e] == STARTING -> count(e); begin(e) }
#ifndef IGNORE_ORPHANS
    :: d_step { IS_ORPHAN(e) && attempts[e] >= MAX_ATTEMPTS ->
        state[e] = DEAD;
        assert(e == 0) }  /* G7: no neighbour is buried */
#ifdef NO_ALONE
    :: d_step { IS_ORPHAN(e) && attempts[e] < MAX_ATTEMPTS -> run_of[e] = STARTING }
#else
    :: d_step { IS_ORPHAN(e) && attempts[e] < MAX_ATTEMPTS && run_of[OTHER(e)] == IDLE ->
        alone[e] = true; run_of[e] = STARTING }
#endif
#endif
    :: d_step { e == 0 && run_of[e] == RUNNING -> die() }
    :: d_step { e == 1 && run_of[e] == RUNNING -> effect = true; run_of[e] = RAN }
    :: d_step { run_of[e] == RAN -> state[e] = DONE; run_of[e] = IDLE; alone[e] = false }
    :: d_step { crashes && run_of[e] != IDLE -> crashes--; die() }
    od
}

/* Nothing can happen any more: the poison is a dead letter, its neighbour is done. */
proctype Ending() {
end:
    timeout;
    assert(state[0] == DEAD && state[1] == DONE && effect)
}

init { atomic { run Handling(0); run Handling(1); run Ending() } }
