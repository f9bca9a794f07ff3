"""Reading and writing one session: load, plan, write. What Session, Run and upkeep stand on; decides no rule."""
