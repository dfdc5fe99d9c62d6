/*
 * The lease-and-fence protocol of Orthia. README.md beside this file says what is checked, where
 * the code keeps it, and how time is abstracted; `make model` runs the checks.
 *
 * Each option of each process is one d_step, so a state is the values of the variables below and
 * nothing else. A node may stop between any two of its steps for any time: nobody waits for it,
 * the clock least of all. That is what a pause is, and a request that is slow on its way to the
 * database too. A request that its sender does not wait for any more is a straggler.
 *
 * -DNODES=2|3; -DEXPIRATION, -DGRACE in ticks; -DLEASE_ONLY for no crash detection; -DCLOCK_STEPS
 * and -DCLOCK_STEPS_FORWARD to have the database's clock step; -DLIVENESS to let faults end;
 * -DSYMMETRY to take nodes that are alike for one; -DDIFFERENT_TIMERS to have node 1 renew more
 * seldom, and hold its leases longer, by a tick each (not with SYMMETRY); -DWITHOUT_<mechanism> to
 * switch a mechanism off.
 */

#ifndef NODES
#define NODES 2
#endif
#ifndef EXPIRATION
#define EXPIRATION 3
#endif
#ifndef GRACE
#define GRACE 2
#endif

/* By how many ticks a node's stopwatch may lag behind the clocks it is compared with, over one
   lease, beyond the margin that the node leaves for it. The protocol needs 0. */
#ifndef LAG
#define LAG 0
#endif

#ifdef DIFFERENT_TIMERS
#define SLOW(i) ((i) == 1)
#define LONGEST (EXPIRATION + 1)
#else
#define SLOW(i) 0
#define LONGEST EXPIRATION
#endif

/* For how long after asking a node believes its lease. */
#define LOCAL(i) (EXPIRATION + SLOW(i) + LAG)
#if defined(WITHOUT_DELIVERY_LIMIT) || defined(LEASE_ONLY)
#define DELIVERY(i) LOCAL(i)
#else
#define DELIVERY(i) (GRACE + SLOW(i) + LAG) /* and for how long it delivers */
#endif
/* For how long a waiting node watches: as long as the holder delivers, which publishes that. */
#ifdef WITHOUT_GRACE_OF_THE_HOLDER
#define WATCH(i) (GRACE + SLOW(i))
#else
#define WATCH(i) (GRACE + row_slow)
#endif

#define SETTLED_WITHIN LONGEST /* ticks after the faults by which one node is live */

#define NOBODY NODES     /* no holder */
#define DEAD (NODES + 1) /* a holder whose process is gone; which one, its token says */

/* Phases of a node. */
#define DOWN 0
#define WAITING 1 /* for the live lock */
#define FENCING 2 /* holds the live lock, renews it, has not yet fenced the journal */
#define SERVING 3

#define NOTHING 0

/* Answers under way. */
#define ACQUIRED 1
#define RENEWED 2

/* Kinds of stragglers. */
#define ACQUIRE 1
#define TAKE_OVER 2
#define RENEW 3
#define RELEASE 4
#define FENCE 5
#define COMMIT 6

/* A journal batch. */
#define NO_BATCH 0
#define UNKNOWN 1   /* failed, or committed without an answer: is retried */
#define OPEN 2      /* the token was checked, the fence row is share-locked; COMMIT is on its way */
#define COMMITTED 3 /* the answer to it is */

typedef Node {
    unsigned phase : 2;
    unsigned token : 4;
    unsigned age : 3;     /* ticks since the last renewal that succeeded was asked for */
    unsigned answer : 2;  /* of the live lock's row, under way to the node */
    unsigned since : 3;   /* ticks since that was asked */
    unsigned batch : 2;
    bit stored;           /* whether the batch's rows are in the journal */
    bit seen;             /* the lease is as this waiting node saw it */
    unsigned watched : 2; /* ticks since then */
    bit confirmed;        /* the presence lock was held at some time since then */
    bit stuck             /* stands still for ever once the faults are over */
}

/* One request that is carried out late: its sender gave up, or is gone. */
typedef Straggler {
    unsigned kind : 3;
    unsigned holder : 3;
    unsigned token : 4;
    bit slow; /* its sender's timers are the longer ones */
    bit seen
}

Node n[NODES];
Straggler late;

/* NODE_MANAGER_STORE: row 1, row 4; the presence lock. */
unsigned holder : 3 = NOBODY;
unsigned row_token : 4;
unsigned expires : 3; /* in so many ticks */
bit row_slow; /* its lease is by the longer timers, as the holder's id says */
unsigned fence_token : 4;
unsigned presence : 3 = NOBODY;
bit firm; /* the holder has had the presence lock ever since its last renewal */

/* The journal: the newest token of a row, and the newest under which it was loaded. */
unsigned newest_row : 4;
unsigned loaded : 4;

bit calm; /* no fault any more, and nothing takes time but waiting */
unsigned calm_ticks : 4;

hidden byte k, v, live, used;
hidden byte stale_row, missed_by_successor, stored_twice, receipted_not_stored, took_from_present;

/* The mechanisms that are conditions. */
#if defined(LEASE_ONLY)
#define may_watch(i) false
#define presence_confirmed(i) false
#elif defined(WITHOUT_PRESENCE_LOCK)
#define may_watch(i) true
#define presence_confirmed(i) true
#elif defined(WITHOUT_CONFIRMATION)
bit had_presence[NODES]; /* and may have lost its session since */
#define may_watch(i) had_presence[i]
#define presence_confirmed(i) true
#else
#define may_watch(i) (presence == i)
#define presence_confirmed(i) (presence == i)
#endif
#ifdef WITHOUT_GRACE
#define watched_enough(i) true
#else
#define watched_enough(i) (n[i].watched == WATCH(i))
#endif
#ifdef WITHOUT_TOKEN_MATCH
#define still_held(who, under) (holder != NOBODY)
#else
#define still_held(who, under) (holder == who && row_token == under)
#endif
#ifdef WITHOUT_RELEASE_MATCH
#define may_release(who, under) true
#else
#define may_release(who, under) (holder == who && row_token == under)
#endif
#ifdef WITHOUT_SHARE_LOCK
#define fence_row_free true
#else
#define shares(i) (n[i].batch == OPEN)
#if NODES > 2
#define fence_row_free (late.kind != COMMIT && !shares(0) && !shares(1) && !shares(2))
#else
#define fence_row_free (late.kind != COMMIT && !shares(0) && !shares(1))
#endif
#endif
#ifdef WITHOUT_FENCE_GUARD
#define fence_guard(who, under) true
#else
#define fence_guard(who, under) (holder == who && row_token == under && expires > 0)
#endif
#ifdef WITHOUT_FENCE_ORDER
#define fence_order(under) true
#else
#define fence_order(under) (fence_token <= under)
#endif
#ifdef WITHOUT_TOKEN_CHECK
#define token_checked(i) true
#else
#define token_checked(i) (n[i].token == fence_token)
#endif
#ifdef WITHOUT_DEADLINE_BEFORE_REQUEST
#define asked_ago(i) 0
#else
#define asked_ago(i) n[i].since
#endif

#ifdef WITHOUT_RECEIPT_AFTER_COMMIT
#define receipted_when OPEN
#else
#define receipted_when COMMITTED
#endif

#define me n[_pid]
#define delivers(i) (n[i].phase == SERVING && n[i].age < DELIVERY(i))
#define valid(i) (n[i].phase >= FENCING && n[i].age < LOCAL(i))
#define free_for(h) (holder == NOBODY || expires == 0 || holder == h)
#define active(i) (!calm || !n[i].stuck)

inline close_gap(x) {
    if :: x > v -> x = x - 1 :: else fi
}

/* What can make no difference any more is forgotten, so that fewer states are told apart. */
inline forget_idle_tokens() {
#if !defined(WITHOUT_TOKEN_MATCH) && !defined(WITHOUT_RELEASE_MATCH) && !defined(WITHOUT_FENCE_GUARD)
    if
    :: late.kind >= RENEW && late.kind != COMMIT &&
        !(holder == late.holder && row_token == late.token) -> drop_late()
    :: else
    fi;
#endif
    used = late.kind == COMMIT && late.token < newest_row;
    for (k : 0 .. NODES - 1) {
        used = used || (n[k].token != 0 && n[k].token < newest_row)
    }
    if :: !used -> newest_row = 0 :: else fi;
    used = late.kind == COMMIT && late.token < loaded;
    for (k : 0 .. NODES - 1) { used = used || (n[k].token != 0 && n[k].token < loaded) }
    if :: !used -> loaded = 0 :: else fi
}

/* Only the order of tokens matters: close the gaps, so that takeovers need not be counted. */
inline renumber() {
    v = 2 * NODES + 5;
    do
    :: v == 0 -> break
    :: else ->
        used = (row_token == v || fence_token == v || newest_row == v || loaded == v ||
            late.token == v);
        for (k : 0 .. NODES - 1) { used = used || n[k].token == v }
        if
        :: !used ->
            close_gap(row_token); close_gap(fence_token); close_gap(newest_row);
            close_gap(loaded); close_gap(late.token);
            for (k : 0 .. NODES - 1) { close_gap(n[k].token) }
        :: else
        fi;
        v = v - 1
    od;
}

#ifdef SYMMETRY
/* Nodes are alike: keep them sorted. */
#define key(i) ((((((((((((n[i].phase << 4) + n[i].token << 3) + n[i].age << 3) + n[i].answer << 3) + \
    n[i].since << 2) + n[i].batch << 1) + n[i].stored << 1) + n[i].seen << 1) + \
    n[i].confirmed << 2) + n[i].watched << 1) + (holder == i) << 1) + (presence == i) << 1) + \
    (late.kind != NOTHING && late.holder == i)

#define swap(field, i, j) v = n[i].field; n[i].field = n[j].field; n[j].field = v
#define rename(who, i, j) who = (who == i -> j : (who == j -> i : who))

inline sort(i, j) {
    if
    :: key(i) > key(j) ->
        swap(phase, i, j); swap(token, i, j); swap(age, i, j); swap(answer, i, j);
        swap(since, i, j); swap(batch, i, j); swap(stored, i, j); swap(seen, i, j);
        swap(confirmed, i, j); swap(watched, i, j); swap(stuck, i, j);
        rename(holder, i, j); rename(presence, i, j);
        if :: late.kind != NOTHING -> rename(late.holder, i, j) :: else fi
    :: else
    fi
}
#endif

inline settle() {
    forget_idle_tokens();
    renumber();
#ifdef SYMMETRY
    sort(0, 1);
#if NODES > 2
    sort(1, 2);
    sort(0, 1);
#endif
#endif
    k = 0; v = 0; used = 0
}

inline forget_watch(i) {
    n[i].seen = 0; n[i].confirmed = 0; n[i].watched = 0
}

/* Each write to row 1 makes it another than the one that was seen. */
inline row_written() {
#ifndef WITHOUT_COMPARE_AND_SET
    for (k : 0 .. NODES - 1) { forget_watch(k) }
    late.seen = 0;
    k = 0;
#endif
    firm = (holder == presence && holder != NOBODY)
}

inline take(taker, timers) {
    holder = taker;
    row_token = row_token + 1;
    row_slow = timers;
    expires = EXPIRATION + row_slow;
    row_written()
}

inline let_presence_go() {
    presence = NOBODY; firm = 0
}

inline drop_late() {
    late.kind = NOTHING; late.holder = 0; late.token = 0; late.slow = 0; late.seen = 0
}

inline straggle(what, who, under) {
    late.kind = what; late.holder = who; late.token = under; late.slow = SLOW(who)
}

/* The process is gone, and with it its sessions; what it holds stays until it runs out. */
inline die(i) {
    if :: holder == i -> holder = DEAD :: else fi;
    if :: late.kind != NOTHING && late.holder == i -> late.holder = DEAD :: else fi;
    if :: presence == i -> let_presence_go() :: else fi;
    n[i].phase = DOWN; n[i].token = 0; n[i].age = 0; n[i].answer = NOTHING; n[i].since = 0;
    n[i].batch = NO_BATCH; n[i].stored = 0;
#ifdef WITHOUT_CONFIRMATION
    had_presence[i] = 0;
#endif
    forget_watch(i)
}

/* Rows are written under this token. */
inline write_rows(token_of_batch) {
    stale_row = token_of_batch < newest_row;
    assert(!stale_row);
    missed_by_successor = token_of_batch < loaded;
    assert(!missed_by_successor);
    if :: token_of_batch > newest_row -> newest_row = token_of_batch :: else fi
}

inline load(i) {
    if :: n[i].token > loaded -> loaded = n[i].token :: else fi
}

active [NODES] proctype Process() {
    do
    :: d_step { me.phase == DOWN && active(_pid) -> me.phase = WAITING; settle() }

    /* --- waiting for the live lock */
    :: d_step {
        me.phase == WAITING && me.answer == NOTHING && active(_pid) && free_for(_pid) ->
        take(_pid, SLOW(_pid));
        me.token = row_token; me.answer = ACQUIRED; forget_watch(_pid);
        settle()
    }
    :: d_step {
        me.phase != DOWN && presence == NOBODY && active(_pid) ->
#ifdef WITHOUT_CONFIRMATION
        had_presence[_pid] = 1;
#endif
        presence = _pid;
        settle()
    }
    :: d_step {
        me.phase == WAITING && me.answer == NOTHING && active(_pid) && !free_for(_pid) &&
        !me.seen && may_watch(_pid) ->
        me.seen = 1;
        settle()
    }
    :: d_step {
        me.seen && !me.confirmed && active(_pid) && presence_confirmed(_pid) ->
        me.confirmed = 1;
        settle()
    }
    :: d_step {
        me.confirmed && watched_enough(_pid) && active(_pid) ->
        took_from_present = firm && expires > 0;
        assert(!took_from_present);
        take(_pid, SLOW(_pid));
        me.token = row_token; me.answer = ACQUIRED; forget_watch(_pid);
        settle()
    }
    :: d_step {
        me.answer == ACQUIRED && active(_pid) ->
        me.age = asked_ago(_pid); me.answer = NOTHING; me.since = 0;
        me.phase = FENCING;
#ifdef WITHOUT_FENCE_FIRST
        load(_pid);
#endif
        settle()
    }

    /* --- holding it */
    :: d_step {
        me.phase >= FENCING && me.answer == NOTHING && active(_pid) && (!calm || me.age > 0) ->
        if
        :: still_held(_pid, me.token) ->
            expires = EXPIRATION + row_slow; row_written(); me.answer = RENEWED
        :: else -> die(_pid)
        fi;
        settle()
    }
    :: d_step {
        me.answer == RENEWED && active(_pid) ->
        me.age = asked_ago(_pid); me.answer = NOTHING; me.since = 0;
        settle()
    }
    :: d_step { me.phase >= FENCING && me.age == LOCAL(_pid) && active(_pid) -> die(_pid); settle() }
    /* The fence, then the journal is loaded: the sooner after it, the more could be missed. */
    :: d_step {
        me.phase == FENCING && fence_row_free && active(_pid) ->
        if
        :: fence_guard(_pid, me.token) && fence_order(me.token) ->
            fence_token = me.token; me.phase = SERVING; load(_pid)
        :: else -> die(_pid)
        fi;
        settle()
    }

    /* --- what clients send */
    :: d_step {
        me.phase == SERVING && active(_pid) &&
        (me.batch == UNKNOWN || (me.batch == NO_BATCH && !calm)) ->
        if
        :: token_checked(_pid) -> me.batch = OPEN
        :: else -> die(_pid)
        fi;
        settle()
    }
    :: d_step {
        me.batch == OPEN && active(_pid) ->
        write_rows(me.token);
#ifdef WITHOUT_IDEMPOTENT_BATCHES
        stored_twice = me.stored;
        assert(!stored_twice);
#endif
        me.stored = 1; me.batch = COMMITTED;
        settle()
    }
    :: d_step {
        me.batch == receipted_when && active(_pid) ->
        receipted_not_stored = !me.stored;
        assert(!receipted_not_stored);
        me.stored = 0; me.batch = NO_BATCH;
        settle()
    }
#ifndef WITHOUT_IDLE_LIMIT
    /* The server ends a session whose transaction stands still. */
    :: d_step { calm && me.stuck && me.batch == OPEN -> me.batch = UNKNOWN; settle() }
#endif

    /* --- an orderly stop: nothing is served any more when the release is sent */
    :: d_step {
        !calm && late.kind == NOTHING && me.phase >= FENCING ->
        straggle(RELEASE, _pid, me.token);
#ifndef WITHOUT_RELEASE_LAST
        die(_pid);
#endif
        settle()
    }

    /* --- answers that are lost; a renewal's is as good as never: the node ends sooner or later */
    :: d_step {
        !calm && me.answer == ACQUIRED ->
        me.answer = NOTHING; me.since = 0; me.token = 0;
        settle()
    }
    :: d_step { !calm && me.batch >= OPEN -> me.batch = UNKNOWN; settle() }

    /* --- requests that are carried out after the node gave them up */
    :: d_step {
        !calm && late.kind == NOTHING && me.phase == WAITING && me.answer == NOTHING ->
        straggle(ACQUIRE, _pid, 0);
        settle()
    }
    :: d_step {
        !calm && late.kind == NOTHING && me.confirmed && watched_enough(_pid) ->
        straggle(TAKE_OVER, _pid, 0); late.seen = me.seen; forget_watch(_pid);
        settle()
    }

    /* --- crashes, with nothing or one request left on its way */
    :: d_step { !calm && me.phase != DOWN -> die(_pid); settle() }
    :: d_step {
        !calm && late.kind == NOTHING && me.phase >= FENCING ->
        straggle(RENEW, _pid, me.token); die(_pid);
        settle()
    }
    :: d_step {
        !calm && late.kind == NOTHING && me.phase == FENCING ->
        straggle(FENCE, _pid, me.token); die(_pid);
        settle()
    }
    :: d_step {
        !calm && late.kind == NOTHING && me.batch == OPEN ->
        straggle(COMMIT, _pid, me.token); die(_pid);
        settle()
    }
    od
}

active proctype Stragglers() {
    do
    :: d_step {
        late.kind == ACQUIRE ->
        if :: free_for(late.holder) -> take(late.holder, late.slow) :: else fi;
        drop_late();
        settle()
    }
    :: d_step {
        late.kind == TAKE_OVER ->
        if
        :: late.seen ->
            took_from_present = firm && expires > 0;
            assert(!took_from_present);
            take(late.holder, late.slow)
        :: else
        fi;
        drop_late();
        settle()
    }
    :: d_step {
        late.kind == RENEW ->
        if
        :: still_held(late.holder, late.token) ->
            expires = EXPIRATION + row_slow; row_written()
        :: else
        fi;
        drop_late();
        settle()
    }
    :: d_step {
        late.kind == RELEASE ->
        if
        :: may_release(late.holder, late.token) ->
            holder = NOBODY; expires = 0; row_slow = 0; row_written()
        :: else
        fi;
        drop_late();
        settle()
    }
    :: d_step {
        late.kind == FENCE && fence_row_free ->
        if
        :: fence_guard(late.holder, late.token) && fence_order(late.token) ->
            fence_token = late.token
        :: else
        fi;
        drop_late();
        settle()
    }
    :: d_step { late.kind == COMMIT -> write_rows(late.token); drop_late(); settle() }
    :: d_step { late.kind != NOTHING && !calm -> drop_late(); settle() }
    od
}

/* Stragglers have come or are lost. What the journal holds is no matter of liveness. */
#define may_calm (!calm && late.kind == NOTHING)

inline calm_down() {
    calm = 1; newest_row = 0; loaded = 0
}

active proctype Faults() {
    do
    /* A session ends though its process lives; or a waiting node stands back. */
    :: d_step { presence != NOBODY && !calm -> let_presence_go(); settle() }
#ifdef CLOCK_STEPS
    /* The database's clock steps back: a lease lasts longer. */
    :: d_step {
        !calm && holder != NOBODY && expires <= LONGEST -> expires = expires + 1; settle()
    }
#endif
#ifdef CLOCK_STEPS_FORWARD
    /* It steps forward: a lease ends early, without its holder knowing. */
    :: d_step { !calm && expires > 0 -> expires = expires - 1; settle() }
#endif
#ifdef LIVENESS
    /* From here on all goes well, except for nodes that never move again; one at least does. */
    :: d_step { may_calm -> calm_down(); settle() }
    :: d_step { may_calm -> calm_down(); n[0].stuck = 1; settle() }
    :: d_step { may_calm -> calm_down(); n[NODES - 1].stuck = 1; settle() }
#if NODES > 2
    :: d_step { may_calm -> calm_down(); n[1].stuck = 1; settle() }
    :: d_step { may_calm -> calm_down(); n[0].stuck = 1; n[1].stuck = 1; settle() }
    :: d_step { may_calm -> calm_down(); n[0].stuck = 1; n[2].stuck = 1; settle() }
    :: d_step { may_calm -> calm_down(); n[1].stuck = 1; n[2].stuck = 1; settle() }
#endif
#endif
    od
}

inline tick() {
    for (k : 0 .. NODES - 1) {
        if :: n[k].phase >= FENCING && n[k].age < LOCAL(k) -> n[k].age = n[k].age + 1 :: else fi;
        if
        :: n[k].answer != NOTHING && n[k].since < LOCAL(k) ->
            n[k].since = n[k].since + 1
        :: else
        fi;
        if :: n[k].seen && n[k].watched < WATCH(k) -> n[k].watched = n[k].watched + 1 :: else fi
    }
    k = 0;
    if :: expires > 0 -> expires = expires - 1 :: else fi
}

active proctype Clock() {
    do
    :: d_step { !calm -> tick(); settle() }
    /* Once all goes well, whatever can be done is done before time goes on. */
    :: atomic {
        calm && timeout ->
        d_step {
            if
            :: calm_ticks < SETTLED_WITHIN -> calm_ticks = calm_ticks + 1
            :: else ->
                live = 0;
                for (k : 0 .. NODES - 1) { if :: delivers(k) -> live = live + 1 :: else fi }
                assert(live == 1);
                live = 0
            fi;
            tick();
            settle()
        }
    }
    od
}

#define OUTLIVES_ROW(i) (valid(i) && holder == i && row_token == n[i].token && expires == 0)
#if NODES > 2
#define ANY_OUTLIVES_ROW (OUTLIVES_ROW(0) || OUTLIVES_ROW(1) || OUTLIVES_ROW(2))
#define TWO_DELIVER ((delivers(0) && delivers(1)) || (delivers(0) && delivers(2)) || \
    (delivers(1) && delivers(2)))
#else
#define ANY_OUTLIVES_ROW (OUTLIVES_ROW(0) || OUTLIVES_ROW(1))
#define TWO_DELIVER (delivers(0) && delivers(1))
#endif

hidden byte two_deliver, deadline_after_expiry;

/* Blocked as long as the invariants hold. A clock that steps forward ends a lease that its holder
   believes in: then only what the fence keeps is promised. */
#ifndef CLOCK_STEPS_FORWARD
active proctype Invariants() {
    do
    :: d_step { TWO_DELIVER -> two_deliver = 1; assert(!two_deliver) }
    :: d_step {
        ANY_OUTLIVES_ROW -> deadline_after_expiry = 1; assert(!deadline_after_expiry)
    }
    od
}
#endif

#ifdef LIVENESS
ltl time_goes_on { [] (calm -> <> (calm_ticks == SETTLED_WITHIN)) }
#endif
