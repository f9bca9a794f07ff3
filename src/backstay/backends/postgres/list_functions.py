"""What runs inside the server to list sessions and branches of all sessions; see `functions`.

The planner guesses how many sessions have a facet, or an id that begins so; for a new store it has nothing to guess
from, and a wrong guess reads every session. So it is not asked. With `m` for √(limit × sessions), a page is made of

1. those of the newest that match: of as many eras as have about `m` sessions. Where one in `m / limit` matches, that is
   the page;
2. otherwise, if no more than `m` match at all, these, found by their own index and sorted;
3. otherwise the others from the newest on: it is about `m` sessions to the end of the page, if they lie evenly.

Each way leaves the planner one kind of index: bitmaps alone, or none. A condition in `(…) IS TRUE` is for no index.
"""

from backstay.backends.postgres.functions import NOW, PLANS

_LISTED = "s.id, s.hidden, s.touched, s.body, s.uid, s.checkpoints, s.logical, s.time_era, s.facets"
_COLUMNS = (
    "o_id bytea, o_hidden boolean, o_touched bigint, o_body bytea, o_uid bytea, o_checkpoints bigint, "
    "o_logical bigint, o_time_era bigint, o_facets bigint[]"
)
_WITH_FOREIGN = (
    "s.sid IN (SELECT f.sid FROM unnest($7, $8) AS w(low, high) "
    "JOIN {schema_text}.foreign_ids f ON f.id >= w.low AND f.id < w.high)"
)
_GIVEN = "USING p_hidden, p_since, p_ids[1], p_ids[2], p_uids[1], p_uids[2], p_lows, p_highs, v_end, v_era, p_limit"

# `p_facets` has two dimensions: a session has one of each line of it.
SESSIONS = f"""
CREATE FUNCTION {{schema}}.sessions_2(p_hidden boolean, p_before bigint, p_since bigint, p_facets bigint[],
  p_ids bytea[], p_uids bytea[], p_lows bytea[], p_highs bytea[], p_limit bigint)
RETURNS TABLE({_COLUMNS}) LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_indexscan = on SET enable_bitmapscan = on AS {{body}}
DECLARE
  v_where text := '';
  v_few text := 's.hidden IS NOT DISTINCT FROM $1';
  v_newest text;
  v_most bigint;
  v_matching tid[];
  v_count bigint;
  v_era bigint;
  v_end bigint := coalesce(p_before, 9223372036854775807);
BEGIN
  IF p_since IS NOT NULL THEN
    v_where := v_where || ' AND s.time_era >= $2';
  END IF;
  FOR v_line IN 1 .. coalesce(array_length(p_facets, 1), 0) LOOP
    v_where := v_where || format(' AND s.facets && %L::bigint[]', p_facets[v_line:v_line]);
  END LOOP;
  IF p_ids IS NOT NULL THEN
    v_few := 's.hidden = $1';
    v_where := v_where || ' AND s.id >= $3 AND s.id < $4';
  END IF;
  IF p_uids IS NOT NULL THEN
    v_where := v_where || ' AND s.uid >= $5 AND s.uid < $6';
  END IF;
  IF p_lows IS NOT NULL THEN
    v_where := v_where || ' AND {_WITH_FOREIGN}';
  END IF;
  v_newest := 'SELECT {_LISTED} FROM {{schema_text}}.sessions s WHERE s.hidden = $1 AND (true' || v_where
    || ') IS TRUE AND s.era <= $9 >> 8 AND s.touched < $9 ';
  IF v_where <> '' THEN
    v_most := sqrt(p_limit::float8 * (SELECT max(sid) FROM {{schema}}.sessions));
    v_era := (SELECT max(era) FROM {{schema}}.sessions WHERE hidden = p_hidden AND era <= v_end >> 8)
      - (v_most >> 8) - 1;
    PERFORM set_config('enable_bitmapscan', 'off', true);
    RETURN QUERY EXECUTE v_newest || 'AND s.era >= $10 ORDER BY s.era DESC, s.touched DESC LIMIT $11' {_GIVEN};
    GET DIAGNOSTICS v_count = ROW_COUNT;
    IF v_count = p_limit THEN
      RETURN;
    END IF;
    p_limit := p_limit - v_count;
    PERFORM set_config('enable_bitmapscan', 'on', true), set_config('enable_indexscan', 'off', true);
    EXECUTE 'SELECT ARRAY(SELECT s.ctid FROM {{schema_text}}.sessions s WHERE ' || v_few || v_where || ' LIMIT $12 + 1)'
    INTO v_matching {_GIVEN}, v_most;
    IF cardinality(v_matching) <= v_most THEN
      RETURN QUERY SELECT {_LISTED} FROM {{schema}}.sessions s
      WHERE s.ctid = ANY(v_matching) AND s.era < v_era AND s.touched < v_end ORDER BY s.touched DESC LIMIT p_limit;
      RETURN;
    END IF;
    PERFORM set_config('enable_bitmapscan', 'off', true), set_config('enable_indexscan', 'on', true);
    v_newest := v_newest || 'AND s.era < $10 ';
  END IF;
  RETURN QUERY EXECUTE v_newest || 'ORDER BY s.era DESC, s.touched DESC LIMIT $11' {_GIVEN};
END
"""

# Few branches have a mark: these are read, and the session of each is looked up.
LANES = f"""
CREATE FUNCTION {{schema}}.lanes_2(p_marks bigint, p_due_bits bigint, p_due boolean)
RETURNS TABLE(o_name bytea, o_marks bigint, o_run bigint, o_journal bigint, o_sequence bigint, o_lane bytea,
  o_now bigint, {_COLUMNS}) LANGUAGE plpgsql STABLE {PLANS} SET enable_hashjoin = off SET enable_mergejoin = off AS
{{body}}
BEGIN
  RETURN QUERY SELECT n.name, n.marks, n.run, n.journal, n.sequence, n.body, {NOW}, {_LISTED}
  FROM {{schema}}.names n JOIN {{schema}}.sessions s ON s.sid = n.sid
  WHERE n.marks <> 0 AND (n.marks & p_marks <> 0
    OR (p_due AND n.marks >> p_due_bits::integer BETWEEN 1 AND {NOW} / 1000)) AND NOT s.hidden
  ORDER BY s.touched DESC, n.name;
END
"""
