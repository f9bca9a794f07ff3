// Keeps a page as the store is: on news the same address is fetched again and what differs is replaced.
// Without this script every page and every form works; it is then as old as its last load.
"use strict";
(() => {
  const policy = window.trustedTypes
    ? window.trustedTypes.createPolicy("backstay", { createHTML: (text) => text })
    : { createHTML: (text) => text };
  const byId = (id) => document.getElementById(id);
  const typed = new WeakSet(); // fields that a person has changed: news must not take that away
  let busy = false, again = false, seenAt = new Date();

  function say(word, kind) {
    byId("live-word").textContent = word;
    byId("live-dot").className = "dot dot-" + kind;
  }

  function notice(text, link) {
    const box = byId("news");
    box.replaceChildren();
    if (!text) return;
    const note = document.createElement("div");
    note.className = "notice";
    const said = document.createElement("span");
    said.textContent = text;
    note.append(said);
    if (link) {
      const button = document.createElement("button");
      button.className = "btn";
      button.textContent = link;
      button.addEventListener("click", () => { window.scrollTo(0, 0); refresh(true); });
      const acts = document.createElement("span");
      acts.className = "acts";
      acts.append(button);
      note.append(acts);
    }
    box.append(note);
  }

  // Rows that come while a reader is further down would push away what is read: they are announced instead.
  function reading() {
    const active = document.activeElement;
    return window.scrollY > 200 || (active && active.matches("textarea, input:not([type=radio])") && typed.has(active));
  }

  function newRows(page) {
    const rows = [...page.querySelectorAll("#rows > [id], #lines > [id]")];
    return rows.filter((row) => !byId(row.id));
  }

  const callbacks = {
    beforeAttributeUpdated: (name, node) => {
      if (name === "open" && node.tagName === "DETAILS") return false;
      if ((name === "value" || name === "checked") && typed.has(node)) return false;
    },
    beforeNodeMorphed: (node) => !(node.id === "news" || (node.tagName === "TEXTAREA" && typed.has(node))),
    beforeNodeRemoved: (node) => node.id !== "news",
  };

  async function refresh(force) {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", redirect: "error" });
      if (answer.headers.get("content-type")?.startsWith("text/html")) {
        const page = new DOMParser().parseFromString(policy.createHTML(await answer.text()), "text/html");
        seenAt = new Date();
        const fresh = newRows(page);
        if (fresh.length && !force && reading()) {
          notice(fresh.length === 1 ? "1 new row" : fresh.length + " new rows", "Show");
        } else {
          for (const row of fresh) row.classList.add("fresh");
          const options = { morphStyle: "outerHTML", ignoreActiveValue: true, callbacks };
          Idiomorph.morph(byId("main"), page.getElementById("main"), options);
          if (force || fresh.length) notice("");
          document.title = page.title;
        }
      }
    } catch (error) {
      if (error instanceof TypeError) lost(); // as fetch says that there is no answer
      else throw error;
    } finally { busy = false; }
    if (again) { again = false; refresh(false); }
  }

  function lost() {
    say("lost", "off");
    notice("The page lost its process: start `backstay web` again. What you see is from " + seenAt.toLocaleTimeString() + ".");
  }

  // A browser has six connections for a server, and a seventh page would hang if each held one. So one page listens and
  // tells the others; when it is hidden or closed, the next one that is seen takes its turn.
  const channel = new BroadcastChannel("backstay");
  let asked = null, leading = null;

  function heard(word) {
    if (word === "lost") { lost(); return; }
    if (byId("live-word").textContent === "lost") notice("");
    say("live", "live");
    if (word === "news") refresh(false);
  }

  channel.onmessage = ({ data }) => {
    if (data !== "who") heard(data);
    else if (leading) channel.postMessage("live");
  };

  function lead() {
    return new Promise((done) => {
      const source = new EventSource("/live");
      const tell = (word) => { heard(word); channel.postMessage(word); };
      let first = true;
      source.onmessage = () => { tell(first ? "live" : "news"); first = false; };
      source.onerror = () => { if (source.readyState !== EventSource.OPEN) tell("lost"); };
      leading = () => { source.close(); leading = null; done(); };
    });
  }

  function listen() {
    if (asked || document.hidden) return;
    asked = new AbortController();
    channel.postMessage("who");
    if (navigator.locks) navigator.locks.request("backstay", { signal: asked.signal }, lead).catch(() => {});
    else lead();
  }

  function rest() {
    if (leading) leading();
    if (asked) asked.abort();
    asked = null;
  }

  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { rest(); return; }
    listen();
    refresh(false);
  });
  window.addEventListener("pagehide", rest);
  window.addEventListener("pageshow", listen);
  document.addEventListener("input", (event) => typed.add(event.target));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
    const search = byId("q");
    if (event.key === "/" && search) { event.preventDefault(); search.focus(); }
    if ((event.key === "n" || event.key === "p") && document.querySelector("[data-hop]")) hop(event.key === "n" ? 1 : -1);
  });
  // From change to change in a difference: by the links in its head, which lead to the first and the last without this.
  let hopped = null; // the change that was gone to, and where the window was then
  function hop(step) {
    const changes = [...document.querySelectorAll(".change")];
    const edge = document.querySelector(".pair-head").getBoundingClientRect().bottom;
    const below = changes.findIndex((one) => one.getBoundingClientRect().top >= edge);
    let at = hopped && hopped.y === window.scrollY ? changes.indexOf(hopped.change) + step : step > 0 ? below : below - 1;
    at = Math.max(0, Math.min(at, changes.length - 1));
    changes[at].scrollIntoView();
    changes[at].focus({ preventScroll: true });
    hopped = { change: changes[at], y: window.scrollY };
  }

  document.addEventListener("click", (event) => {
    const link = event.target.closest("[data-hop]");
    if (link) { event.preventDefault(); hop(Number(link.dataset.hop)); }
  });
  listen();
})();
