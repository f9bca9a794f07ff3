"""A capture: a folder scanned, what changed read, and the list of its files as the next checkpoint has it.

Contents that changed become patches on what they were, others go into groups (`backstay.grouping`); both leave through
`emit` as they come, so that a first capture needs little memory. Nothing is written to the folder but Backstay's own
`.backstay/`: an index, and a file whose time is the file system's clock.
"""

from __future__ import annotations

import hmac
import os
import stat
import time
from collections.abc import Callable, Collection
from hashlib import sha256

import msgspec

from backstay.codec import HeldBlobs
from backstay.errors import CorruptionError
from backstay.grouping import (
    INLINE_BYTES,
    Emit,
    Fetch,
    ForgottenError,
    Grouper,
    chain_of,
    contents_of,
    inline,
    is_worth,
    make_patch,
    placed,
    places_of,
    weight_of,
)
from backstay.listing import OLDER, OUTSIDE, PRIVATE, SECRET, Captured, ContentPlace, FileEntry, Listing
from backstay.listing.folders import key_of, pack_folder
from backstay.workspace import index
from backstay.workspace.index import KnownFile, KnownFolder
from backstay.workspace.open_root import BlockedError, OpenRoot
from backstay.workspace.own_files import clock_of, git_head, secret_key
from backstay.workspace.policy import Workspace, has_private_key, is_secret_name, refuse_size
from backstay.workspace.reading import read_file
from backstay.workspace.recent_contents import RecentContents
from backstay.workspace.scanning import UNREADABLE, Scan, ScannedFile, ScannedFolder

Cut = Callable[[Collection[bytes]], Collection[bytes]]  # the groups among some of which something was forgotten

WRITTEN, NO_TIME, SECRETS = "was being written", "ran out of time", "secret: only a digest is kept"
_TICK_NS = 20_000_000
_COARSE_TICK_NS = 2_000_000_000
_HOT_S = 60.0
_SAVE_S = 2.0
_MIN_PATCHED_BYTES = 64
_SWEEP_EVERY = 32  # captures; groups that no file needs any more are let go then


class Capture(msgspec.Struct, frozen=True):
    """What a capture found: the list, and the paths that differ from the list before it.

    `needs`: the groups that it made, and those that its patches are made on: they must be whole when it is committed.
    """

    listing: Listing
    changed: tuple[bytes, ...] = ()
    needs: frozenset[bytes] = frozenset()


def _nothing_cut(_digests: Collection[bytes]) -> Collection[bytes]:
    return ()


class Capturer:
    """Captures one folder again and again. It remembers what it saw, so a capture costs a scan and what changed.

    One thread at a time.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._known: dict[bytes, KnownFolder] | None = None
        self._hot: dict[bytes, float] = {}
        self._recent = RecentContents()
        self._saved_at = 0.0
        self._key: bytes | None = None
        self.last: Listing | None = None  # as it was made: what is known of folders is known of this list

    def capture(
        self,
        base: Listing,
        *,
        fetch: Fetch,
        emit: Emit,
        cut: Cut = _nothing_cut,
        author: Callable[[bytes], str] | str = OUTSIDE,
        every: bool = False,
        budget_s: float | None = None,
    ) -> Capture:
        """The list of the folder's files as they are now; `base` itself if nothing differs.

        `every`: read all files, whatever their signatures say. `author` of the changes, or one for each path.
        """
        with OpenRoot(self.workspace.path) as root:
            if self._known is None:
                self._known = index.load(root)
            clock_ns = clock_of(root)
            known = {} if every else self._known
            scan = Scan(root, self.workspace, known)
            scan.run()
            refuse_size(root.path, scan.sizes, self.workspace.max_total)
            work = _CaptureWork(self, root, scan, base, fetch, emit, clock_ns, author)
            work.cut = cut
            work.deadline = None if budget_s is None else time.monotonic() + budget_s
            found = work.run()
            self._remember(root, work)
            self.last = found.listing
        return found

    def measure(self) -> None:
        """InvalidInputError if there is more in the folder than a workspace may have; nothing is read or kept."""
        with OpenRoot(self.workspace.path) as root:
            scan = Scan(root, self.workspace, {} if self._known is None else self._known)
            scan.run()
            refuse_size(root.path, scan.sizes, self.workspace.max_total)

    # what is remembered

    @property
    def known(self) -> dict[bytes, KnownFolder]:
        """What is known of each folder."""
        return {} if self._known is None else self._known

    @property
    def recent(self) -> RecentContents:
        """Contents that were captured last."""
        return self._recent

    def is_hot(self, path: bytes) -> bool:
        """True if a file changed within the last minute: its times are not to be trusted."""
        at = self._hot.get(path)
        return at is not None and time.monotonic() - at < _HOT_S

    def changed(self, path: bytes) -> None:
        """A file changed just now."""
        self._hot[path] = time.monotonic()

    def keyed_digest(self, root: OpenRoot, contents: bytes) -> bytes:
        """A digest that says nothing to those who do not have the key of this folder."""
        if self._key is None:
            self._key = secret_key(root)
        return hmac.new(self._key, contents, sha256).digest()

    def _remember(self, root: OpenRoot, work: _CaptureWork) -> None:
        known = self.known
        if known.keys() != work.scan.seen or work.folders:
            known = {path: folder for path, folder in known.items() if path in work.scan.seen} | work.folders
        self._known = known
        now = time.monotonic()
        if len(self._hot) > 4 * len(work.folders) + 1000:
            self._hot = {path: at for path, at in self._hot.items() if now - at < _HOT_S}
        if work.folders and (not self._saved_at or now - self._saved_at > _SAVE_S):
            self._saved_at = now
            index.save(root, known)


class _CaptureWork:
    """One capture on its way from a scan to a list."""

    def __init__(
        self,
        capturer: Capturer,
        root: OpenRoot,
        scan: Scan,
        base: Listing,
        fetch: Fetch,
        emit: Emit,
        clock_ns: int,
        author: Callable[[bytes], str] | str,
    ) -> None:
        self._capturer = capturer
        self._workspace = capturer.workspace
        self._root = root
        self.scan = scan
        self._base = base
        self._fetch = fetch
        self._trusted_ns = clock_ns - (_TICK_NS if clock_ns % 1_000_000_000 else _COARSE_TICK_NS)
        self._author = author
        self._grouper = Grouper(base.about.groups, emit)
        self._places: dict[bytes, tuple[ContentPlace, list[bytes]]] = {}  # by digest: of this capture, and the base's
        self._paths: dict[bytes, bytes] | None = None  # by digest, of the files that are known
        self._patched: dict[str, list[bytes] | None] = {}
        self._tree: dict[str, bytes] = {}
        self._gone: list[str] = []
        self._changed: list[bytes] = []
        self._exact = True
        self.deadline: float | None = None
        self.cut: Cut = _nothing_cut
        self._needs: set[bytes] = set()
        self.folders: dict[bytes, KnownFolder] = {}

    def run(self) -> Capture:
        """Read what may have changed, and make the list."""
        base, keys = self._base, self._base.keys_by_folder
        dirty = {folder.path for folder in self.scan.folders}
        for folder in self.scan.folders:
            self._folder(folder)
        known_now = {} if base is self._capturer.last else self._capturer.known
        for path, known in known_now.items():
            if path in self.scan.seen and path not in dirty:
                values = [base.tree[key] for key in keys.get(path, ())]
                if index.packed_digest(values) != known.packed:  # another list than was captured last
                    self._folder(_as_scanned(path, known))
        for path in keys:
            if path not in self.scan.seen and not self._is_skipped(path):
                self._changed += list(base.folder(path))
                self._gone += keys[path]
        self._grouper.flush()
        if not self._changed and not self._tree and not self._gone and self._is_same_about():
            return Capture(base)
        needs = frozenset(self._needs | {*self._grouper.digests})
        return Capture(self._listing(), tuple(sorted(self._changed)), needs)

    def _is_skipped(self, path: bytes) -> bool:
        return any([path == skipped or path.startswith(skipped + b"/") for skipped in self.scan.skipped])

    # a folder

    def _folder(self, folder: ScannedFolder) -> None:
        old = self._base.folder(folder.path)
        start = folder.path + b"/" if folder.path else b""
        own = FileEntry(folder.path, folder.mode)
        was = old.get(folder.path)
        if was is None or not was.same(own):
            self._changed.append(folder.path)
            entries = {folder.path: own}
        else:
            entries = {folder.path: was}
        known: dict[str, KnownFile] = {}
        handle: int | None = None
        try:
            for name in sorted(folder.files):
                path, file = start + os.fsencode(name), folder.files[name]
                before = old.get(path)
                entry = self._unchanged(file, before)
                if entry is None:
                    if handle is None:
                        handle = self._root.open_folder(folder.path) if folder.path else os.dup(self._root.descriptor)
                    entry, seen = self._read(handle, name, path, file, before)
                else:
                    seen = file.known or KnownFile(None)
                if seen is not None:
                    known[name] = seen
                if entry is not None:
                    entries[path] = entry
                    if before is None or not before.same(entry):
                        self._changed.append(path)
        except BlockedError:
            self.scan.skipped.append(folder.path)
            return
        finally:
            if handle is not None:
                os.close(handle)
        self._changed += [path for path in old if path not in entries]
        self._pack(folder, entries, known)

    def _pack(self, folder: ScannedFolder, entries: dict[bytes, FileEntry], known: dict[str, KnownFile]) -> None:
        base = self._base
        keys = base.keys_by_folder.get(folder.path, [])
        values = pack_folder(folder.path, entries.values(), keys)
        for key, value in values.items():
            if base.tree.get(key) != value:
                self._tree[key] = value
        self._gone += [key for key in keys if key not in values]
        kept = [base.tree[key] if base.tree.get(key) == value else value for key, value in values.items()]
        self.folders[folder.path] = KnownFolder(
            folder.mode, folder.rules, known, folder.ignored, index.packed_digest(kept), folder.folders
        )

    @staticmethod
    def _unchanged(file: ScannedFile, before: FileEntry | None) -> FileEntry | None:
        """The entry of a file that was neither changed nor is another than the list's."""
        if file.known is None or before is None:
            return None
        # Of a link the digest of its target is known: the list may have been made of another one.
        digest = sha256(before.target).digest() if before.target else before.digest
        if digest != file.known.digest:
            return None
        return before if before.mode == file.signature[4] and not before.mark else None

    # a file

    def _read(
        self, handle: int, name: str, path: bytes, file: ScannedFile, before: FileEntry | None
    ) -> tuple[FileEntry | None, KnownFile | None]:
        """The entry of a file as it is now, and what is then known of it."""
        text = os.fsdecode(path)
        if file.too_large:
            older = before is not None and before.has_contents and before.kind == "file"
            return (msgspec.structs.replace(before, mark=OLDER) if before is not None and older else None), None
        secret, kept = is_secret_name(text), self._workspace.secrets == "capture"
        if secret and self._workspace.secrets == "skip":
            self.scan.leave_out(SECRETS, text, file.signature[2])
            return None, None
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.scan.leave_out(NO_TIME, text, file.signature[2])
            self._exact = False
            return before, None
        hot = self._capturer.is_hot(path)
        found = read_file(handle, name, limit=self._workspace.max_file, hot=hot)
        if found is None:
            if self._is_there(handle, name):
                self.scan.leave_out(UNREADABLE, text, file.signature[2])
                return before, None
            return None, None
        if not found.exact:
            self.scan.leave_out(WRITTEN, text, file.signature[2])
            self._exact = False
        mode, contents = found.signature[4], found.contents
        if stat.S_ISLNK(mode):
            entry = FileEntry(path, mode, target=contents)
            trusted = max(found.signature[:2]) < self._trusted_ns
            seen = KnownFile(found.signature if trusted else None, sha256(contents).digest())
            return before if before is not None and before.same(entry) else entry, seen
        secret = secret or has_private_key(contents)
        if secret and not kept:
            return self._secret(path, text, mode, contents, before), None
        entry = self._entry(path, mode, found.signature[1], contents, before)
        if secret:
            entry = msgspec.structs.replace(entry, mark=PRIVATE)
        if self._base.about.capture and (before is None or before.digest != entry.digest):
            self._capturer.changed(path)
            hot = True
        trusted = found.exact and not hot and max(found.signature[:2]) < self._trusted_ns
        return entry, KnownFile(found.signature if trusted else None, entry.digest)

    @staticmethod
    def _is_there(handle: int, name: str) -> bool:
        try:
            os.stat(name, dir_fd=handle, follow_symlinks=False)
        except OSError:
            return False
        return True

    def _secret(self, path: bytes, text: str, mode: int, contents: bytes, before: FileEntry | None) -> FileEntry | None:
        self.scan.leave_out(SECRETS, text, len(contents))
        if self._workspace.secrets == "skip":
            return None
        digest = self._capturer.keyed_digest(self._root, contents)
        entry = FileEntry(path, mode, len(contents), digest, mark=SECRET)
        return before if before is not None and before.same(entry) else entry

    def _entry(self, path: bytes, mode: int, mtime_ns: int, contents: bytes, before: FileEntry | None) -> FileEntry:
        """A file with these contents; they are put into a group or a patch where they are new."""
        digest = sha256(contents).digest()
        if before is not None and before.kind == "file" and before.digest == digest and before.place is not None:
            return before if before.mode == mode and not before.mark else _with(before, mode)
        self._capturer.recent.put(digest, contents)
        key = key_of(path)
        if before is not None and before.kind == "file" and before.place is not None and not before.mark:
            place = self._patch(key, contents, before)
            if place is not None:
                return FileEntry(path, mode, len(contents), digest, b"", mtime_ns, place)
        found = self._places.get(digest) or self._elsewhere(digest)
        place, chain = (self._grouper.add(contents), []) if found is None else found
        self._places[digest] = place, chain
        self._patched[key] = chain or None
        return FileEntry(path, mode, len(contents), digest, b"", mtime_ns, place)

    def _elsewhere(self, digest: bytes) -> tuple[ContentPlace, list[bytes]] | None:
        """Where the list has the same contents under another path: a file that was moved or copied."""
        if self._paths is None:
            self._paths = {}
            for folder, known in self._capturer.known.items():
                start = folder + b"/" if folder else b""
                for name, file in known.files.items():
                    self._paths[file.digest] = start + os.fsencode(name)
        path = self._paths.get(digest)
        entry = None if path is None else self._base.find(path)
        if entry is None or entry.place is None or entry.digest != digest or not self._rests_on(entry):
            return None
        return entry.place, chain_of(self._base, entry)

    def _rests_on(self, entry: FileEntry) -> bool:
        """True if the contents of a file of the list before can be built on: nothing of its groups was forgotten."""
        groups = {self._base.group(number) for number in places_of(self._base, entry)}
        fresh = groups - self._needs
        if fresh and self.cut(fresh):
            return False
        self._needs |= groups
        return True

    def _patch(self, key: str, contents: bytes, before: FileEntry) -> ContentPlace | None:
        """Put a patch on what a file was, if it is worth it."""
        if min(before.size, len(contents)) < _MIN_PATCHED_BYTES:
            return None
        old = self._capturer.recent.get(before.digest)
        if old is None:
            try:
                old = contents_of(self._base, before, self._fetch)
            except (CorruptionError, ForgottenError):
                return None  # what it was is damaged or forgotten: the whole is kept
        chain = chain_of(self._base, before)
        patch = make_patch(old, contents)
        if not is_worth(patch, contents, [weight_of(kept) for kept in chain[1:]]) or not self._rests_on(before):
            return None
        kept = inline(patch) if len(patch) <= INLINE_BYTES else placed(self._grouper.add(patch), len(patch))
        self._patched[key] = [*(chain or [before.size.to_bytes(8, "big")]), kept]
        return before.place

    # the list

    def _is_same_about(self) -> bool:
        now, before = self._about(self._base.about.capture), self._base.about
        return msgspec.structs.replace(now, author=before.author) == before

    def _about(self, capture: int) -> Captured:
        scan = self.scan
        return Captured(
            capture=capture,
            groups=self._base.about.groups + len(self._grouper.digests),
            files=scan.files,
            size_bytes=scan.size_bytes,
            author=self._author if isinstance(self._author, str) else OUTSIDE,
            exact=self._exact,
            git=git_head(self._root),
            root=self._root.path,
            rules=scan.rules,
            why=scan.left_out(),
        )

    def _listing(self) -> Listing:
        base, about = self._base, self._about(self._base.about.capture + 1)
        tree = dict(base.tree)
        for key in self._gone:
            tree.pop(key, None)
        tree |= self._tree
        groups = dict(base.groups)
        if self._grouper.digests:
            groups[str(base.about.groups)] = HeldBlobs(b"".join(self._grouper.digests))
        patches = dict(base.patches)
        for key, chain in self._patched.items():
            if chain is None:
                patches.pop(key, None)
            else:
                patches[key] = chain
        who, authors = self._who(about.capture)
        gone = [path for path in self._changed if base.find(path) is not None]
        made = Listing(tree, groups=groups, patches=patches, who=who, authors=authors, about=about)
        for path in gone if patches else ():
            key = key_of(path)
            if key in patches and made.find(path) is None:
                del patches[key]
        return _swept(made) if about.capture % _SWEEP_EVERY == 0 else made

    def _who(self, capture: int) -> tuple[dict[str, bytes], tuple[str, ...]]:
        """The authors of all changes, with those of this capture. A first capture has none: all of it was there."""
        base = self._base
        if not base.about.capture:
            return {}, ()
        who, authors = dict(base.who), list(base.authors)
        for path in self._changed:
            author = self._author if isinstance(self._author, str) else self._author(path)
            if author not in authors:
                authors.append(author)
            mark = capture.to_bytes(4, "big") + authors.index(author).to_bytes(4, "big")
            key = key_of(path)
            who[key] = who.get(key, b"") + mark
        return who, tuple(authors)


def _with(entry: FileEntry, mode: int) -> FileEntry:
    return msgspec.structs.replace(entry, mode=mode, mark="")


def _as_scanned(path: bytes, folder: KnownFolder) -> ScannedFolder:
    """A folder that is as it was known, to be compared with another list."""
    files = {
        name: ScannedFile(file.signature or (0, 0, 0, 0, 0), file if file.signature else None)
        for name, file in folder.files.items()
    }
    return ScannedFolder(path, folder.mode, folder.rules, files, folder.ignored, folder.folders)


def _swept(listing: Listing) -> Listing:
    """The list without the groups that none of its files needs."""
    used = {number for entry in listing for number in places_of(listing, entry)}
    groups: dict[str, HeldBlobs] = {}
    for key, held in listing.groups.items():
        first = int(key)
        digests = [digest if first + at in used else bytes(len(digest)) for at, digest in enumerate(held.each())]
        if any([any(digest) for digest in digests]):
            groups[key] = HeldBlobs(b"".join(digests))
    return Listing(
        listing.tree,
        groups=groups,
        patches=listing.patches,
        who=listing.who,
        authors=listing.authors,
        about=listing.about,
    )
