"""What runs inside the server to write; see `functions`.

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

from backstay.backends.postgres.functions import BEYOND, FORMAT, LAST, NOW, PLANS
from backstay.codec import HELD_MARK
from backstay.port import Kind
from backstay.sealing import CUT

FAR = 1_000_000  # a sequence is moved only so far that it cannot go back behind a number that was just given

_HELD, _CUT = f"'\\x{HELD_MARK.hex()}'::bytea", f"'\\x{CUT.hex()}'::bytea"
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


def _change_name(sid: str, of: str) -> str:
    """A branch or tag that is there gets another revision, and another body if there is one."""
    return f"""
    IF {of}_body IS NULL THEN
      UPDATE {{schema}}.names SET revision = {of}_revision
      WHERE sid = {sid} AND name = p_name AND revision = {of}_expect;
    ELSE
      UPDATE {{schema}}.names SET revision = {of}_revision, marks = {of}_marks, run = {of}_run,
        journal = {of}_journal, sequence = {of}_sequence, body = {of}_body
      WHERE sid = {sid} AND name = p_name AND revision = {of}_expect;
    END IF;
    IF NOT FOUND THEN
      {_MISS};
    END IF;"""


# A branch or tag: compared alone, compared and raised to another revision, or put.
NAME = f"""
CREATE FUNCTION {{schema}}.name_2(p_sid bigint, p_name bytea, p_expect bigint, p_revision bigint, p_marks bigint,
  p_run bigint, p_journal bigint, p_sequence bigint, p_body bytea)
RETURNS boolean LANGUAGE plpgsql {PLANS} AS {{body}}
DECLARE
  v_revision bigint;
BEGIN
  IF p_revision IS NULL THEN
    SELECT revision INTO v_revision FROM {{schema}}.names WHERE sid = p_sid AND name = p_name FOR NO KEY UPDATE;
    IF v_revision IS DISTINCT FROM p_expect THEN
      {_MISS};
    END IF;
  ELSIF p_expect > 0 THEN{_change_name("p_sid", "p")}
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
      PERFORM setval('{{schema_text}}.touches', p_touched - 1) WHERE {LAST} < p_touched - {FAR};
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
  p_k_slot bigint, p_k_sequence bigint, p_k_parent bigint, p_k_body bytea,
  p_k_foreign bytea)
RETURNS bytea LANGUAGE plpgsql {PLANS} AS {{body}}
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
  IF p_n_expect > 0 AND p_n_revision IS NOT NULL THEN{_change_name("v_sid", "p_n")}
  ELSIF p_name IS NOT NULL THEN
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
    IF p_k_foreign IS NOT NULL THEN
      INSERT INTO {{schema}}.foreign_ids(sid, sequence, id) VALUES (v_sid, p_k_sequence, p_k_foreign);
    END IF;
  END IF;
  RETURN int8send({NOW}) || int8send({LAST}) || int8send(v_sid) || int8send(coalesce(v_touched, 0));
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
RETURNS void LANGUAGE plpgsql {PLANS} AS {{body}}
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
  UPDATE {{schema}}.blobs b SET data = n.data FROM unnest(p_b_digests, p_b_contents) AS n(digest, data)
  WHERE n.digest >= {_HELD} AND substr(n.data, 1, 1) <> {_CUT}
  AND b.digest = n.digest AND substr(b.data, 1, 1) = {_CUT};
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

# Blobs that must be whole at the end of this transaction: one that is being cut is waited for, and looked at again.
WHOLE = f"""
CREATE FUNCTION {{schema}}.whole_2(p_digests bytea[]) RETURNS void LANGUAGE plpgsql {PLANS} AS {{body}}
DECLARE
  v_whole bytea[] := ARRAY(SELECT digest FROM {{schema}}.blobs
    WHERE digest = ANY(p_digests) AND substr(data, 1, 1) <> {_CUT} ORDER BY digest FOR KEY SHARE);
  v_lost text;
BEGIN
  IF NOT p_digests <@ v_whole THEN
    v_lost := (SELECT string_agg(encode(d, 'hex'), ' ') FROM unnest(p_digests) AS d WHERE d <> ALL(v_whole));
    RAISE EXCEPTION 'blobs are needed whole' USING ERRCODE = 'BS001', DETAIL = v_lost;
  END IF;
END
"""

# What is left of blobs in their places. No other session may have been touched since the rule decided: those who came
# before the lock have taken a number, those who come after it see the remnant.
CUT_BLOBS = f"""
CREATE FUNCTION {{schema}}.cut_2(p_last bigint, p_digests bytea[], p_contents bytea[])
RETURNS void LANGUAGE plpgsql {PLANS} AS {{body}}
BEGIN
  PERFORM 1 FROM {{schema}}.blobs WHERE digest = ANY(p_digests) ORDER BY digest FOR UPDATE;
  IF {LAST} <> p_last THEN
    {_MISS};
  END IF;
  UPDATE {{schema}}.blobs b SET data = c.data FROM unnest(p_digests, p_contents) AS c(digest, data)
  WHERE b.digest = c.digest;
END
"""

# A segment takes the place of all rows between its first and its last, and of the segments that reach in between. What
# leads to its checkpoints stays as it is if it holds just those that were there.
PACK = f"""
CREATE FUNCTION {{schema}}.pack_2(p_sid bigint, p_feature bigint, p_first bigint, p_last bigint, p_needs bigint,
  p_entries bigint, p_starts bigint[], p_parents bigint[], p_links bytea, p_body bytea, p_f_sequences bigint[],
  p_f_ids bytea[])
RETURNS void LANGUAGE plpgsql {PLANS} AS {{body}}
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
    DELETE FROM {{schema}}.foreign_ids
    WHERE sid = p_sid AND sequence >> 7 BETWEEN v_low >> 7 AND v_high >> 7 AND sequence BETWEEN v_low AND v_high;
    INSERT INTO {{schema}}.foreign_ids(sid, sequence, id)
    SELECT p_sid, f.* FROM unnest(p_f_sequences, p_f_ids) AS f ON CONFLICT DO NOTHING;
  END IF;
  INSERT INTO {{schema}}.segments(sid, first, last, needs, entries, starts, parents, links, body)
  VALUES (p_sid, p_first, p_last, p_needs, p_entries, p_starts, p_parents, p_links, p_body);
END
"""
