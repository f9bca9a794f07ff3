"""What runs inside the server, so that a commit, a journal write and a load are one statement each: one round trip.

Made with the schema and named by a number: a later version adds functions beside these and leaves them to the processes
that still use them. The two that write look and refuse first, by a verdict that the caller puts into words, and then
change: one letter and what belongs to it, as bytes, because a single value costs the server less than a row of columns.

All writers of a session take its row's lock before anything else, then the row of the branch's run, then blobs in the
order of their digests; so nobody waits for somebody who waits for him. Each statement inside sees what was committed
before it began: what is read after the lock is what the lock protects.
"""

NOW_US = """
CREATE FUNCTION {schema}.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint$$
"""

# The verdicts.
OK, DONE, FENCED, HELD, LOOK, CONFLICT, EPOCH, MISSING, TAKEN, LOST, NEWER = (
    b"k",
    b"d",
    b"f",
    b"h",
    b"o",
    b"c",
    b"e",
    b"m",
    b"t",
    b"l",
    b"n",
)

# Plans are kept by the server's sessions and outlive the small tables they were made for: none may rest on a table
# being small. To a planner that knows nothing of long sessions, a session's number alone seems as good as the whole
# key: so a checkpoint is looked for by all of its key in a statement of its own, and an id by itself (`sid + 0`).
_PLANS = "SET enable_seqscan = off"

_SYNC = """
  IF p_relaxed THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
"""

# A session that another is just making is waited for and then found.
_FIND_HEAD = """
  LOOP
    SELECT sid, sequence, epoch INTO s FROM {schema}.sessions WHERE id = p_session FOR NO KEY UPDATE;
    EXIT WHEN FOUND;
    IF p_run IS NOT NULL THEN
      RETURN 'f';
    ELSIF p_expect IS NOT NULL THEN
      RETURN 'c';
    ELSIF p_undo IS NOT NULL OR p_take_up IS NOT NULL THEN
      RETURN 'm'::bytea || coalesce(p_undo, p_take_up);
    END IF;
    INSERT INTO {schema}.sessions(
      touched, created_us, updated_us, logical, sequence, checkpoints, branches, epoch, id, status, usage)
    SELECT 0, p_at, p_at, 0, 0, 0, 0, 0, p_session, p_status, p_usage
    FROM {schema}.backstay WHERE key = 'min_writer' AND value <= p_format ON CONFLICT (id) DO NOTHING;
    IF NOT FOUND AND (SELECT value FROM {schema}.backstay WHERE key = 'min_writer') > p_format THEN
      RETURN 'n'::bytea || int8send((SELECT value FROM {schema}.backstay WHERE key = 'min_writer'));
    END IF;
  END LOOP;
  SELECT m.value AS needed, n.tag, n.sequence AS head, n.undo, r.run, r.token, r.until_us, r.holder, r.entered INTO b
  FROM {schema}.backstay m LEFT JOIN {schema}.names n ON n.sid = s.sid AND n.name = p_branch
  LEFT JOIN {schema}.runs r ON r.sid = s.sid AND r.branch = p_branch WHERE m.key = 'min_writer';
  SELECT id, digest, place, sequence, whole IS NOT NULL AS complete INTO h
  FROM {schema}.checkpoints WHERE sid = s.sid AND sequence = b.head;
  IF b.needed > p_format THEN
    RETURN 'n'::bytea || int8send(b.needed);
  ELSIF b.tag THEN
    RETURN 't';
  ELSIF b.tag IS NOT NULL AND h.id IS NULL THEN
    RETURN 'l';
  END IF;
  v_stood := coalesce(h.sequence, 0);
"""

# An earlier try of this very commit may have gone through, and may have ended its run: that is asked first.
_REFUSE = """
  IF h.id IS DISTINCT FROM p_expect THEN
    PERFORM 1 FROM {schema}.checkpoints WHERE sid + 0 = s.sid AND id = p_id;
    IF FOUND THEN
      RETURN 'd';
    END IF;
  END IF;
  IF p_run IS NOT NULL THEN
    IF b.holder IS NULL OR b.run <> p_run OR b.token <> p_token THEN
      RETURN 'f';
    END IF;
  ELSIF b.run IS NOT NULL THEN
    IF b.entered AND b.holder IS NOT NULL AND b.token IS DISTINCT FROM p_gone AND b.until_us > {schema}.now_us() THEN
      RETURN 'h'::bytea || int8send(b.until_us) || int8send(b.token) || b.holder;
    END IF;
    IF NOT p_looked AND EXISTS (SELECT 1 FROM {schema}.calls WHERE run = b.run AND stood = v_stood) THEN
      RETURN 'o';
    END IF;
  END IF;
  IF h.id IS DISTINCT FROM p_expect THEN
    RETURN 'c'::bytea || coalesce(h.id, '');
  ELSIF p_delta IS NOT NULL AND s.epoch <> p_epoch THEN
    RETURN 'e';
  END IF;
  v_place := CASE WHEN h.id IS NULL THEN 0 WHEN h.complete THEN 1 ELSE h.place + 1 END;
  v_undo := b.undo;
  IF p_undo IS NOT NULL THEN
    SELECT sequence INTO v_undo FROM {schema}.checkpoints WHERE sid + 0 = s.sid AND id = p_undo;
    IF NOT FOUND THEN
      RETURN 'm'::bytea || p_undo;
    END IF;
  END IF;
  IF p_take_up IS NOT NULL THEN
    SELECT sequence INTO v_left FROM {schema}.checkpoints WHERE sid + 0 = s.sid AND id = p_take_up;
    IF NOT FOUND THEN
      RETURN 'm'::bytea || p_take_up;
    END IF;
  END IF;
"""

# A roll only saves reading time: after a deletion it is left out, and so is one that ends inside a group of 16.
_WRITE = """
  IF p_roll IS NOT NULL AND s.epoch = p_epoch AND v_place % 16 = 0 THEN
    SELECT sequence, substr(sha256('\\x726f6c6c00'::bytea || state_digest || p_state || p_roll), 1, 12) || p_roll
    INTO v_base, v_roll FROM {schema}.checkpoints WHERE sid + 0 = s.sid AND id = p_roll_base;
  END IF;
  v_sequence := s.sequence + 1;
  v_digest := sha256(
    p_head || int8send(v_sequence) || coalesce(h.digest, decode(repeat('00', 32), 'hex')) || p_state || p_fields);

  FOR i IN 1 .. coalesce(array_length(p_refs, 1), 0) LOOP
    LOOP
      -- Held until the end, so that no deletion takes it from under this commit.
      SELECT bid INTO v_bid FROM {schema}.blobs WHERE digest = p_refs[i] FOR KEY SHARE;
      EXIT WHEN FOUND;
      IF p_contents[i] IS NULL THEN
        RAISE EXCEPTION 'a blob is needed and not here' USING ERRCODE = 'BS001', DETAIL = encode(p_refs[i], 'hex');
      END IF;
      -- Two may find it missing. The insert settles it, and the other one goes round again.
      INSERT INTO {schema}.blobs(digest, data) VALUES (p_refs[i], p_contents[i])
      ON CONFLICT (digest) DO NOTHING RETURNING bid INTO v_bid;
      EXIT WHEN FOUND;
    END LOOP;
    INSERT INTO {schema}.blob_refs(sid, sequence, bid) VALUES (s.sid, v_sequence, v_bid);
  END LOOP;

  v_touched := nextval('{schema_text}.touches');
  IF p_run IS NOT NULL THEN
    SELECT max(n) + 1 INTO v_calls FROM {schema}.calls WHERE run = b.run AND stood = v_stood;
  END IF;
  INSERT INTO {schema}.checkpoints(
    sid, sequence, touched, size, link, base, took_run, took_stood, took_calls, place, id, state_digest, digest, fields,
    delta, roll, whole)
  VALUES (s.sid, v_sequence, v_touched, p_size, h.sequence, v_base, CASE WHEN v_calls IS NOT NULL THEN b.run END,
    CASE WHEN v_calls IS NOT NULL THEN v_stood END, v_calls, v_place, p_id, p_state, v_digest, p_fields, p_delta,
    v_roll, p_whole);
  IF b.tag IS NULL THEN
    INSERT INTO {schema}.names(sid, sequence, undo, tag, name) VALUES (s.sid, v_sequence, v_undo, false, p_branch);
  ELSE
    UPDATE {schema}.names SET sequence = v_sequence, undo = v_undo WHERE sid = s.sid AND name = p_branch;
  END IF;
  UPDATE {schema}.sessions SET
    sequence = v_sequence, checkpoints = checkpoints + 1, branches = branches + (b.tag IS NULL)::int,
    logical = logical + p_size, touched = v_touched, updated_us = p_at, agent = p_agent, status = p_status,
    reason = p_reason, last_step = p_step, usage = p_usage
  WHERE sid = s.sid;
"""

_TAKE_IN = """
  IF p_run IS NOT NULL THEN
    FOR i IN 1 .. coalesce(array_length(p_marks, 1), 0) LOOP
      UPDATE {schema}.calls SET result = NULL, place = p_places[i]
      WHERE run = b.run AND stood = v_stood AND mark = p_marks[i];
    END LOOP;
    IF p_ends THEN
      UPDATE {schema}.runs SET holder = NULL, until_us = NULL, entered = false, crashes = 0, spot = '',
        unfinished = false, input = NULL WHERE run = b.run;
      PERFORM pg_notify('{channel}', '');
    ELSIF b.until_us < {schema}.now_us() + p_lease - p_lease / 20 THEN
      UPDATE {schema}.runs SET holder = p_holder, until_us = {schema}.now_us() + p_lease WHERE run = b.run;
    END IF;
  ELSIF b.run IS NOT NULL THEN
    IF b.entered THEN
      -- A run that was silent too long, and yet lives, writes no more.
      UPDATE {schema}.runs SET token = token + 1 WHERE run = b.run;
    END IF;
    IF p_take_up IS NOT NULL AND NOT EXISTS (
      SELECT 1 FROM {schema}.checkpoints
      WHERE sid = s.sid AND sequence > v_left AND took_run = b.run AND took_stood = v_left) THEN
      UPDATE {schema}.calls SET stood = v_sequence WHERE run = b.run AND stood = v_left;
    END IF;
  END IF;
  RETURN 'k'::bytea || int8send(v_sequence) || v_digest || coalesce(h.digest, '');
"""

COMMIT = f"""
CREATE FUNCTION {{schema}}.commit_1(
  p_format bigint, p_relaxed boolean, p_session bytea, p_branch bytea, p_id bytea, p_head bytea, p_expect bytea,
  p_fields bytea, p_state bytea, p_epoch bigint, p_delta bytea, p_whole bytea, p_roll bytea, p_roll_base bytea,
  p_size bigint, p_refs bytea[], p_contents bytea[], p_at bigint, p_agent bytea, p_status bytea, p_reason bytea,
  p_step bigint, p_usage bytea, p_undo bytea, p_take_up bytea, p_run bigint, p_token bigint, p_lease bigint,
  p_holder bytea, p_marks bigint[], p_places bytea[], p_ends boolean, p_gone bigint, p_looked boolean)
RETURNS bytea LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  s record;
  b record;
  h record;
  v_stood bigint;
  v_place integer;
  v_undo bigint;
  v_left bigint;
  v_base bigint;
  v_roll bytea;
  v_sequence bigint;
  v_digest bytea;
  v_bid bigint;
  v_calls integer;
  v_touched bigint;
BEGIN{_SYNC}{_FIND_HEAD}{_REFUSE}{_WRITE}{_TAKE_IN}END
"""

# The ordinary commit, with nothing to weigh: on top of what is there, without blobs, a roll or a lease. It changes
# first and looks as it goes, in three statements instead of six. What it cannot do is left to `commit_1`: NULL says so
# when nothing was changed yet, the error when something was, which undoes it. The update of the session is its lock;
# the next statement sees what was there then. A setting of the transaction is made on the way, because every
# expression that stands alone costs as much as a lookup.
ORDINARY = f"""
CREATE FUNCTION {{schema}}.commit_short_1(
  p_format bigint, p_relaxed boolean, p_session bytea, p_branch bytea, p_id bytea, p_head bytea, p_expect bytea,
  p_fields bytea, p_state bytea, p_epoch bigint, p_delta bytea, p_whole bytea, p_size bigint, p_at bigint,
  p_agent bytea, p_status bytea, p_reason bytea, p_step bigint, p_usage bytea)
RETURNS bytea LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  v_sid bigint;
  v_sequence bigint;
  v_touched bigint;
  v_link bigint;
  v_place integer;
  v_before bytea;
  v_answer bytea;
BEGIN
  UPDATE {{schema}}.sessions SET
    sequence = sequence + 1, checkpoints = checkpoints + 1, logical = logical + p_size,
    touched = nextval('{{schema_text}}.touches'), updated_us = p_at, agent = p_agent, status = p_status,
    reason = p_reason, last_step = p_step, usage = p_usage
  WHERE id = p_session AND epoch = p_epoch
    AND (SELECT value FROM {{schema}}.backstay WHERE key = 'min_writer') <= p_format
    AND CASE WHEN p_relaxed THEN set_config('synchronous_commit', 'off', true) = 'off'
      WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', true) = 'on'
      ELSE true END
  RETURNING sid, sequence, touched INTO v_sid, v_sequence, v_touched;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  UPDATE {{schema}}.names n SET sequence = v_sequence FROM {{schema}}.checkpoints h
  WHERE n.sid = v_sid AND n.name = p_branch AND NOT n.tag
    AND h.id = p_expect AND h.sid + 0 = v_sid AND h.sequence = n.sequence
    AND NOT EXISTS (
      SELECT 1 FROM {{schema}}.runs r WHERE r.sid = v_sid AND r.branch = p_branch
        AND (r.entered OR EXISTS (SELECT 1 FROM {{schema}}.calls c WHERE c.run = r.run AND c.stood = n.sequence)))
  RETURNING h.sequence, h.digest, CASE WHEN h.whole IS NULL THEN h.place + 1 ELSE 1 END
  INTO v_link, v_before, v_place;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'not an ordinary commit' USING ERRCODE = 'BS002';
  END IF;
  INSERT INTO {{schema}}.checkpoints(
    sid, sequence, touched, size, link, place, id, state_digest, digest, fields, delta, whole)
  VALUES (v_sid, v_sequence, v_touched, p_size, v_link, v_place, p_id, p_state,
    sha256(p_head || int8send(v_sequence) || v_before || p_state || p_fields), p_fields, p_delta, p_whole)
  RETURNING 'k'::bytea || int8send(sequence) || digest || v_before INTO v_answer;
  RETURN v_answer;
END
"""

# Several threads of one run may journal at once: the lock on the run's row puts them in a row, and keeps the fence.
JOURNAL = f"""
CREATE FUNCTION {{schema}}.journal_1(
  p_format bigint, p_relaxed boolean, p_run bigint, p_token bigint, p_lease bigint, p_holder bytea, p_stood bigint,
  p_slot bigint, p_mark bigint, p_body bytea, p_result bytea, p_place bytea, p_again boolean)
RETURNS bytea LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  r record;
  v_slot bigint := p_slot;
  v_needed bigint;
BEGIN{_SYNC}
  SELECT token, until_us, holder, entered INTO r FROM {{schema}}.runs WHERE run = p_run FOR NO KEY UPDATE;
  IF NOT FOUND OR r.token <> p_token OR r.holder IS NULL OR NOT r.entered THEN
    RETURN 'f';
  END IF;
  SELECT value INTO v_needed FROM {{schema}}.backstay WHERE key = 'min_writer';
  IF v_needed > p_format THEN
    RETURN 'n'::bytea || int8send(v_needed);
  END IF;
  IF r.until_us < {{schema}}.now_us() + p_lease - p_lease / 20 THEN
    UPDATE {{schema}}.runs SET holder = p_holder, until_us = {{schema}}.now_us() + p_lease WHERE run = p_run;
  END IF;
  IF p_slot IS NULL AND p_again THEN
    SELECT slot INTO v_slot FROM {{schema}}.calls WHERE run = p_run AND stood = p_stood AND mark = p_mark;
  END IF;
  IF v_slot IS NULL THEN
    INSERT INTO {{schema}}.calls(run, stood, mark, n, body, result, place)
    VALUES (p_run, p_stood, p_mark,
      (SELECT coalesce(max(n) + 1, 0) FROM {{schema}}.calls WHERE run = p_run AND stood = p_stood),
      p_body, p_result, p_place) RETURNING slot INTO v_slot;
  ELSE
    UPDATE {{schema}}.calls SET body = p_body, result = p_result, place = p_place WHERE slot = v_slot AND run = p_run;
    IF NOT FOUND THEN
      RETURN 'l';
    END IF;
  END IF;
  RETURN 'k'::bytea || int8send(v_slot);
END
"""

# From a checkpoint along rolls and links to its whole copy. STABLE: every look inside sees the caller's one moment.
CHAIN = f"""
CREATE FUNCTION {{schema}}.chain_1(p_session bytea, p_id bytea)
RETURNS TABLE(
  o_sequence bigint, o_link bigint, o_place integer, o_state bytea, o_size bigint, o_base bigint, o_delta bytea,
  o_roll bytea, o_whole bytea, o_id bytea, o_epoch integer, o_lost_parent_id bytea, o_lost_parent_digest bytea,
  o_parent_id bytea, o_parent_digest bytea, o_digest bytea, o_fields bytea)
LANGUAGE plpgsql STABLE {_PLANS} AS {{body}}
DECLARE
  v_sid bigint;
  v_next bigint;
BEGIN
  SELECT s.sid, s.epoch INTO v_sid, o_epoch FROM {{schema}}.sessions s WHERE s.id = p_session;
  SELECT c.sequence, c.link, c.lost_parent_id, c.lost_parent_digest, c.digest, c.fields
  INTO v_next, o_link, o_lost_parent_id, o_lost_parent_digest, o_digest, o_fields
  FROM {{schema}}.checkpoints c WHERE c.id = p_id AND c.sid + 0 = v_sid;
  SELECT p.id, p.digest INTO o_parent_id, o_parent_digest
  FROM {{schema}}.checkpoints p WHERE p.sid = v_sid AND p.sequence = o_link;
  WHILE v_next IS NOT NULL LOOP
    SELECT c.sequence, c.link, c.place, c.state_digest, c.size, c.base,
      CASE WHEN c.base IS NULL AND c.whole IS NULL THEN c.delta END, c.roll, c.whole, c.id
    INTO o_sequence, o_link, o_place, o_state, o_size, o_base, o_delta, o_roll, o_whole, o_id
    FROM {{schema}}.checkpoints c WHERE c.sid = v_sid AND c.sequence = v_next;
    EXIT WHEN NOT FOUND;
    RETURN NEXT;
    v_next := CASE WHEN o_whole IS NULL THEN coalesce(o_base, o_link) END;
    o_fields := NULL;
  END LOOP;
END
"""

# A checkpoint and its ancestors, with the columns of `reads.ROW`. Each is the parent of the one before it.
LINE = f"""
CREATE FUNCTION {{schema}}.line_1(p_session bytea, p_id bytea, p_limit bigint)
RETURNS TABLE(
  o_link bigint, o_id bytea, o_sequence bigint, o_lost_parent_id bytea, o_lost_parent_digest bytea, o_parent_id bytea,
  o_parent_digest bytea, o_state bytea, o_digest bytea, o_fields bytea)
LANGUAGE plpgsql STABLE {_PLANS} AS {{body}}
DECLARE
  c record;
  v_sid bigint;
BEGIN
  SELECT s.sid INTO v_sid FROM {{schema}}.sessions s WHERE s.id = p_session;
  SELECT k.sequence INTO o_link FROM {{schema}}.checkpoints k WHERE k.id = p_id AND k.sid + 0 = v_sid;
  FOR i IN 0 .. p_limit LOOP
    SELECT link, id, sequence, lost_parent_id, lost_parent_digest, state_digest, digest, fields INTO c
    FROM {{schema}}.checkpoints WHERE sid = v_sid AND sequence = o_link;
    IF i > 0 THEN
      o_parent_id := c.id;
      o_parent_digest := c.digest;
      RETURN NEXT;
    END IF;
    EXIT WHEN c.id IS NULL;
    o_link := c.link;
    o_id := c.id;
    o_sequence := c.sequence;
    o_lost_parent_id := c.lost_parent_id;
    o_lost_parent_digest := c.lost_parent_digest;
    o_state := c.state_digest;
    o_digest := c.digest;
    o_fields := c.fields;
  END LOOP;
END
"""

FUNCTIONS = (NOW_US, COMMIT, ORDINARY, JOURNAL, CHAIN, LINE)
