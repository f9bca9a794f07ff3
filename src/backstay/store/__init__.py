"""Reading and writing one session: load, plan, write. Session, Run and upkeep use it; it decides no rule."""
