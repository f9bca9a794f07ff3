"""What runs inside the server, so that a commit and a journal write are one statement each: one round trip.

Made with the schema and named by a number: a later version adds functions beside these and leaves them to the processes
that still use them. They look and refuse first, by a verdict that the caller puts into words, then change. All writers
of a session take its row's lock before anything else, then the row of the branch's run, then blobs in the order of
their digests; so nobody waits for somebody who waits for him.
"""

NOW_US = """
CREATE FUNCTION {schema}.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
$$SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint$$
"""

_SYNC = """
  IF p_relaxed THEN
    PERFORM set_config('synchronous_commit', 'off', true);
  ELSIF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  o_number := (SELECT value FROM {schema}.holdfast WHERE key = 'min_writer');
  IF o_number > p_format THEN
    o_verdict := 'format';
    RETURN;
  END IF;
"""

# The session's row and the branch's head. A row that was just made by another is waited for and then found.
_FIND_HEAD = """
  LOOP
    SELECT sid, sequence, epoch INTO s FROM {schema}.sessions WHERE id = p_session FOR NO KEY UPDATE;
    EXIT WHEN FOUND;
    IF p_run IS NOT NULL THEN
      o_verdict := 'fenced';
      RETURN;
    ELSIF p_expect IS NOT NULL THEN
      o_verdict := 'conflict';
      RETURN;
    ELSIF p_undo IS NOT NULL OR p_take_up IS NOT NULL THEN
      o_verdict := 'missing';
      o_about := coalesce(p_undo, p_take_up);
      RETURN;
    END IF;
    INSERT INTO {schema}.sessions(
      touched, created_us, updated_us, logical, sequence, checkpoints, branches, epoch, id, status, usage)
    VALUES (0, p_at, p_at, 0, 0, 0, 0, 0, p_session, p_status, p_usage) ON CONFLICT (id) DO NOTHING;
  END LOOP;
  SELECT n.tag, n.undo, c.id, c.digest, c.place, c.sequence, c.whole IS NOT NULL AS complete INTO h
  FROM {schema}.names n LEFT JOIN {schema}.checkpoints c ON c.sid = n.sid AND c.sequence = n.sequence
  WHERE n.sid = s.sid AND n.name = p_branch;
  IF h.tag THEN
    o_verdict := 'taken';
    RETURN;
  ELSIF h.tag IS NOT NULL AND h.id IS NULL THEN
    o_verdict := 'lost';
    RETURN;
  END IF;
  SELECT run, token, until_us, holder, entered INTO r FROM {schema}.runs
  WHERE sid = s.sid AND branch = p_branch FOR NO KEY UPDATE;
  v_stood := coalesce(h.sequence, 0);
"""

# An earlier try of this very commit may have gone through, and may have ended its run: that is asked first.
_REFUSE = """
  IF h.id IS DISTINCT FROM p_expect THEN
    PERFORM 1 FROM {schema}.checkpoints WHERE sid + 0 = s.sid AND id = p_id;
    IF FOUND THEN
      o_verdict := 'done';
      RETURN;
    END IF;
  END IF;
  IF p_run IS NOT NULL THEN
    IF r.holder IS NULL OR r.run <> p_run OR r.token <> p_token THEN
      o_verdict := 'fenced';
      RETURN;
    END IF;
  ELSIF r.run IS NOT NULL THEN
    IF r.entered AND r.holder IS NOT NULL AND r.token IS DISTINCT FROM p_gone AND r.until_us > {schema}.now_us() THEN
      o_verdict := 'held';
      o_number := r.until_us;
      o_token := r.token;
      o_about := r.holder;
      RETURN;
    END IF;
    IF NOT p_looked AND EXISTS (SELECT 1 FROM {schema}.calls WHERE run = r.run AND stood = v_stood) THEN
      o_verdict := 'look';
      RETURN;
    END IF;
  END IF;
  IF h.id IS DISTINCT FROM p_expect THEN
    o_verdict := 'conflict';
    o_about := h.id;
    RETURN;
  ELSIF p_delta IS NOT NULL AND s.epoch <> p_epoch THEN
    o_verdict := 'epoch';
    RETURN;
  END IF;
  v_place := CASE WHEN h.id IS NULL THEN 0 WHEN h.complete THEN 1 ELSE h.place + 1 END;
  v_undo := h.undo;
  IF p_undo IS NOT NULL THEN
    o_about := p_undo;
    SELECT sequence INTO v_undo FROM {schema}.checkpoints WHERE sid + 0 = s.sid AND id = p_undo;
    IF NOT FOUND THEN
      o_verdict := 'missing';
      RETURN;
    END IF;
  END IF;
  IF p_take_up IS NOT NULL THEN
    o_about := p_take_up;
    SELECT sequence INTO v_left FROM {schema}.checkpoints WHERE sid + 0 = s.sid AND id = p_take_up;
    IF NOT FOUND THEN
      o_verdict := 'missing';
      RETURN;
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
  o_parent := h.digest;
  o_digest := sha256(
    p_head || int8send(v_sequence) || coalesce(h.digest, decode(repeat('00', 32), 'hex')) || p_state || p_fields);
  o_number := v_sequence;

  FOR i IN 1 .. coalesce(array_length(p_refs, 1), 0) LOOP
    LOOP
      -- Held until the end, so that no deletion takes it from under this commit.
      SELECT bid INTO v_bid FROM {schema}.blobs WHERE digest = p_refs[i] FOR KEY SHARE;
      EXIT WHEN FOUND;
      IF p_contents[i] IS NULL THEN
        RAISE EXCEPTION 'a blob is needed and not here' USING ERRCODE = 'HF001', DETAIL = encode(p_refs[i], 'hex');
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
    SELECT max(n) + 1 INTO v_calls FROM {schema}.calls WHERE run = r.run AND stood = v_stood;
  END IF;
  INSERT INTO {schema}.checkpoints(
    sid, sequence, touched, size, link, base, took_run, took_stood, took_calls, place, id, state_digest, digest, fields,
    delta, roll, whole)
  VALUES (s.sid, v_sequence, v_touched, p_size, h.sequence, v_base, CASE WHEN v_calls IS NOT NULL THEN r.run END,
    CASE WHEN v_calls IS NOT NULL THEN v_stood END, v_calls, v_place, p_id, p_state, o_digest, p_fields, p_delta, v_roll,
    p_whole);
  IF h.tag IS NULL THEN
    INSERT INTO {schema}.names(sid, sequence, undo, tag, name) VALUES (s.sid, v_sequence, v_undo, false, p_branch);
  ELSE
    UPDATE {schema}.names SET sequence = v_sequence, undo = v_undo WHERE sid = s.sid AND name = p_branch;
  END IF;
  UPDATE {schema}.sessions SET
    sequence = v_sequence, checkpoints = checkpoints + 1, branches = branches + (h.tag IS NULL)::int,
    logical = logical + p_size, touched = v_touched, updated_us = p_at, agent = p_agent,
    status = p_status, reason = p_reason, last_step = p_step, usage = p_usage
  WHERE sid = s.sid;
"""

_TAKE_IN = """
  IF p_run IS NOT NULL THEN
    FOR i IN 1 .. coalesce(array_length(p_marks, 1), 0) LOOP
      UPDATE {schema}.calls SET result = NULL, place = p_places[i]
      WHERE run = r.run AND stood = v_stood AND mark = p_marks[i];
    END LOOP;
    IF p_ends THEN
      UPDATE {schema}.runs SET holder = NULL, until_us = NULL, entered = false, crashes = 0, spot = '', unfinished = false,
        input = NULL WHERE run = r.run;
      PERFORM pg_notify('{channel}', '');
    ELSIF r.until_us < {schema}.now_us() + p_lease - p_lease / 20 THEN
      UPDATE {schema}.runs SET holder = p_holder, until_us = {schema}.now_us() + p_lease WHERE run = r.run;
    END IF;
  ELSIF r.run IS NOT NULL AND p_take_up IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM {schema}.checkpoints WHERE sid = s.sid AND sequence > v_left AND took_run = r.run AND took_stood = v_left) THEN
    UPDATE {schema}.calls SET stood = v_sequence WHERE run = r.run AND stood = v_left;
  END IF;
  o_verdict := 'ok';
"""

# Plans are kept by the server's sessions and outlive the small tables they were made for: none may rest on a table
# being small. For the same reason an id is looked for by itself (`sid + 0`): a session's number alone seems as good to a
# planner that knows nothing of long sessions.
_PLANS = "SET enable_seqscan = off"

COMMIT = f"""
CREATE FUNCTION {{schema}}.commit_1(
  p_format integer, p_relaxed boolean, p_session bytea, p_branch bytea, p_id bytea, p_head bytea, p_expect bytea,
  p_fields bytea, p_state bytea, p_epoch bigint, p_delta bytea, p_whole bytea, p_roll bytea, p_roll_base bytea,
  p_size bigint, p_refs bytea[], p_contents bytea[], p_at bigint, p_agent bytea, p_status bytea, p_reason bytea,
  p_step bigint, p_usage bytea, p_undo bytea, p_take_up bytea, p_run bigint, p_token bigint, p_lease bigint,
  p_holder bytea, p_marks bigint[], p_places bytea[], p_ends boolean, p_gone bigint, p_looked boolean,
  OUT o_verdict text, OUT o_number bigint, OUT o_token bigint, OUT o_parent bytea, OUT o_digest bytea,
  OUT o_about bytea)
LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  s record;
  h record;
  r record;
  v_stood bigint;
  v_place integer;
  v_undo bigint;
  v_left bigint;
  v_base bigint;
  v_roll bytea;
  v_sequence bigint;
  v_bid bigint;
  v_calls integer;
  v_touched bigint;
BEGIN{_SYNC}{_FIND_HEAD}{_REFUSE}{_WRITE}{_TAKE_IN}END
"""

# Several threads of one run may journal at once: the lock on the run's row puts them in a row, and keeps the fence.
JOURNAL = f"""
CREATE FUNCTION {{schema}}.journal_1(
  p_format integer, p_relaxed boolean, p_run bigint, p_token bigint, p_lease bigint, p_holder bytea, p_stood bigint,
  p_slot bigint, p_mark bigint, p_body bytea, p_result bytea, p_place bytea, p_again boolean,
  OUT o_verdict text, OUT o_number bigint)
LANGUAGE plpgsql {_PLANS} AS {{body}}
DECLARE
  r record;
BEGIN{_SYNC}
  SELECT token, until_us, holder, entered INTO r FROM {{schema}}.runs WHERE run = p_run FOR NO KEY UPDATE;
  IF NOT FOUND OR r.token <> p_token OR r.holder IS NULL OR NOT r.entered THEN
    o_verdict := 'fenced';
    RETURN;
  END IF;
  IF r.until_us < {{schema}}.now_us() + p_lease - p_lease / 20 THEN
    UPDATE {{schema}}.runs SET holder = p_holder, until_us = {{schema}}.now_us() + p_lease WHERE run = p_run;
  END IF;
  o_verdict := 'ok';
  o_number := p_slot;
  IF p_slot IS NULL AND p_again THEN
    SELECT slot INTO o_number FROM {{schema}}.calls WHERE run = p_run AND stood = p_stood AND mark = p_mark;
  END IF;
  IF o_number IS NULL THEN
    INSERT INTO {{schema}}.calls(run, stood, mark, n, body, result, place)
    VALUES (p_run, p_stood, p_mark,
      (SELECT coalesce(max(n) + 1, 0) FROM {{schema}}.calls WHERE run = p_run AND stood = p_stood),
      p_body, p_result, p_place) RETURNING slot INTO o_number;
  ELSE
    UPDATE {{schema}}.calls SET body = p_body, result = p_result, place = p_place WHERE slot = o_number AND run = p_run;
    IF NOT FOUND THEN
      o_verdict := 'lost';
    END IF;
  END IF;
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
  SELECT c.sequence, c.lost_parent_id, c.lost_parent_digest, p.id, p.digest, c.digest, c.fields
  INTO v_next, o_lost_parent_id, o_lost_parent_digest, o_parent_id, o_parent_digest, o_digest, o_fields
  FROM {{schema}}.checkpoints c LEFT JOIN {{schema}}.checkpoints p ON p.sid = c.sid AND p.sequence = c.link
  WHERE c.id = p_id AND c.sid + 0 = v_sid;
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
