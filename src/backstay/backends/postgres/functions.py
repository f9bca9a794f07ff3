"""What runs inside the server, so that a look, a write and a load are one round trip each.

Made with the schema and named by a number: a later version adds functions beside these and leaves them to the processes
that still use them. They know keys, revisions and references, and no rule.

Answers of `look_2` are arrays of bytes, each a letter, numbers and the rest, because a single value costs the server
less than rows of columns: `i` the clock and the features, `s` the session, `b` the one beside it, `n` a name, `k` a
call, `m` how many calls, `c` a checkpoint, `g` a segment, `l` one without its body, `p` a child, `f` a foreign id, `t`
how many rows there are.

`write_2` takes the session and one row of each kind, which is what nearly every write has; it costs the server a third
of what arrays would. What a write has besides follows it in the same transaction (see `shipment`). Where something is
not as expected the transaction ends with an error: nothing is written.

All who write take locks in one order, so that nobody waits for somebody who waits for him: the session's row, names by
name, then blobs by digest; and what is compared under a lock stays as it is until the end. A name stands for the calls
under its journal, a session's row for everything else (see `schema`). A write that changes only calls and branches that
are there (`p_light`) locks no more than these branches; it looks for the session after that, so that a session which is
just being hidden by a writer who looked at its branches is not written to. Each statement sees what was committed
before it began (READ COMMITTED): so a blob is locked by one statement and its references are looked for by the next, or
a commit that had just referred to it would be missed.

A revision that is expected is NULL for a row that must not be there, and 0 where any will do.
"""

from backstay.port import Kind

FORMAT = 2
RING = 64  # see `schema`: where a checkpoint's row lies
BEYOND = 1 << 32
FAR = 1_000_000  # a sequence is moved only so far that it cannot go back behind a number that was just given

# Plans are kept by the server's sessions and outlive the small tables they were made for: none may rest on a table
# being small. To plan for each value again would cost more than the statements do.
_PLANS = "SET enable_seqscan = off SET plan_cache_mode = force_generic_plan"

_LAST = "coalesce(pg_sequence_last_value('{schema_text}.touches'), 0)"
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_LOOK = """
  p_hidden boolean, p_id bytea, p_names bytea[], p_every boolean, p_sequences bigint[], p_ids bytea[], p_low bytea,
  p_high bytea, p_children bigint[], p_pending bytea[], p_counted bytea[], p_runs bigint[], p_journals bigint[],
  p_ns bigint[], p_beside bytea, p_heads boolean, p_segments bigint[]"""
_LOOKED = """
  p_hidden, p_id, p_names, p_every, p_sequences, p_ids, p_low, p_high, p_children, p_pending, p_counted, p_runs,
  p_journals, p_ns, p_beside, p_heads, p_segments"""
_SESSION = "int8send(sid) || int8send(revision) || int8send(touched) || body"
LINKS = "int8send(first) || int8send(last) || int8send(coalesce(needs, -1)) || int8send(octet_length(links)) || links"
_CALL = "'k'::bytea || int8send(c.run) || int8send(c.journal) || int8send(c.n) || c.body"
# All checkpoints of a session, packed or not. A row that holds none has 0 for its sequence.
_COUNT = """((SELECT count(*) FROM {schema}.checkpoints WHERE sid = v_sid AND sequence > 0)
        + (SELECT coalesce(sum(entries), 0)::bigint FROM {schema}.segments WHERE sid = v_sid))"""


def _at(sequence: str) -> str:
    """Where the row of a checkpoint is, if it has one of its own."""
    return f"c.slot IN ({sequence} & {RING - 1}, {sequence} | {BEYOND}) AND c.sequence = {sequence}"


# STABLE: every statement inside sees the caller's one moment.
LOOK = f"""
CREATE FUNCTION {{schema}}.look_2({_LOOK}) RETURNS bytea[] LANGUAGE plpgsql STABLE {_PLANS} AS {{body}}
DECLARE
  v bytea[];
  v_sid bigint;
  v_row bytea;
  v_size integer;
  v_unnamed boolean := false;
  v_missing boolean := false;
BEGIN
  SELECT ARRAY['i'::bytea || int8send({_NOW}) || int8send({_LAST}) || int8send(read_features)
    || int8send(write_features)] INTO v
  FROM {{schema}}.meta WHERE format = {FORMAT};
  IF p_beside IS NOT NULL THEN
    v := v || ARRAY(SELECT 'b'::bytea || {_SESSION} FROM {{schema}}.sessions WHERE NOT hidden AND id = p_beside);
  END IF;
  SELECT sid, 's'::bytea || {_SESSION} INTO v_sid, v_row
  FROM {{schema}}.sessions WHERE hidden = p_hidden AND id = p_id;
  IF NOT FOUND THEN
    RETURN v;
  END IF;
  v := v || v_row;
  IF p_every THEN
    p_names := ARRAY(SELECT name FROM {{schema}}.names WHERE sid = v_sid);
    p_pending := CASE WHEN p_pending = '{{}}' THEN p_names ELSE p_pending END;
  END IF;
  IF p_names IS NOT NULL THEN
    v_size := cardinality(v);
    v := v || ARRAY(
      SELECT 'n'::bytea || int8send(revision) || int8send(marks) || int8send(coalesce(run, -1))
        || int8send(coalesce(journal, -1)) || int8send(coalesce(sequence, -1)) || int8send(octet_length(name)) || name
        || body
      FROM {{schema}}.names WHERE sid = v_sid AND name = ANY(p_names));
    v_unnamed := cardinality(v) - v_size < cardinality(p_names) OR p_every;
  END IF;
  IF p_pending IS NOT NULL THEN
    v := v || ARRAY(SELECT {_CALL} FROM {{schema}}.names n
      JOIN {{schema}}.calls c ON c.sid = n.sid AND c.run = n.run AND c.journal = n.journal
      WHERE n.sid = v_sid AND n.name = ANY(p_pending));
  END IF;
  IF p_counted IS NOT NULL THEN
    v := v || ARRAY(SELECT 'm'::bytea || int8send(n.run) || int8send(n.journal) || int8send(coalesce((
        SELECT max(c.n) + 1 FROM {{schema}}.calls c
        WHERE c.sid = n.sid AND c.run = n.run AND c.journal = n.journal), 0))
      FROM {{schema}}.names n WHERE n.sid = v_sid AND n.name = ANY(p_counted) AND n.run IS NOT NULL);
  END IF;
  IF p_runs IS NOT NULL THEN
    v := v || ARRAY(SELECT {_CALL} FROM unnest(p_runs, p_journals, p_ns) AS w(run, journal, n)
      JOIN {{schema}}.calls c ON c.sid = v_sid AND c.run = w.run AND c.journal = w.journal
        AND c.n BETWEEN coalesce(w.n, 0) AND coalesce(w.n, 9223372036854775807));
  END IF;
  IF p_ids IS NOT NULL OR p_low IS NOT NULL THEN
    v := v || ARRAY(SELECT 'f'::bytea || int8send(sequence) || id FROM {{schema}}.foreign_ids
      WHERE sid = v_sid AND id = ANY(p_ids)
      UNION SELECT 'f'::bytea || int8send(sequence) || id FROM {{schema}}.foreign_ids
      WHERE sid = v_sid AND id >= p_low AND id < p_high);
    p_sequences := p_sequences || ARRAY(
      SELECT sequence FROM {{schema}}.foreign_ids WHERE sid = v_sid AND id = ANY(p_ids));
  END IF;
  IF p_heads THEN
    p_sequences := coalesce(p_sequences, '{{}}');
    p_sequences := p_sequences || ARRAY(SELECT DISTINCT sequence FROM {{schema}}.names
      WHERE sid = v_sid AND name = ANY(p_names) AND sequence IS NOT NULL AND sequence <> ALL(p_sequences));
  END IF;
  IF p_sequences IS NOT NULL THEN
    v_size := cardinality(v);
    v := v || ARRAY(SELECT 'c'::bytea || int8send(c.sequence) || int8send(coalesce(c.parent, -1)) || c.body
      FROM unnest(p_sequences) AS w(sequence) JOIN {{schema}}.checkpoints c
      ON c.sid = v_sid AND {_at("w.sequence")} AND c.sequence > 0);
    v_missing := cardinality(v) - v_size < cardinality(p_sequences);
  END IF;
  IF v_missing OR p_segments IS NOT NULL THEN
    v := v || ARRAY(SELECT 'g'::bytea || {LINKS} || body FROM {{schema}}.segments
      WHERE sid = v_sid AND first IN (SELECT (SELECT max(s.first) FROM {{schema}}.segments s
        WHERE s.sid = v_sid AND s.first <= w.sequence) FROM unnest(p_sequences || p_segments) AS w(sequence)));
  END IF;
  IF p_children IS NOT NULL THEN
    v := v || ARRAY(SELECT 'p'::bytea || int8send(parent) || int8send(sequence)
      FROM {{schema}}.checkpoints WHERE sid = v_sid AND parent = ANY(p_children));
    v := v || ARRAY(SELECT 'l'::bytea || {LINKS} FROM {{schema}}.segments WHERE sid = v_sid AND EXISTS(
      SELECT 1 FROM unnest(p_children) AS w(parent) WHERE last > w.parent AND least(first, needs) <= w.parent));
  END IF;
  IF v_unnamed OR v_missing THEN
    v := v || ('t'::bytea
      || int8send(CASE WHEN v_unnamed THEN (SELECT count(*) FROM {{schema}}.names WHERE sid = v_sid) ELSE -1 END)
      || int8send(CASE WHEN v_missing THEN {_COUNT} ELSE -1 END));
  END IF;
  RETURN v;
END
"""

# The same under the locks that a write takes, with a number that nobody else is given. A process that stands still with
# these locks loses them after a while.
HOLD = f"""
CREATE FUNCTION {{schema}}.hold_2({_LOOK}, p_idle bytea) RETURNS bytea[] LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  v_sid bigint;
BEGIN
  PERFORM set_config('idle_in_transaction_session_timeout', convert_from(p_idle, 'UTF8'), true);
  SELECT sid INTO v_sid FROM {{schema}}.sessions WHERE hidden = p_hidden AND id = p_id FOR NO KEY UPDATE;
  PERFORM 1 FROM {{schema}}.names WHERE sid = v_sid AND (p_every OR name = ANY(p_names)) ORDER BY name
  FOR NO KEY UPDATE;
  RETURN {{schema}}.look_2({_LOOKED}) || int8send(nextval('{{schema_text}}.touches'));
END
"""

# Where something is not as expected.
_MISS = "RAISE EXCEPTION 'what a write rests on has changed' USING ERRCODE = 'BS002'"
SAME = f"""
CREATE FUNCTION {{schema}}.same_2(p_found bigint, p_expect bigint) RETURNS void LANGUAGE plpgsql AS {{body}}
BEGIN
  IF p_found IS DISTINCT FROM p_expect THEN
    {_MISS};
  END IF;
END
"""

# A branch or tag: compared alone, compared and raised to another revision, or put.
NAME = f"""
CREATE FUNCTION {{schema}}.name_2(p_sid bigint, p_name bytea, p_expect bigint, p_revision bigint, p_marks bigint,
  p_run bigint, p_journal bigint, p_sequence bigint, p_body bytea)
RETURNS boolean LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  v_revision bigint;
BEGIN
  IF p_revision IS NULL THEN
    SELECT revision INTO v_revision FROM {{schema}}.names WHERE sid = p_sid AND name = p_name FOR NO KEY UPDATE;
    IF v_revision IS DISTINCT FROM p_expect THEN
      {_MISS};
    END IF;
  ELSIF p_expect > 0 THEN
    IF p_body IS NULL THEN
      UPDATE {{schema}}.names SET revision = p_revision WHERE sid = p_sid AND name = p_name AND revision = p_expect;
    ELSE
      UPDATE {{schema}}.names SET revision = p_revision, marks = p_marks, run = p_run, journal = p_journal,
        sequence = p_sequence, body = p_body
      WHERE sid = p_sid AND name = p_name AND revision = p_expect;
    END IF;
    IF NOT FOUND THEN
      {_MISS};
    END IF;
  ELSE
    IF p_expect = 0 THEN
      DELETE FROM {{schema}}.names WHERE sid = p_sid AND name = p_name;
    END IF;
    INSERT INTO {{schema}}.names(sid, name, revision, marks, run, journal, sequence, body)
    VALUES (p_sid, p_name, p_revision, p_marks, p_run, p_journal, p_sequence, p_body);
  END IF;
  RETURN true;
END
"""

# The number to touch the session with comes from the sequence; it may have to be the very next one (`p_exact`).
_TOUCH = f"""
    v_touched := nextval('{{schema_text}}.touches');
    IF v_touched <> p_exact THEN
      {_MISS};
    END IF;
    IF p_touched - v_touched > {FAR} THEN
      PERFORM 1 FROM {{schema}}.meta WHERE format = {FORMAT} FOR UPDATE;
      PERFORM setval('{{schema_text}}.touches', p_touched - 1) WHERE {_LAST} < p_touched - {FAR};
    END IF;
    WHILE v_touched < p_touched LOOP
      v_touched := nextval('{{schema_text}}.touches');
    END LOOP;
"""
_KNOWN = f"""(
    SELECT (read_features & ~p_read) | (write_features & ~p_write) FROM {{schema}}.meta WHERE format = {FORMAT}) = 0"""

WRITE = f"""
CREATE FUNCTION {{schema}}.write_2(
  p_relaxed boolean, p_read bigint, p_write bigint, p_light boolean, p_hidden boolean, p_id bytea, p_sid bigint,
  p_expect bigint, p_revision bigint, p_touched bigint, p_exact bigint,
  p_put_hidden boolean, p_put_id bytea, p_uid bytea, p_checkpoints bigint, p_logical bigint, p_time_era bigint,
  p_facets bigint[], p_body bytea,
  p_name bytea, p_n_expect bigint, p_n_revision bigint, p_n_marks bigint, p_n_run bigint, p_n_journal bigint,
  p_n_sequence bigint, p_n_body bytea,
  p_c_run bigint, p_c_journal bigint, p_c_n bigint, p_c_body bytea,
  p_k_slot bigint, p_k_sequence bigint, p_k_parent bigint, p_k_body bytea)
RETURNS bytea LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  v_sid bigint := p_sid;
  v_touched bigint;
  v_done boolean;
BEGIN
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'a write needs READ COMMITTED' USING ERRCODE = 'BS003';
  ELSIF p_relaxed THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  IF p_touched IS NOT NULL THEN{_TOUCH}
  END IF;
  IF NOT p_light THEN
    IF p_body IS NULL THEN
      UPDATE {{schema}}.sessions SET revision = p_revision
      WHERE hidden = p_hidden AND id = p_id AND sid = p_sid AND revision = p_expect AND {_KNOWN};
    ELSIF p_expect IS NULL THEN
      INSERT INTO {{schema}}.sessions(
        hidden, id, uid, touched, era, revision, checkpoints, logical, time_era, facets, body)
      SELECT p_put_hidden, p_put_id, p_uid, coalesce(v_touched, 0), coalesce(v_touched, 0) >> 8, p_revision,
        p_checkpoints, p_logical, p_time_era, p_facets, p_body WHERE {_KNOWN}
      ON CONFLICT (hidden, id) DO NOTHING RETURNING sid INTO v_sid;
    ELSE
      UPDATE {{schema}}.sessions SET revision = p_revision, touched = coalesce(v_touched, touched),
        era = coalesce(v_touched, touched) >> 8, checkpoints = p_checkpoints, logical = p_logical,
        time_era = p_time_era, facets = coalesce(p_facets, facets), body = p_body
      WHERE hidden = p_hidden AND id = p_id AND sid = p_sid AND revision = p_expect AND {_KNOWN};
    END IF;
    IF NOT FOUND THEN
      {_MISS};
    END IF;
    IF p_put_id IS NOT NULL AND p_expect IS NOT NULL THEN
      UPDATE {{schema}}.sessions SET hidden = p_put_hidden, id = p_put_id, uid = p_uid WHERE sid = v_sid;
    END IF;
  END IF;
  IF p_name IS NOT NULL THEN
    v_done := {{schema}}.name_2(v_sid, p_name, p_n_expect, p_n_revision, p_n_marks, p_n_run, p_n_journal, p_n_sequence,
      p_n_body);
  END IF;
  IF p_light THEN
    PERFORM 1 FROM {{schema}}.sessions WHERE hidden = p_hidden AND id = p_id AND sid = p_sid AND {_KNOWN};
    IF NOT FOUND THEN
      {_MISS};
    END IF;
  END IF;
  IF p_c_body IS NOT NULL THEN
    INSERT INTO {{schema}}.calls(sid, run, journal, n, body) VALUES (v_sid, p_c_run, p_c_journal, p_c_n, p_c_body)
    ON CONFLICT (sid, run, journal, n) DO UPDATE SET body = excluded.body;
  END IF;
  IF p_k_body IS NOT NULL THEN
    INSERT INTO {{schema}}.checkpoints(sid, slot, sequence, parent, body)
    VALUES (v_sid, p_k_slot, p_k_sequence, p_k_parent, p_k_body)
    ON CONFLICT (sid, slot) DO UPDATE SET sequence = excluded.sequence, parent = excluded.parent, body = excluded.body;
  END IF;
  RETURN int8send({_NOW}) || int8send({_LAST}) || int8send(v_sid) || int8send(coalesce(v_touched, 0));
END
"""

# References go and come; a blob that nobody refers to any more goes. Those of a packed checkpoint stay under its own
# number; where a segment comes or goes, so do those of all segments that reach into it. Those who insert wait only for
# those who inserted the same before, and those who lock only for those who lock, both in the order of digests: so there
# is no circle. A blob that another removes between the insert that found it and the lock is therefore a miss: to insert
# it now, with locks held, could close one.
REFER = f"""
CREATE FUNCTION {{schema}}.refer_2(p_sid bigint, p_every boolean, p_r_kinds bigint[], p_r_lows bigint[],
  p_r_highs bigint[], p_d_kinds bigint[], p_d_numbers bigint[], p_d_digests bytea[], p_b_digests bytea[],
  p_b_contents bytea[])
RETURNS void LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  v_gone bytea[];
  v_held bytea[];
  v_lost text;
BEGIN
  IF p_every THEN
    WITH gone AS (DELETE FROM {{schema}}.refs r WHERE r.sid = p_sid RETURNING r.digest)
    SELECT array_agg(DISTINCT digest) INTO v_gone FROM gone;
  ELSIF p_r_kinds IS NOT NULL THEN
    WITH stretches AS (
      SELECT CASE d.kind WHEN {Kind.SEGMENT:d} THEN {Kind.CHECKPOINT:d} ELSE d.kind END AS kind,
        least(d.low, min(s.first)) AS low, greatest(d.high, max(s.last)) AS high
      FROM unnest(p_r_kinds, p_r_lows, p_r_highs) AS d(kind, low, high) LEFT JOIN {{schema}}.segments s
      ON d.kind = {Kind.SEGMENT:d} AND s.sid = p_sid AND s.first <= d.high AND s.last >= d.low
      GROUP BY d.kind, d.low, d.high),
    gone AS (
      DELETE FROM {{schema}}.refs r USING stretches d
      WHERE r.sid = p_sid AND r.kind = d.kind AND r.number BETWEEN d.low AND d.high
      AND NOT EXISTS(SELECT 1 FROM unnest(p_d_kinds, p_d_numbers, p_d_digests) AS n(kind, number, digest)
        WHERE n.kind = r.kind AND n.number = r.number AND n.digest = r.digest)
      RETURNING r.digest)
    SELECT array_agg(DISTINCT digest) INTO v_gone FROM gone;
  END IF;
  IF p_b_digests IS NULL AND v_gone IS NULL THEN
    RETURN;
  END IF;
  INSERT INTO {{schema}}.blobs(digest, data)
  SELECT b.digest, b.data FROM unnest(p_b_digests, p_b_contents) AS b(digest, data) WHERE b.data IS NOT NULL
  ORDER BY b.digest ON CONFLICT (digest) DO NOTHING;
  IF v_gone IS NULL THEN
    v_held := ARRAY(SELECT digest FROM {{schema}}.blobs WHERE digest = ANY(p_b_digests) ORDER BY digest FOR KEY SHARE);
  ELSE
    v_held := ARRAY(
      SELECT digest FROM {{schema}}.blobs WHERE digest = ANY(p_b_digests || v_gone) ORDER BY digest FOR UPDATE);
  END IF;
  IF NOT p_b_digests <@ v_held THEN
    v_lost := (SELECT string_agg(encode(b.digest, 'hex'), ' ')
      FROM unnest(p_b_digests, p_b_contents) AS b(digest, data)
      WHERE b.data IS NULL AND b.digest <> ALL(v_held));
    IF v_lost IS NULL THEN
      {_MISS};
    END IF;
    RAISE EXCEPTION 'blobs are needed and not here' USING ERRCODE = 'BS001', DETAIL = v_lost;
  END IF;
  INSERT INTO {{schema}}.refs(sid, kind, number, digest)
  SELECT p_sid, d.kind, d.number, d.digest FROM unnest(p_d_kinds, p_d_numbers, p_d_digests) AS d(kind, number, digest)
  ON CONFLICT DO NOTHING;
  DELETE FROM {{schema}}.blobs b
  WHERE b.digest = ANY(v_gone) AND NOT EXISTS (SELECT 1 FROM {{schema}}.refs r WHERE r.digest = b.digest);
END
"""

# From a checkpoint along its parents, so many of them, or to a keyframe, and then the blobs they need. A segment comes
# as it is kept, and is followed by its runs. 5 and 6 say how many rows there are where what was asked for is not there,
# 7 stands for a row that is missing.
STATE = f"""
CREATE FUNCTION {{schema}}.state_2(p_id bytea, p_name bytea, p_sequence bigint, p_without bigint[], p_limit bigint)
RETURNS TABLE(o_kind integer, o_number bigint, o_parent bigint, o_body bytea)
LANGUAGE plpgsql STABLE {_PLANS} AS {{body}}
DECLARE
  v_sid bigint;
  v_next bigint := p_sequence;
  v_left bigint := coalesce(p_limit, {BEYOND});
  v_from bigint;
  v_starts bigint[];
  v_parents bigint[];
  v_place integer;
  v_keyframe bytea;
  v_lows bigint[] := '{{}}';
  v_highs bigint[] := '{{}}';
BEGIN
  SELECT 0, sid, touched, body INTO o_kind, v_sid, o_number, o_body FROM {{schema}}.sessions
  WHERE NOT hidden AND id = p_id;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  RETURN NEXT;
  p_without := coalesce(p_without, '{{}}');
  IF p_name IS NOT NULL THEN
    SELECT 1, sequence, body INTO o_kind, v_next, o_body FROM {{schema}}.names WHERE sid = v_sid AND name = p_name;
    IF FOUND THEN
      o_number := v_next;
    ELSE
      SELECT 5, count(*) INTO o_kind, o_number FROM {{schema}}.names WHERE sid = v_sid;
    END IF;
    RETURN NEXT;
  ELSIF NOT EXISTS (SELECT 1 FROM {{schema}}.checkpoints c WHERE c.sid = v_sid AND {_at("p_sequence")}) THEN
    SELECT 6, {_COUNT} INTO o_kind, o_number;
    RETURN NEXT;
  END IF;
  WHILE v_next > 0 AND v_keyframe IS NULL AND v_left > 0 LOOP
    o_kind := 2;
    o_number := v_next;
    SELECT c.parent, c.body, k.body INTO o_parent, o_body, v_keyframe FROM {{schema}}.checkpoints c
    LEFT JOIN {{schema}}.keyframes k ON p_limit IS NULL AND k.sid = c.sid AND k.sequence = c.sequence
      AND k.sequence <> ALL(p_without)
    WHERE c.sid = v_sid AND {_at("v_next")};
    IF FOUND THEN
      RETURN NEXT;
      IF v_keyframe IS NULL THEN
        v_lows := v_lows || v_next;
        v_highs := v_highs || v_next;
        v_next := CASE WHEN o_parent < v_next THEN o_parent END;
        v_left := v_left - 1;
      END IF;
      CONTINUE;
    END IF;
    SELECT first, last, starts, parents, {LINKS} || body INTO v_from, o_parent, v_starts, v_parents, o_body
    FROM {{schema}}.segments WHERE sid = v_sid AND first <= v_next ORDER BY first DESC LIMIT 1;
    IF NOT FOUND OR o_parent < v_next THEN
      o_kind := 7;
      RETURN NEXT;
      SELECT body INTO v_keyframe FROM {{schema}}.keyframes
      WHERE sid = v_sid AND sequence = v_next AND sequence <> ALL(p_without);
      EXIT;
    END IF;
    o_kind := 8;
    RETURN NEXT;
    WHILE v_next >= v_from AND v_left > 0 LOOP
      v_place := (SELECT max(i) FROM generate_subscripts(v_starts, 1) AS i WHERE v_starts[i] <= v_next);
      IF p_limit IS NULL THEN
        SELECT sequence, body INTO o_number, v_keyframe FROM {{schema}}.keyframes
        WHERE sid = v_sid AND sequence BETWEEN v_starts[v_place] AND v_next AND sequence <> ALL(p_without)
        ORDER BY sequence DESC LIMIT 1;
        v_highs := v_highs || v_next;
        v_lows := v_lows || coalesce(o_number + 1, v_starts[v_place]);
        IF v_keyframe IS NOT NULL THEN
          v_next := o_number;
          EXIT;
        END IF;
      END IF;
      v_left := v_left - (v_next - v_starts[v_place] + 1);
      v_next := CASE WHEN v_parents[v_place] < v_starts[v_place] THEN v_parents[v_place] END;
    END LOOP;
  END LOOP;
  IF p_limit IS NOT NULL THEN
    RETURN;
  END IF;
  IF v_keyframe IS NOT NULL THEN
    o_kind := 3;
    o_number := v_next;
    o_body := v_keyframe;
    RETURN NEXT;
  END IF;
  RETURN QUERY SELECT 4, 0::bigint, 0::bigint, b.digest || b.data FROM {{schema}}.blobs b WHERE b.digest IN (
    SELECT r.digest FROM unnest(v_lows, v_highs) AS d(low, high) JOIN {{schema}}.refs r
    ON r.sid = v_sid AND r.kind = {Kind.CHECKPOINT:d} AND r.number BETWEEN d.low AND d.high
    UNION ALL SELECT r.digest FROM {{schema}}.refs r
    WHERE r.sid = v_sid AND r.kind = {Kind.KEYFRAME:d} AND r.number = v_next);
END
"""

# A segment takes the place of all rows between its first and its last, and of the segments that reach in between. What
# leads to its checkpoints stays as it is if it holds just those that were there.
PACK = f"""
CREATE FUNCTION {{schema}}.pack_2(p_sid bigint, p_feature bigint, p_first bigint, p_last bigint, p_needs bigint,
  p_entries bigint, p_starts bigint[], p_parents bigint[], p_links bytea, p_body bytea, p_f_sequences bigint[],
  p_f_ids bytea[])
RETURNS void LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  v_low bigint;
  v_high bigint;
  v_entries bigint;
  v_count bigint;
BEGIN
  UPDATE {{schema}}.meta SET read_features = read_features | p_feature, write_features = write_features | p_feature
  WHERE format = {FORMAT} AND read_features & p_feature = 0;
  WITH gone AS (DELETE FROM {{schema}}.segments WHERE sid = p_sid AND first <= p_last AND last >= p_first
    RETURNING first, last, entries)
  SELECT least(p_first, min(first)), greatest(p_last, max(last)), coalesce(sum(entries), 0)
  INTO v_low, v_high, v_entries FROM gone;
  UPDATE {{schema}}.checkpoints SET sequence = 0, parent = NULL, body = ''
  WHERE sid = p_sid AND slot < {BEYOND} AND sequence BETWEEN v_low AND v_high;
  GET DIAGNOSTICS v_count = ROW_COUNT;
  v_entries := v_entries + v_count;
  DELETE FROM {{schema}}.checkpoints
  WHERE sid = p_sid AND slot BETWEEN v_low | {BEYOND} AND v_high | {BEYOND};
  GET DIAGNOSTICS v_count = ROW_COUNT;
  IF v_entries + v_count <> p_entries THEN
    DELETE FROM {{schema}}.foreign_ids WHERE sid = p_sid AND sequence BETWEEN v_low AND v_high;
    INSERT INTO {{schema}}.foreign_ids(sid, sequence, id)
    SELECT p_sid, f.* FROM unnest(p_f_sequences, p_f_ids) AS f ON CONFLICT DO NOTHING;
  END IF;
  INSERT INTO {{schema}}.segments(sid, first, last, needs, entries, starts, parents, links, body)
  VALUES (p_sid, p_first, p_last, p_needs, p_entries, p_starts, p_parents, p_links, p_body);
END
"""

FUNCTIONS = (LOOK, HOLD, SAME, NAME, WRITE, REFER, STATE, PACK)
