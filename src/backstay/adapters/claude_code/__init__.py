"""Claude Code: its hooks tell Backstay of prompts, tool calls and turns, and each becomes a checkpoint with its files.

`client` is what a hook runs: small, of the standard library alone, gone within 2 seconds whatever happens. The helper
(`hook_server`) is one process per project that the first hook starts and that does the work; `hooked` and `turns` are
that work: which event of a session does what to its run. `settings` puts the hooks into `.claude/settings.local.json`
and takes them out again.
"""
