/*
 * The protocol of Writ, for spin: commands of one source entity, its lane to one
 * destination entity, two nodes that fight for the source's shard, two
 * activations of the destination of which one may be superseded, and an operator
 * who restores the source's shard from a backup. `make model` checks it; README.md
 * says what is checked and what is left out.
 *
 * Raft is taken as given: one durable state per shard, which records reach one
 * by one. What is not given is who proposes: a node goes on with its lease after
 * it has lost the leadership, until it hears of it, and may then even lead again
 * in a later term. The network keeps every row that was ever sent and may deliver
 * it at any time, any number of times, in any order.
 *
 * -D switches a safeguard off; spin must then find a violation:
 *   NO_TERM     Apply takes records of earlier terms
 *   NO_VERSION  Apply does not compare the base version
 *   NO_KEY      neither leader nor Apply looks at the idempotency key
 *   NO_LANE     the destination takes rows beyond the next one
 *   NO_APPLIED  Apply does not compare the applied mark
 *   MARK_FIRST  a row is marked as confirmed before it is sent
 *   NO_EPOCH    a restore does not raise the epoch
 *   NO_ALONE    the first row of an epoch may be overtaken
 * -D RESTORE=1 adds the operator; -D READS=1 adds a linearizable read.
 */

#ifndef RESTORE
#define RESTORE 0
#endif
#ifndef READS
#define READS 0
#endif
#ifndef ELECTIONS
#define ELECTIONS 1
#endif
#ifndef LOSSES
#define LOSSES 1
#endif

#ifndef ROWS
#define ROWS 2
#endif
#ifndef DESTINATIONS
#define DESTINATIONS 2
#endif
/* There are three commands; the first ROWS that commit out of 0 and 1 emit an
   event each. A row is named by the source's history, 1 before the restore and 2
   behind it, and its number. */

#define READ    10
#define CONFIRM 11

/* The source's shard: what the log has made of it. */
byte version, state, keys, numbered, confirmed;
byte rowHist[3]; /* of which history the row in the outbox is */
byte hist = 1;

/* Two bits of the state count the effects of a key. */
#define effects(s, k) (((s) >> (2 * (k))) & 3)
#define has(set, k)   (((set) >> (k)) & 1)
#define consistent    (effects(state, 0) == has(keys, 0) && effects(state, 1) == has(keys, 1) && effects(state, 2) == has(keys, 2))

/* Raft's part of the source's shard. */
byte raftLeader, raftTerm = 1, elections;
byte losses; /* proposals, decisions and activations lost so far */

/* What the two nodes have in memory. */
byte lease[2]; /* the lease's term, 0: none */
byte memVersion[2], memState[2], memKeys[2], memNumbered[2]; /* ahead of what is committed */
byte committed[2]; /* version that reads answer from */
byte wanted[2];    /* version that the read in progress must not miss */
bool marking[2];
byte marked[2];    /* MARK_FIRST: the row that was marked and is to be sent now */
bool broken[2]; /* a record has failed: the activation takes no more */
chan queue[2] = [2] of { byte, byte, byte, byte, byte }; /* term, base version, what, state, row */
byte reads;

/* The network, and the destination's shard. Rows are named by history and number. */
bool sent[9], acked[9];
byte applied, appliedEpoch = 1;
byte times[9]; /* how often a row has taken effect */

#define id(h, n) ((h) * 3 + (n))
#ifdef NO_EPOCH
#define epochOf(h) 1
#else
#define epochOf(h) (h)
#endif

/* An activation reads its entity. */
inline load(i) {
	memVersion[i] = version; memState[i] = state; memKeys[i] = keys; memNumbered[i] = numbered;
	committed[i] = version;
	broken[i] = false; marking[i] = false; marked[i] = 0; wanted[i] = 0;
}

/* A command that the activation has not seen: dedup, handler, record. The next one
   works on what this one leads to, though its record is still in flight. */
#ifdef NO_KEY
#define fresh(i, k) (effects(memState[i], k) < 2)
#else
#define fresh(i, k) (!has(memKeys[i], k) && !has(keys, k))
#endif
#define works(i) (lease[i] > 0 && !broken[i] && nfull(queue[i]))

inline decide(i, k) {
	d_step {
		memState[i] = memState[i] + (1 << (2 * k));
		memKeys[i] = memKeys[i] | (1 << k);
		if
		:: k < 2 && memNumbered[i] < ROWS ->
			memNumbered[i]++;
			queue[i]!lease[i], memVersion[i], k, memState[i], memNumbered[i]
		:: else -> queue[i]!lease[i], memVersion[i], k, memState[i], 0
		fi;
		memVersion[i]++
	}
}

/* Apply takes a record whole or refuses it whole. */
#ifdef NO_TERM
#define termFits(t) true
#else
#define termFits(t) ((t) == raftTerm)
#endif
#ifdef NO_VERSION
#define versionFits(b) true
#else
#define versionFits(b) ((b) == version)
#endif
#ifdef NO_KEY
#define keyFits(k) true
#else
#define keyFits(k) (!has(keys, k))
#endif
#define rowFits(r) ((r) == 0 || (r) == numbered + 1)

inline apply(i, t, b, k, s, r) {
	if
	:: !termFits(t) -> broken[i] = true; lease[i] = 0
	:: else ->
		if
		:: k == READ ->
			assert(committed[i] >= wanted[i]); /* the read misses nothing */
			wanted[i] = 0
		:: k == CONFIRM ->
			marking[i] = false;
			if
			:: r <= numbered && r > confirmed ->
#ifndef MARK_FIRST
				assert(times[id(rowHist[r], r)] == 1); /* confirmed ≤ applied */
#else
				marked[i] = r;
#endif
				confirmed = r
			:: else -> skip
			fi
		:: else ->
			if
			:: versionFits(b) && keyFits(k) && rowFits(r) ->
				version++; committed[i] = version;
				state = s; keys = keys | (1 << k);
				if
				:: r > 0 -> numbered = r; rowHist[r] = hist
				:: else -> skip
				fi;
				assert(consistent) /* one key, one effect; never one without the other */
			:: else -> broken[i] = true
			fi
		fi
	fi
}

/* The relay: rows are sent from what is committed, and marked when the
   destination has said that it has applied them. The first row of a new history
   travels alone: until it is applied, the destination cannot tell a later one that
   overtakes it from the first. */
#ifdef NO_ALONE
#define turn(n) true
#else
#define turn(n) (rowHist[n] == 1 || (n) == 1 || confirmed >= 1 || acked[id(rowHist[1], 1)])
#endif
#ifdef MARK_FIRST
#define sendable(n) (marked[i] == (n))
#define markable(n) ((n) == confirmed + 1 && (n) <= numbered)
#else
#define sendable(n) ((n) > confirmed && (n) <= numbered && turn(n))
#define markable(n) ((n) > confirmed && (n) <= numbered && acked[id(rowHist[n], n)])
#endif

proctype node(byte i) {
	byte t, b, k, s, r;
end:	do
	/* Elections. A lost leadership is noticed later, or not before the next one. */
	:: atomic { elections < ELECTIONS -> elections++; raftTerm++; raftLeader = i }
	:: atomic { lease[i] > 0 && (raftLeader != i || lease[i] != raftTerm) -> lease[i] = 0 }
	:: atomic { raftLeader == i && lease[i] == 0 && empty(queue[i]) -> lease[i] = raftTerm; load(i) }
	/* A record failed: when nothing is in flight any more the entity is read anew. */
	:: atomic { lease[i] > 0 && broken[i] && empty(queue[i]) -> load(i) }

	:: atomic { works(i) && fresh(i, 0) -> decide(i, 0) }
	:: atomic { works(i) && fresh(i, 1) -> decide(i, 1) }
	:: atomic { works(i) && fresh(i, 2) -> decide(i, 2) }

	:: atomic { lease[i] > 0 && sendable(1) && !sent[id(rowHist[1], 1)] -> sent[id(rowHist[1], 1)] = true }
	:: atomic { lease[i] > 0 && sendable(2) && !sent[id(rowHist[2], 2)] -> sent[id(rowHist[2], 2)] = true }
	:: atomic { works(i) && !marking[i] && markable(1) -> marking[i] = true; queue[i]!lease[i], 0, CONFIRM, 0, 1 }
	:: atomic { works(i) && !marking[i] && markable(2) -> marking[i] = true; queue[i]!lease[i], 0, CONFIRM, 0, 2 }

	:: atomic { reads < READS && works(i) -> reads++; wanted[i] = version; queue[i]!lease[i], 0, READ, 0, 0 }

	/* What is proposed reaches the log in the term of whoever leads then. */
	:: atomic { raftLeader == i && nempty(queue[i]) -> queue[i]?t, b, k, s, r; d_step { apply(i, t, b, k, s, r); t = 0; b = 0; k = 0; s = 0; r = 0 } }
	:: atomic { raftLeader != i && nempty(queue[i]) -> queue[i]?t, b, k, s, r; broken[i] = true; lease[i] = 0; t = 0; b = 0; k = 0; s = 0; r = 0 }
	:: atomic { losses < LOSSES && nempty(queue[i]) -> queue[i]?t, b, k, s, r; losses++; broken[i] = true; t = 0; b = 0; k = 0; s = 0; r = 0 }
	od
}

/* An activation of the destination. Deciding and committing are two steps, and
   the other activation may come in between. */
inline receive(h, n) {
	if
	:: n <= memN && epochOf(h) <= memE -> acked[id(h, n)] = true /* known */
	:: else -> decH = h; decN = n
	fi
}

#define nextRow(h, n, e, a) ((epochOf(h) > (e) && (n) <= (a) + 1) || ((n) == (a) + 1 && epochOf(h) >= (e)))
#ifdef NO_LANE
#define placed(h, n, e, a) ((n) > (a) || epochOf(h) > (e))
#else
#define placed(h, n, e, a) nextRow(h, n, e, a)
#endif
#ifdef NO_APPLIED
#define markFits(h, n) true
#else
#define markFits(h, n) placed(h, n, appliedEpoch, applied)
#endif
#define arrives(h, n) (decN == 0 && sent[id(h, n)] && ((n <= memN && epochOf(h) <= memE && !acked[id(h, n)]) || (!(n <= memN && epochOf(h) <= memE) && placed(h, n, memE, memN))))

proctype destination() {
	byte memN = 0, memE = 1; /* what it knows to be applied */
	byte decH = 0, decN = 0; /* its record in flight */
end:	do
	:: atomic { arrives(1, 1) -> receive(1, 1) }
	:: atomic { arrives(1, 2) -> receive(1, 2) }
	:: atomic { arrives(2, 1) -> receive(2, 1) }
	:: atomic { arrives(2, 2) -> receive(2, 2) }
	:: atomic { decN > 0 ->
		d_step {
			if
			:: markFits(decH, decN) ->
				times[id(decH, decN)]++;
				assert(times[id(decH, decN)] == 1); /* no row takes effect twice */
				applied = decN; appliedEpoch = epochOf(decH)
			:: else -> skip
			fi;
			memN = applied; memE = appliedEpoch; decH = 0; decN = 0
		} }
	:: atomic { losses < LOSSES && decN > 0 -> losses++; decH = 0; decN = 0 }
	:: atomic { decN == 0 && (memN != applied || memE != appliedEpoch) -> memN = applied; memE = appliedEpoch }
	od
}

/* The operator takes a backup at some time and restores it at some later time,
   with the cluster down. What was sent stays in the network. */
proctype operator() {
	byte bVersion, bState, bKeys, bNumbered, bConfirmed;
	atomic { true -> bVersion = version; bState = state; bKeys = keys; bNumbered = numbered; bConfirmed = confirmed };
	atomic {
		true ->
		version = bVersion; state = bState; keys = bKeys; numbered = bNumbered; confirmed = bConfirmed;
		/* Rows of the backup keep their names; later ones are of the new history. */
		hist = 2;
		raftTerm++;
		do :: queue[0]?_, _, _, _, _ :: empty(queue[0]) -> break od;
		do :: queue[1]?_, _, _, _, _ :: empty(queue[1]) -> break od;
		lease[0] = 0; lease[1] = 0;
		bVersion = 0; bState = 0; bKeys = 0; bNumbered = 0; bConfirmed = 0
	}
}

init {
	atomic {
		run node(0); run node(1); run destination();
		if
		:: DESTINATIONS == 2 -> run destination()
		:: else
		fi;
		if
		:: RESTORE -> run operator()
		:: else
		fi
	}
}

/* Every row is applied and confirmed in the end. Elections and losses are bounded,
   and everything else makes progress, so this needs no assumption of fairness. */
#ifdef LIVE
ltl delivered { <>[] (confirmed == numbered && !(numbered >= 1 && times[id(rowHist[1], 1)] != 1) && !(numbered >= 2 && times[id(rowHist[2], 2)] != 1)) }
#endif
