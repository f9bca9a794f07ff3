"""What runs inside the server, so that a look, a write and a load are one round trip each: looks and loads.

Made with the schema and named by a number: a later version adds functions beside these and leaves them to the processes
that still use them. They know keys, revisions and references, and no rule.

Answers of `look_2` are arrays of bytes, each a letter, numbers and the rest, because a single value costs the server
less than rows of columns: `i` the clock and the features, `s` the session, `b` the one beside it, `n` a name, `k` a
call, `m` how many calls, `c` a checkpoint, `g` a segment, `l` one without its body, `p` a child, `f` a foreign id, `t`
how many rows there are.
"""

from backstay.codec import HELD_MARK
from backstay.port import Kind

FORMAT = 2
RING = 32  # see `schema`: where a checkpoint's row lies
BEYOND = 1 << 32

# Plans are kept by the server's sessions and outlive the small tables they were made for: none may rest on a table
# being small. To plan for each value again would cost more than the statements do.
PLANS = "SET enable_seqscan = off SET plan_cache_mode = force_generic_plan"

LAST = "coalesce(pg_sequence_last_value('{schema_text}.touches'), 0)"
_PIECE = f"substr(r.digest, 1, {len(HELD_MARK)}) <> '\\x{HELD_MARK.hex()}'::bytea"  # states only hold the others
NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_LOOK = """
  p_hidden boolean, p_id bytea, p_names bytea[], p_every boolean, p_sequences bigint[], p_ids bytea[], p_lows bytea[],
  p_highs bytea[], p_children bigint[], p_pending bytea[], p_counted bytea[], p_runs bigint[], p_journals bigint[],
  p_ns bigint[], p_beside bytea, p_heads boolean, p_segments bigint[]"""
_LOOKED = """
  p_hidden, p_id, p_names, p_every, p_sequences, p_ids, p_lows, p_highs, p_children, p_pending, p_counted, p_runs,
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
CREATE FUNCTION {{schema}}.look_2({_LOOK}) RETURNS bytea[] LANGUAGE plpgsql STABLE {PLANS} AS {{body}}
DECLARE
  v bytea[];
  v_sid bigint;
  v_row bytea;
  v_size integer;
  v_unnamed boolean := false;
  v_missing boolean := false;
BEGIN
  SELECT ARRAY['i'::bytea || int8send({NOW}) || int8send({LAST}) || int8send(read_features)
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
  IF p_ids IS NOT NULL OR p_lows IS NOT NULL THEN
    v := v || ARRAY(SELECT 'f'::bytea || int8send(sequence) || id FROM {{schema}}.foreign_ids
      WHERE sid = v_sid AND id = ANY(p_ids)
      UNION SELECT 'f'::bytea || int8send(sequence) || id FROM unnest(p_lows, p_highs) AS w(low, high)
      JOIN {{schema}}.foreign_ids ON sid = v_sid AND id >= w.low AND id < w.high);
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
CREATE FUNCTION {{schema}}.hold_2({_LOOK}, p_idle bytea) RETURNS bytea[] LANGUAGE plpgsql {PLANS} AS {{body}}
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

# From a checkpoint along its parents, so many of them, or to a keyframe, and then the blobs they need. A segment comes
# as it is kept, and is followed by its runs. 5 and 6 say how many rows there are where what was asked for is not there,
# 7 stands for a row that is missing.
STATE = f"""
CREATE FUNCTION {{schema}}.state_2(p_id bytea, p_name bytea, p_sequence bigint, p_without bigint[], p_limit bigint)
RETURNS TABLE(o_kind integer, o_number bigint, o_parent bigint, o_body bytea)
LANGUAGE plpgsql STABLE {PLANS} AS {{body}}
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
    ON r.sid = v_sid AND r.kind = {Kind.CHECKPOINT:d} AND r.number BETWEEN d.low AND d.high AND {_PIECE}
    UNION ALL SELECT r.digest FROM {{schema}}.refs r
    WHERE r.sid = v_sid AND r.kind = {Kind.KEYFRAME:d} AND r.number = v_next AND {_PIECE});
END
"""
